-- RULES: the levels of rate rules. The same decisions as `rule.rs` and its three algorithms.
--
-- A level is { used, x, at, spent, rested, seen_at, seen_mark, log }: of a bucket, what it lacks of full, what has come of
-- the next token in parts of 1/d, and up to when; of a fixed window, its count and in `at` when it started (-1: it has
-- not); of a sliding window, its sum and in `log` its entries, oldest first, 24 bytes each: first moment, last, sum.

local TOKEN_BUCKET <const> = 0
local FIXED_WINDOW <const> = 1
-- The last number is the sum of those before it and 1: what was damaged is known by it.
local LEVEL <const> = '<dddddddd'
local ENTRY <const> = 24
local CROWDED <const> = 512
local PART <const> = 512

function M.read_level(raw, from)
  local used, x, at, spent, rested, seen_at, seen_mark, sum, rest = struct.unpack(LEVEL, raw, from)
  local log = string.sub(raw, rest)
  if sum ~= 1 + used + x + at + spent + rested + seen_at + seen_mark or #log % ENTRY ~= 0
    or used % 1 + x % 1 + at % 1 + spent % 1 + rested % 1 + seen_at % 1 + seen_mark % 1 ~= 0 then
    M.corrupt('level')
  end
  return {
    used = used, x = x, at = at, spent = spent, rested = rested, seen_at = seen_at, seen_mark = seen_mark, log = log,
  }
end

function M.written_level(level)
  local used, x, at, spent, rested, seen_at, seen_mark =
    level.used, level.x, level.at, level.spent, level.rested, level.seen_at, level.seen_mark
  local packed = struct.pack(LEVEL, used, x, at, spent, rested, seen_at, seen_mark,
    1 + used + x + at + spent + rested + seen_at + seen_mark)
  return level.log == '' and packed or packed .. level.log
end

-- The entry that begins at `from`: its first moment, its last, and its sum.
function M.entry(log, from)
  local first, last, sum = struct.unpack('<ddd', log, from)
  if not (first <= last and last <= M.now and sum >= 0) or first % 1 + last % 1 + sum % 1 ~= 0 then
    M.corrupt('level')
  end
  return first, last, sum
end

-- The time until so many more tokens have come.
function M.comes_in(rule, level, tokens)
  local n, d = rule[6], rule[7]
  local rest = tokens % n
  local whole = (tokens - rest) / n * d
  if rest == 0 then
    return math.max(0, whole - math.floor(level.x / n))
  end
  return whole + math.floor((math.max(0, rest * d - level.x) + n - 1) / n)
end

-- The moment from which a level rests if nothing else happens.
function M.rests_at(rule, level)
  local algorithm = rule[2]
  if algorithm == TOKEN_BUCKET then
    return level.at + M.comes_in(rule, level, level.used)
  elseif algorithm == FIXED_WINDOW then
    return level.at >= 0 and level.at + rule[4] or 0
  elseif level.log == '' then
    return 0
  end
  local _, last = M.entry(level.log, #level.log - ENTRY + 1)
  return last + rule[4]
end

-- Lets time pass until `at`.
function M.advance_to(rule, level, at)
  local algorithm = rule[2]
  local rests
  if algorithm == TOKEN_BUCKET then
    if at > level.at then
      local n, d = rule[6], rule[7]
      local elapsed = at - level.at
      local turns = math.floor(elapsed / d)
      if level.used == 0 or turns > math.floor(level.used / n) then
        level.used, level.x, level.at = 0, 0, at
      else
        local parts = level.x + (elapsed - turns * d) * n
        local tokens = math.floor(parts / d)
        local used = level.used - turns * n - tokens
        if used <= 0 then
          level.used, level.x, level.at = 0, 0, at
        else
          level.used, level.x, level.at = used, parts - tokens * d, at
        end
      end
    end
    rests = level.used == 0
  elseif algorithm == FIXED_WINDOW then
    if at >= M.rests_at(rule, level) then
      level.used, level.at = 0, -1
    end
    rests = level.at < 0
  else
    local gone = 0
    while gone < #level.log do
      local _, last, sum = M.entry(level.log, gone + 1)
      if at < last + rule[4] then
        break
      end
      level.used = math.max(0, level.used - sum)
      gone = gone + ENTRY
    end
    if gone > 0 then
      level.log = string.sub(level.log, gone + 1)
    end
    rests = level.log == ''
    if rests and level.used ~= 0 then
      M.corrupt('level')
    end
  end
  if rests then
    level.spent, level.seen_at, level.seen_mark = 0, -1, 0
    level.rested = math.max(level.rested, at)
  end
  return rests
end

function M.resting(rule, at)
  return {
    used = 0, x = 0, at = rule[2] == FIXED_WINDOW and -1 or at, spent = 0, rested = at, seen_at = -1, seen_mark = 0,
    log = '',
  }
end

function M.frees_in(rule, level, amount)
  local algorithm = rule[2]
  if algorithm == TOKEN_BUCKET then
    return M.comes_in(rule, level, amount)
  elseif algorithm == FIXED_WINDOW then
    return math.max(0, M.rests_at(rule, level) - M.now)
  end
  local freed, leaves = 0, 0
  for from = 1, #level.log, ENTRY do
    local _, last, sum = M.entry(level.log, from)
    freed, leaves = freed + sum, last + rule[4]
    if freed >= amount then
      break
    end
  end
  return math.max(0, leaves - M.now)
end

-- Uses `amount` more, above 0, at `at`.
function M.add(rule, level, at, amount)
  local algorithm = rule[2]
  level.used = level.used + amount
  if algorithm == TOKEN_BUCKET then
    return
  elseif algorithm == FIXED_WINDOW then
    if level.at < 0 then
      level.at = at
    end
    return
  end
  local log = level.log
  if log ~= '' then
    local back = #log - ENTRY + 1
    local first, last, sum = M.entry(log, back)
    local crowded = #log >= CROWDED * ENTRY
    if last >= at or crowded and at - first <= math.floor(rule[4] / PART) then
      -- The log without its last entry, as it was made the last time: a long string is slow to make.
      local head = level.head_of == log and level.head or string.sub(log, 1, back - 1)
      log = head .. struct.pack('<ddd', first, math.max(last, at), sum + amount)
      level.log, level.head, level.head_of = log, head, log
      return
    end
  end
  local longer = log .. struct.pack('<ddd', at, at, amount)
  level.log, level.head, level.head_of = longer, log, longer
end

-- Gives back `amount` of what was used at `granted`, as far as it still counts.
function M.give_back(rule, level, granted, amount)
  local algorithm = rule[2]
  if algorithm == TOKEN_BUCKET then
    level.used = math.max(0, level.used - amount)
    if level.used == 0 then
      level.x = 0
    end
  elseif algorithm == FIXED_WINDOW then
    if level.at >= 0 and level.at <= granted then
      level.used = math.max(0, level.used - amount)
    end
  else
    local log = level.log
    local low, high = 0, #log / ENTRY
    while low < high do
      local middle = math.floor((low + high) / 2)
      local _, last = M.entry(log, middle * ENTRY + 1)
      if last < granted then
        low = middle + 1
      else
        high = middle
      end
    end
    if low >= #log / ENTRY then
      return
    end
    local first, last, sum = M.entry(log, low * ENTRY + 1)
    if first > granted then
      return
    end
    local given = math.min(amount, sum)
    level.used = math.max(0, level.used - given)
    local kept = sum > given and struct.pack('<ddd', first, last, sum - given) or ''
    level.log = string.sub(log, 1, low * ENTRY) .. kept .. string.sub(log, (low + 1) * ENTRY + 1)
  end
end

-- The level that a lost one must be taken for where nothing may be admitted twice.
function M.spent_out(rule, born)
  local level = M.resting(rule, born)
  M.add(rule, level, born, rule[5])
  return level
end

-- The level of a rule or an identity that nothing is kept of.
function M.initial_level(rule)
  if M.S.spent_out_at >= 0 then
    return M.spent_out(rule, M.S.spent_out_at)
  end
  return M.resting(rule, M.now)
end

-- The hint where a job of this cost does not fit now; nil where it does.
function M.does_not_fit(rule, level, cost)
  M.advance_to(rule, level, M.now)
  local too_much = level.used + cost - rule[5]
  if cost == 0 or too_much <= 0 then
    return nil
  end
  return math.min(math.max(M.frees_in(rule, level, too_much), 1), EXACT - 1)
end

-- Spends the cost of a job that fits.
function M.spend(rule, level, cost)
  M.advance_to(rule, level, M.now)
  if cost == 0 then
    return false
  end
  M.add(rule, level, M.now, cost)
  local spent = level.spent + cost
  level.spent = spent < EXACT and spent or cost
  return true
end

-- Corrects the cost of a job; says how much was cut because the debt would be too deep.
function M.settle(rule, level, granted, cost, actual)
  M.advance_to(rule, level, M.now)
  local more, less = math.max(0, actual - cost), math.max(0, cost - actual)
  local debited = math.min(more, math.max(0, rule[5] * 11 - level.used))
  if debited > 0 then
    M.add(rule, level, M.now, debited)
  end
  if less > 0 then
    M.give_back(rule, level, granted, less)
  end
  return more - debited
end

-- Lowers what is left to what the server says; says whether that lowered it, and whether it was taken note of.
function M.observe(rule, level, remaining, reset, granted, mark)
  M.advance_to(rule, level, M.now)
  granted = math.min(granted, M.now)
  local newer = level.seen_at > granted or level.seen_at == granted and level.seen_mark > mark
  if M.now >= reset or newer then
    return false, false
  end
  level.seen_at, level.seen_mark = granted, mark
  local forgotten = granted < level.rested or mark > level.spent
  local since = forgotten and level.spent or level.spent - mark
  local used = math.max(0, rule[5] - math.max(0, remaining - since))
  local lowered = used - level.used
  if lowered <= 0 then
    return false, true
  end
  M.add(rule, level, M.now, lowered)
  if rule[2] == TOKEN_BUCKET then
    level.x = 0
  end
  return true, true
end

function M.carries_over(from, to)
  return from[2] == to[2] and from[4] == to[4]
end

-- The level under the rule of a newer revision, which came at `at`.
function M.carry_level(level, from, to, at)
  if M.advance_to(from, level, at) or not M.carries_over(from, to) then
    return M.resting(to, at)
  end
  if to[2] == TOKEN_BUCKET then
    level.used = math.min(math.max(0, level.used + to[5] - from[5]), to[5] * 11)
    if level.used == 0 or from[7] ~= to[7] then
      level.x = 0
    end
  end
  return level
end

function M.own_level(index)
  local level = M.own[index]
  if level then
    return level
  end
  local P, known = M.P, M.now_known
  local raw = M.get(P.fields[index])
  if raw then
    -- As it is known, where it was not written otherwise since.
    level = known and known.levels[index]
    if not level or level.raw ~= raw then
      level = M.read_level(raw, 1)
    end
  else
    level = M.initial_level(P.rules[index])
  end
  M.own[index] = level
  return level
end

-- The rule of an index as it was in the revisions since: { number, moment, rule }, the current one last.
function M.generations(rule)
  local raw = M.get('g:' .. rule[1])
  if not raw then
    M.corrupt('generations')
  end
  return cmsgpack.unpack(raw)
end

-- The level of an identity, by the place of its key. What was kept in a state that was lost is not looked at.
function M.identity_level(index, place)
  local level = M.identities[place]
  if level then
    return level
  end
  local rule = M.P.rules[index]
  local raw = M.ask('GET', KEYS[place])
  if raw then
    local epoch, number, from = struct.unpack('<dd', raw)
    local all = epoch == M.S.epoch and M.generations(rule) or {}
    for at = #all, 1, -1 do
      if all[at][1] == number then
        level = M.read_level(raw, from)
        for later = at + 1, #all do
          level = M.carry_level(level, all[later - 1][3], all[later][3], all[later][2])
        end
        break
      end
    end
  end
  local is_kept = level ~= nil
  level = level or M.initial_level(rule)
  level.rule, level.is_kept = rule, is_kept
  M.identities[place] = level
  return level
end

-- Puts the levels that were changed with what is to be written.
function M.keep_levels()
  local P, S, fields, changed = M.P, M.S, M.fields, M.changed
  for index, level in next, M.own do
    if level.changed then
      local field, raw, rests_at = P.fields[index], M.written_level(level), M.rests_at(P.rules[index], level)
      level.raw, fields[field], changed[field] = raw, raw, raw
      if S.levels_until < rests_at then
        S.levels_until = rests_at
      end
    end
  end
end

-- Writes the levels of identities that were changed. One that rests is not kept.
function M.write_identities()
  for place, level in pairs(M.identities) do
    if level.changed then
      local rest = M.rests_at(level.rule, level)
      if rest <= M.now then
        M.ask('DEL', KEYS[place])
      else
        local all = M.generations(level.rule)
        local raw = struct.pack('<dd', M.S.epoch, all[#all][1]) .. M.written_level(level)
        M.ask('SET', KEYS[place], raw, 'PX', string.format('%.0f', M.lives(rest - M.now + 2000)))
      end
    end
  end
end

-- Before the state is written: how long identities keep it alive.
function M.note_identities()
  for _, level in pairs(M.identities) do
    if level.changed then
      M.S.levels_until = math.max(M.S.levels_until, M.rests_at(level.rule, level))
    end
  end
end

-- Lets time pass for the levels of all rules, and puts what was ever spent of each behind `from`.
function M.mark_levels(marks, from)
  local rules, now = M.P.rules, M.now
  for index = 1, #rules do
    local level = M.own_level(index)
    M.advance_to(rules[index], level, now)
    marks[from + index] = level.spent
  end
end

-- The longest hint of the rules that deny a job, with the number of that rule; nil where it fits. Its costs by rule stand in
-- `costs` behind `from`; so they do for the others.
function M.rate_denial(costs, from)
  local longest, by
  for index, rule in ipairs(M.P.rules) do
    local hint = M.does_not_fit(rule, M.own_level(index), costs[from + index])
    if hint and (not longest or hint > longest) then
      longest, by = hint, index
    end
  end
  return longest and { longest, 0, by }
end

-- How many of `count` jobs of these costs fit in the rules at once, whose levels were marked.
function M.fitting(costs, from, count)
  local rules, own = M.P.rules, M.own
  for index = 1, #rules do
    local cost = costs[from + index]
    if cost > 0 then
      local left = rules[index][5] - own[index].used
      if left < cost * count then
        count = left > 0 and (left - left % cost) / cost or 0
      end
    end
  end
  return count
end

-- Spends so many jobs of these costs, which fit in the levels that were marked.
function M.spend_all(costs, from, count)
  local rules, own, now = M.P.rules, M.own, M.now
  for index = 1, #rules do
    local rule, level, cost = rules[index], own[index], costs[from + index]
    if cost > 0 then
      local spent = level.spent + cost * count
      if spent < EXACT then
        M.add(rule, level, now, cost * count)
        level.spent = spent
      else
        for _ = 1, count do
          M.spend(rule, level, cost)
        end
      end
      level.changed = true
    end
  end
end
