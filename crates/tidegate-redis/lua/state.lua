-- STATE: what is kept of an id, without its circuit.
--
-- S.epoch is 0 where there is none.

-- The state proper. The moment in microseconds of the store's clock, in milliseconds of the id's own, and how far that was set back.
--
-- Moments are kept in milliseconds of the id's own time: that of the store, plus `offset`, which grows when the store's
-- clock is set back. So what was kept never has to be moved.
-- How many steps have written it makes each state another: where it is the same, nothing else of the id was written since.
-- The last number is the sum of those before it and 1: what was damaged is known by it, or by a number that is not whole.
local STATE <const> = '<ddddddddddddddddddd'
local ONE_TIER <const> = '<dddddddddddddddddddI4'

function M.no_state(last, fence)
  return {
    last = last, offset = 0, fence = fence, epoch = 0, born = 0, paused_until = 0, used = 0, held = 0, resting = 0,
    first = 0, newest = 0, cohort = 0, search = 0, moved_at = 0, expires = 0, levels_until = 0, spent_out_at = -1,
    steps = 0, tiers = {},
  }
end

function M.read_state(raw)
  local last, offset, fence, epoch, born, paused_until, used, held, resting, first, newest, cohort, search,
    moved_at, expires, levels_until, spent_out_at, steps, sum, at = struct.unpack(STATE, raw)
  if sum ~= 1 + last + offset + fence + epoch + born + paused_until + used + held + resting + first + newest + cohort
    + search + moved_at + expires + levels_until + spent_out_at + steps
    or last % 1 + offset % 1 + fence % 1 + epoch % 1 + born % 1 + paused_until % 1 + used % 1 + held % 1 + resting % 1
    + first % 1 + newest % 1 + cohort % 1 + search % 1 + moved_at % 1 + expires % 1 + levels_until % 1
    + spent_out_at % 1 + steps % 1 ~= 0 then
    M.corrupt('state')
  end
  local tiers, in_tiers = {}, 0
  while at <= #raw do
    tiers[#tiers + 1], at = struct.unpack('<I4', raw, at)
    in_tiers = in_tiers + tiers[#tiers]
  end
  if in_tiers ~= held then
    M.corrupt('tiers')
  end
  return {
    last = last, offset = offset, fence = fence, epoch = epoch, born = born, paused_until = paused_until, used = used,
    held = held, resting = resting, first = first, newest = newest, cohort = cohort, search = search,
    moved_at = moved_at, expires = expires, levels_until = levels_until, spent_out_at = spent_out_at, steps = steps,
    tiers = tiers,
  }
end

function M.written_state()
  local S = M.S
  local last, offset, fence, epoch, born, paused_until, used, held, resting, first, newest, cohort, search, moved_at, expires,
    levels_until, spent_out_at, steps, tiers =
    S.last, S.offset, S.fence, S.epoch, S.born, S.paused_until, S.used, S.held, S.resting, S.first, S.newest, S.cohort, S.search,
    S.moved_at, S.expires, S.levels_until, S.spent_out_at, S.steps, S.tiers
  return struct.pack(#tiers == 1 and ONE_TIER or STATE .. string.rep('I4', #tiers), last, offset, fence, epoch, born,
    paused_until, used, held, resting, first, newest, cohort, search, moved_at, expires, levels_until, spent_out_at, steps,
    1 + last + offset + fence + epoch + born + paused_until + used + held + resting + first + newest + cohort + search
    + moved_at + expires + levels_until + spent_out_at + steps, unpack(tiers))
end

-- The policy, by name: what it says of concurrency, its classes and rules, the fields of the levels, and of those without a
-- scope.
--
-- A rule is { key, algorithm, limit, interval, burst, n, d, name, scope }; a class is { name, ppm }.
--
function M.policy_of(parts)
  local revision, ttl, safe_start, fixed, adaptive, classes, rules = unpack(parts, 1, 7)
  local fields, levels = {}, {}
  for index, rule in ipairs(rules) do
    fields[index] = 'r:' .. rule[1]
    if not rule[9] then
      levels[#levels + 1] = fields[index]
    end
  end
  return {
    revision = revision, ttl = ttl, safe_start = safe_start, fixed = fixed, adaptive = adaptive, classes = classes,
    rules = rules, leased = fixed ~= false or adaptive ~= false, fields = fields, levels = levels,
  }
end

function M.read_policy(blob)
  return M.known_policy(blob, M.policy_of)
end

-- The number of a class, from 1; jobs without one are the last. Nil where the policy has no such class.
function M.tier_of(policy, class)
  if not class then
    return #policy.classes + 1
  end
  for at, known in ipairs(policy.classes) do
    if known[1] == class then
      return at
    end
  end
  return nil
end

function M.tier_or_last(class)
  return M.tier_of(M.P, class) or #M.P.classes + 1
end

function M.forget_all()
  M.fields, M.changed, M.cohorts, M.chunks = {}, {}, {}, {}
  M.fields.v, M.fields.s, M.fields.d, M.fields.p, M.fields.l, M.fields.q, M.fields.w, M.fields.z, M.fields.m0 =
    false, false, false, false, false, false, false, false, false
  M.ask('DEL', M.key)
  local offset = M.S.offset
  M.S, M.P, M.L = M.no_state(M.S.last, M.S.fence), false, false
  M.S.offset = offset
end

function M.paused_ms()
  local left = M.S.paused_until - M.now
  return left > 0 and left or 0
end

-- The epoch, begun where there is none.
function M.live()
  if M.S.epoch == 0 then
    M.S.fence = math.max(M.S.fence + 1, M.now_us)
    M.S.epoch = M.S.fence
    M.S.born = M.from_now
    M.put('v', LAYOUT)
  end
end

-- What a library knows of the last few ids: what it read or wrote, as it is in memory, with the bytes of that. They are read
-- anew by each step, and where they are the same, what they say is not read again. A step takes out what is known of its id,
-- and puts it back when all is written, so one that fails leaves nothing behind.
--
-- Of an id that is: S and `s`, P and `d`, L and `l`, chunk and `m0`; levels by rule and `ends`, cohorts by number, each with its
-- `raw`; `cohorts`, the field of the cohort that a slot was last put in, which is no more than a guess of what to read;
-- `first_ends`, when the first cohort ends; `highs` and `lows`, the number of the last answer by its key; and `taken`.
M.known, M.known_ids = {}, 0

local MOST_KNOWN <const> = 64
-- How many bytes of levels are known of an id at most.
local LONGEST_KNOWN <const> = 16384

M.wanted = { 'v', 's', 'd', 'm0', 'q', 'w' }

-- Notes what else is to be read at once: the slots that are released, with their cohorts as far as these are known, and levels.
-- Says how many fields are read then.
function M.want(known, releases, acquires)
  local wanted, count = M.wanted, 6
  -- The last three are read when they are asked for; the policy is known by its digest.
  if not known or known.S.resting > 0 then
    count, wanted[7], wanted[8], wanted[9] = 9, 'l', 'p', 'z'
  elseif known.L then
    count, wanted[7] = 7, 'l'
  end
  if releases and #releases <= 320 then
    for at = 1, #releases, 40 do
      local slot = struct.unpack('<d', releases, at)
      if slot >= 0 then
        count = count + 1
        wanted[count] = M.names[slot] or M.name_of(slot)
        local cohort = known and known.cohorts[slot]
        if cohort then
          count = count + 1
          wanted[count] = cohort
        end
      end
    end
  end
  if known and acquires then
    local levels = known.P.levels
    for at = 1, #levels do
      wanted[count + at] = levels[at]
    end
    count = count + #levels
  end
  return count
end

-- Reads the state. M.fields has fields as they are, M.changed those that are to be written.
function M.load_state(releases, acquires)
  local key = M.key
  local known = M.known[key]
  if known and known.taken then
    M.known[key], M.known_ids, known = nil, M.known_ids - 1, nil
  elseif known then
    known.taken = true
  end
  M.now_known = known or false
  local wanted, count = M.wanted, M.want(known, releases, acquires)
  local values = M.heard(redis.pcall('HMGET', key, unpack(wanted, 1, count)))
  local v, s, d = values[1], values[2], values[3]
  -- With room for those that follow.
  local fields = { v = v, s = s, d = d, m0 = values[4], q = values[5], w = values[6], l = nil, p = nil, z = nil }
  for at = 7, count do
    fields[wanted[at]] = values[at]
  end
  M.fields = fields
  local p = fields.p
  if p == nil and not (s and known.d == d) then
    p = M.get('p')
  end
  local layout = v and tonumber(v)
  if layout and layout > LAYOUT then
    error({ layout = layout })
  end
  -- When the first cohort ends, where that is known of the state as it was read.
  M.first_ends = false
  if s then
    if not layout then
      M.corrupt('layout')
    end
    if known and known.s == s then
      M.S, M.first, M.first_ends = known.S, known.S.first, known.first_ends
    else
      if known then
        known.highs, known.lows, known.drivers = {}, {}, 0
      end
      local S = M.read_state(s)
      if S.held < S.resting or S.epoch < 1 then
        M.corrupt('state')
      end
      M.S = S
    end
    if known and known.chunk and fields.m0 and known.m0 == fields.m0 then
      M.chunks[0], M.has_chunks = known.chunk, true
    end
  elseif layout or p then
    M.corrupt('state')
  else
    M.now_known = false
    M.S = M.no_state(0, 0)
  end
  if p == nil then
    M.P = known.P
  elseif not p ~= not d then
    M.corrupt('policy')
  else
    M.P = p and M.read_policy(p)
  end
end

-- The limit as it is known; nil where that was written otherwise.
function M.known_limit(raw)
  local known = M.now_known
  return known and known.l == raw and known.L or nil
end

-- Notes what is known of the id, once all is written: of each part what was written of it last, and nothing that was changed
-- but not written.
function M.keep()
  local S, fields, chunk = M.S, M.fields, M.chunks[0]
  if S.epoch == 0 or not M.P then
    return
  end
  local known = M.now_known
  if not known then
    known = { cohorts = {}, ends = {}, ends_kept = 0, levels = {}, highs = {}, lows = {}, drivers = 0 }
    if M.known_ids >= MOST_KNOWN then
      M.known, M.known_ids = {}, 0
    end
    if not M.known[M.key] then
      M.known_ids = M.known_ids + 1
    end
    M.known[M.key], M.now_known = known, known
  end
  known.first_ends = S.first ~= 0 and S.first == M.first and M.first_ends
  known.s, known.S, known.d, known.P = fields.s, S, fields.d, M.P
  if M.L then
    M.L.changed = false
  end
  known.l, known.L = fields.l, M.L
  if chunk then
    chunk.changed = false
  end
  known.m0, known.chunk = fields.m0, chunk
  if next(M.own) then
    local levels, left = M.own, LONGEST_KNOWN
    for index, level in next, levels do
      if level.changed and #level.raw <= left then
        left = left - #level.raw
      else
        levels[index] = nil
      end
      level.changed = false
    end
    known.levels = levels
  end
  known.taken = false
end

-- Keeps the key as long as its pin, its levels and its pause.
function M.keep_alive()
  local S = M.S
  local until_ms = math.max(M.now + PIN_TTL, S.levels_until, S.paused_until)
  if S.expires < until_ms then
    S.expires = until_ms + DAY
    return M.lives(S.expires - M.now + DAY)
  end
  return nil
end

-- Writes what was changed.
function M.write(frees)
  if M.S.epoch == 0 then
    return
  end
  local ttl = M.keep_alive()
  if M.L and M.L.changed then
    M.put('l', M.written_limit())
  end
  M.S.steps = M.S.steps + 1
  M.put('s', M.written_state())
  M.write_fields(frees, ttl)
end

function M.limit_now()
  local P = M.P
  if not P then
    return nil
  end
  return P.adaptive and M.L.value or P.fixed or nil
end

-- An answer: 0, the head that every one carries, and what else is said. Its values stand one after another, since a table
-- costs more than what it holds.
function M.answer(...)
  local S, P, limit = M.S, M.P, M.limit_now()
  if not P then
    return cmsgpack.pack(0, S.epoch, M.now_us, -1, 0, -1, M.paused_ms(), -1, -1, M.stepped_back, ...)
  end
  return cmsgpack.pack(0, S.epoch, M.now_us, limit or -1, limit and S.moved_at or 0, S.held, M.paused_ms(), P.revision, P.ttl,
    M.stepped_back, ...)
end

function M.tell_limit()
  M.tell_all(string.format('limit %.0f %.0f', M.limit_now(), M.S.moved_at))
end

-- Notes a limit that is no longer what it was, later than any move that anyone can know of.
function M.limit_moved(before)
  if M.limit_now() ~= before then
    M.S.moved_at = math.max(M.now_us, M.S.moved_at + 1)
    M.tell_limit()
  end
end

-- What is left of the time that a safe start waits.
function M.safe_start_left()
  return M.P and M.P.safe_start and math.max(0, M.S.born + M.P.ttl - M.now) or 0
end
