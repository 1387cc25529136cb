-- CIRCUIT: what is remembered of calls, and what is made of that. The same decisions as `circuit/results.rs`,
-- `circuit/sampling.rs` and `report` in `circuit.rs`.
--
-- Results are numbered as they come: those from S.head to before S.tail count, in blocks of fields `b0`, `b1`, ..., so that a
-- step touches those at the ends alone. Of `Count` and of one's own strategies a result is a run: how often, twice, and one
-- for a failure. What is left of the oldest run is S.front, and S.front_last is 1 where it is of failures. Of `Sampling` it is a
-- sample: first and last moment, successes, failures; S.front and S.front_last are both moments of the oldest. While there
-- is but one, what is said of it there may be old.

local CROWDED <const> = 512
local PART <const> = 512
local RUN <const> = '<I2'
local RUN_BYTES <const> = 2
local SAMPLE <const> = '<dddd'
local SAMPLE_BYTES <const> = 32
local BY_RESULTS <const> = 1
local MOST_RESULTS <const> = 1000

function C.result_bytes()
  return M.P.strategy == SAMPLING and SAMPLE_BYTES or RUN_BYTES
end

-- A block, as long as it must be.
function C.block(number)
  local body = C.blocks[number]
  if not body then
    local field = string.format('b%.0f', number)
    body = C.unsealed(field, M.get(field) or M.corrupt('results'))
    if #body ~= math.min(C.kept_tail - number * BLOCK, BLOCK) * C.result_bytes() then
      M.corrupt('results')
    end
    C.blocks[number] = body
  end
  return body
end

-- A result by its number.
function C.result(at)
  if at == M.S.tail - 1 and C.back then
    return C.back
  end
  local body = C.block(math.floor(at / BLOCK))
  if M.P.strategy == SAMPLING then
    local first, last, successes, failures = struct.unpack(SAMPLE, body, at % BLOCK * SAMPLE_BYTES + 1)
    return { first = first, last = last, successes = successes, failures = failures }
  end
  local run = struct.unpack(RUN, body, at % BLOCK * RUN_BYTES + 1)
  return { failed = run % 2, times = (run - run % 2) / 2 }
end

-- The newest result, to be changed; nil where there is none.
function C.newest()
  local S = M.S
  if not C.back and S.tail > S.head then
    C.back = C.result(S.tail - 1)
  end
  return C.back or nil
end

-- Enters the newest result in its block.
function C.enter()
  local at, back, bytes = M.S.tail - 1, C.back, C.result_bytes()
  local number, place = math.floor(at / BLOCK), at % BLOCK
  local before = place > 0 and string.sub(C.block(number), 1, place * bytes) or ''
  local packed
  if bytes == SAMPLE_BYTES then
    packed = struct.pack(SAMPLE, back.first, back.last, back.successes, back.failures)
  else
    packed = struct.pack(RUN, back.times * 2 + back.failed)
  end
  C.blocks[number], C.fresh[number] = before .. packed, true
end

function C.push(result)
  if C.back then
    C.enter()
  end
  C.back, M.S.tail = result, M.S.tail + 1
end

-- Lets go the oldest result, whose calls are taken off already.
function C.pop()
  local S = M.S
  if S.head == S.tail - 1 then
    if S.successes ~= 0 or S.failures ~= 0 then
      M.corrupt('results')
    end
    return C.clear_results()
  end
  S.head = S.head + 1
  if S.head % BLOCK == 0 then
    local number = S.head / BLOCK - 1
    C.blocks[number], C.fresh[number] = nil, nil
    M.put(string.format('b%.0f', number), false)
  end
end

function C.keep_results()
  if C.back then
    C.enter()
  end
  for number in pairs(C.fresh) do
    local field = string.format('b%.0f', number)
    M.put(field, C.sealed(field, C.blocks[number]))
  end
end

-- Whether so many failures of so many calls are at least the threshold; in two parts, so that neither product passes 2^53.
function C.reaches(failures, calls)
  local ppm, rest = M.P.threshold, calls % MILLION
  return failures >= (calls - rest) / MILLION * ppm + math.ceil(rest * ppm / MILLION)
end

-- ---- the last so many --------------------------------------------------------------------------------------------------

function C.add_recent(failed, times)
  local S, size, newest = M.S, M.P.size, C.newest()
  times = math.min(times, size)
  if newest and newest.failed == failed then
    newest.times = newest.times + times
  else
    if S.head == S.tail - 1 then
      S.front, S.front_last = newest.times, newest.failed
    end
    C.push({ failed = failed, times = times })
  end
  C.count(failed, times)
  local over = S.successes + S.failures - size
  while over > 0 do
    local newest_alone = S.head == S.tail - 1
    local left, of = S.front, S.front_last
    if newest_alone then
      left, of = C.back.times, C.back.failed
    end
    local gone = math.min(left, over)
    C.count(of, -gone)
    over = over - gone
    if newest_alone then
      C.back.times = left - gone
    elseif gone < left then
      S.front = left - gone
    else
      C.pop()
      local oldest = C.result(S.head)
      S.front, S.front_last = oldest.times, oldest.failed
    end
  end
end

function C.count(failed, times)
  local S = M.S
  if failed == 1 then
    S.failures = S.failures + times
  else
    S.successes = S.successes + times
  end
end

-- The runs, packed, oldest first.
function C.recent()
  local S = M.S
  if S.tail == S.head or M.P.strategy ~= COUNT and M.P.strategy ~= CUSTOM then
    return ''
  end
  if C.back then
    C.enter()
  end
  local from, to, fields, parts = math.floor(S.head / BLOCK), math.floor((S.tail - 1) / BLOCK), {}, {}
  for number = from, to do
    fields[#fields + 1] = not C.blocks[number] and string.format('b%.0f', number) or nil
  end
  M.fetch(fields)
  for number = from, to do
    parts[#parts + 1] = C.block(number)
  end
  local all = string.sub(table.concat(parts), S.head % BLOCK * RUN_BYTES + 1)
  if S.head == S.tail - 1 then
    return all
  end
  return struct.pack(RUN, S.front * 2 + S.front_last) .. string.sub(all, RUN_BYTES + 1)
end

-- ---- the last while ----------------------------------------------------------------------------------------------------

-- Lets go what is too old as a whole.
function C.advance()
  local S, duration = M.S, M.P.duration
  while S.tail > S.head and not C.is_within(S.front_last, duration) do
    local oldest = C.result(S.head)
    S.successes, S.failures = S.successes - oldest.successes, S.failures - oldest.failures
    C.pop()
    if S.tail > S.head then
      oldest = C.result(S.head)
      S.front, S.front_last = oldest.first, oldest.last
    end
  end
end

function C.add_sample(failed, times)
  C.advance()
  local S, newest, apart = M.S, C.newest(), math.floor(M.P.duration / PART)
  times = math.min(times, LAST - S.successes - S.failures)
  C.count(failed, times)
  local crowded = S.tail - S.head >= CROWDED
  if not newest or newest.last < M.now and not (crowded and M.now - newest.first <= apart) then
    newest = { first = M.now, last = M.now, successes = 0, failures = 0 }
    C.push(newest)
  end
  newest.last = math.max(newest.last, M.now)
  newest.successes, newest.failures = newest.successes + (1 - failed) * times, newest.failures + failed * times
  if S.head == S.tail - 1 then
    S.front, S.front_last = newest.first, newest.last
  end
end

-- Whether the samples open: what is partly too old errs towards closed.
function C.samples_open()
  local S = M.S
  local failures, calls = S.failures, S.successes + S.failures
  if not C.is_within(S.front, M.P.duration) then
    local oldest = C.result(S.head)
    failures, calls = failures - oldest.failures, calls - oldest.successes - oldest.failures
  end
  return calls >= M.P.minimum_calls and C.reaches(failures, math.min(failures + S.successes, LAST))
end

-- ---- reports -----------------------------------------------------------------------------------------------------------

-- Takes in a run, and says whether the strategy opens after it.
function C.add(failed, times)
  local S, P = M.S, M.P
  if P.strategy == CONSECUTIVE then
    S.failures = failed == 1 and math.min(S.failures + times, MOST_RESULTS) or 0
    return S.failures >= P.threshold
  elseif P.strategy == SAMPLING then
    C.add_sample(failed, times)
    return C.samples_open()
  end
  C.add_recent(failed, times)
  local calls = S.successes + S.failures
  return P.strategy == COUNT and calls >= P.minimum_calls and C.reaches(S.failures, calls)
end

-- How many results a batch may put into a `Count`, and how many it has, failures too; false where it may put in all.
function C.thinning(runs)
  local S, P = M.S, M.P
  if P.strategy ~= COUNT then
    return false
  end
  local all, failures = 0, 0
  for _, run in ipairs(runs) do
    all = all + math.abs(run)
    failures = failures + math.max(-run, 0)
  end
  -- Without looking at who was heard, which are no more than are known.
  if all <= math.ceil(P.size / S.known) then
    return false
  end
  local most = math.ceil(P.size / math.max(C.heard(), 1))
  return most < all and most, all, failures
end

-- What came of a process's calls: each run is so many successes, or less than none for failures. 0 where they were dropped,
-- 1 where they were counted, or the change.
function C.report(driver, number, generation, runs)
  local S = M.S
  if not C.hear(driver, number) then
    return 0
  end
  if #runs > 0 then
    S.stirred = M.now
  end
  if generation ~= S.generation or S.attempt > 0 then
    return 0
  end
  local most, all, all_failed = C.thinning(runs)
  local kept_failed = most and math.ceil(all_failed * most / all)
  local successes, failures, has_failed = 0, 0, false
  for _, run in ipairs(runs) do
    local times, failed = math.abs(run), run < 0 and 1 or 0
    if failed == 1 and not has_failed then
      has_failed = true
      C.fail()
    end
    if most and failed == 1 then
      local before = math.ceil(failures * most / all)
      failures = failures + times
      times = math.ceil(failures * most / all) - before
    elseif most then
      local kept, worked = most - kept_failed, all - all_failed
      local before = math.floor(successes * kept / worked)
      successes = successes + times
      times = math.floor(successes * kept / worked) - before
    end
    if times > 0 and C.add(failed, times) and C.enough_fail() then
      return C.change(OPEN, BY_RESULTS)
    end
  end
  return 1
end

-- A strategy of one's own opens, having seen the results of a generation.
function C.strategy_opens(generation)
  local S = M.S
  local may = M.P.strategy == CUSTOM and generation == S.generation and S.attempt == 0 and S.tail > S.head
  return may and C.enough_fail() and C.change(OPEN, BY_RESULTS)
end
