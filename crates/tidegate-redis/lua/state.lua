-- STATE: what is kept of an id, read once, changed in memory, and written at the end.
--
-- Nothing is written before everything is decided, so a step that fails has changed nothing.

local LAYOUT = 1
local PIN_TTL = 2592000000
local DAY = 86400000
local EXACT = 9007199254740992
local LAST = EXACT - 1
local BEHIND_US = 1000000

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack_struct, sub = struct.pack, struct.unpack, string.sub

local key = KEYS[1]

-- Asks the server; a refusal ends the step.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    error({ refused = answer.err })
  end
  return answer
end

local function corrupt(what)
  error({ corrupt = what })
end

-- Fields as they are (false: absent), and those that are to be written.
local fields, changed = {}, {}

local function get(field)
  local value = fields[field]
  if value == nil then
    value = ask('HGET', key, field)
    fields[field] = value
  end
  return value
end

-- Reads many fields at once.
local function fetch(names)
  local wanted = {}
  for _, name in ipairs(names) do
    if fields[name] == nil then
      wanted[#wanted + 1] = name
    end
  end
  for from = 1, #wanted, 4000 do
    local to = min(from + 3999, #wanted)
    local values = ask('HMGET', key, unpack(wanted, from, to))
    for at = from, to do
      fields[wanted[at]] = values[at - from + 1]
    end
  end
end

local function put(field, value)
  fields[field] = value
  changed[field] = value
end

local written_limit

-- The state proper: S.epoch is 0 where there is none. P is the pinned policy, false where there is none.
local S, P, L
-- The moment in microseconds of the store's clock, in milliseconds of the id's own, and how far that was set back.
--
-- Moments are kept in milliseconds of the id's own time: that of the store, plus `offset`, which grows when the store's
-- clock is set back. So what was kept never has to be moved.
local now_us, now, stepped_back

-- The last number is the sum of those before it and 1: what was damaged is known by it, or by a number that is not whole.
local STATE = '<dddddddddddddddddd'

local function no_state(last, fence)
  return {
    last = last, offset = 0, fence = fence, epoch = 0, born = 0, paused_until = 0, used = 0, held = 0, resting = 0,
    first = 0, newest = 0, cohort = 0, search = 0, moved_at = 0, expires = 0, levels_until = 0, spent_out_at = -1, tiers = {},
  }
end

local function read_state(raw)
  local last, offset, fence, epoch, born, paused_until, used, held, resting, first, newest, cohort, search,
    moved_at, expires, levels_until, spent_out_at, sum, at = unpack_struct(STATE, raw)
  if sum ~= 1 + last + offset + fence + epoch + born + paused_until + used + held + resting + first + newest + cohort
    + search + moved_at + expires + levels_until + spent_out_at
    or last % 1 + offset % 1 + fence % 1 + epoch % 1 + born % 1 + paused_until % 1 + used % 1 + held % 1 + resting % 1
    + first % 1 + newest % 1 + cohort % 1 + search % 1 + moved_at % 1 + expires % 1 + levels_until % 1
    + spent_out_at % 1 ~= 0 then
    corrupt('state')
  end
  local tiers, in_tiers = {}, 0
  while at <= #raw do
    tiers[#tiers + 1], at = unpack_struct('<I4', raw, at)
    in_tiers = in_tiers + tiers[#tiers]
  end
  if in_tiers ~= held then
    corrupt('tiers')
  end
  return {
    last = last, offset = offset, fence = fence, epoch = epoch, born = born, paused_until = paused_until, used = used,
    held = held, resting = resting, first = first, newest = newest, cohort = cohort, search = search,
    moved_at = moved_at, expires = expires, levels_until = levels_until, spent_out_at = spent_out_at, tiers = tiers,
  }
end

local function written_state()
  local tiers = {}
  for at, count in ipairs(S.tiers) do
    tiers[at] = pack('<I4', count)
  end
  return pack(STATE, S.last, S.offset, S.fence, S.epoch, S.born, S.paused_until, S.used, S.held, S.resting, S.first,
    S.newest, S.cohort, S.search, S.moved_at, S.expires, S.levels_until, S.spent_out_at,
    1 + S.last + S.offset + S.fence + S.epoch + S.born + S.paused_until + S.used + S.held + S.resting + S.first + S.newest
    + S.cohort + S.search + S.moved_at + S.expires + S.levels_until + S.spent_out_at) .. table.concat(tiers)
end

-- The policy, by name: what it says of concurrency, its classes and rules.
--
-- A rule is { key, algorithm, limit, interval, burst, n, d, name, scope }; a class is { name, ppm }.
local function read_policy(blob)
  local revision, ttl, safe_start, fixed, adaptive, classes, rules = unpack(cmsgpack.unpack(blob), 1, 7)
  return {
    revision = revision, ttl = ttl, safe_start = safe_start, fixed = fixed, adaptive = adaptive, classes = classes,
    rules = rules, leased = fixed ~= false or adaptive ~= false,
  }
end

-- The number of a class, from 1; jobs without one are the last. Nil where the policy has no such class.
local function tier_of(policy, class)
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

local function tier_or_last(class)
  return tier_of(P, class) or #P.classes + 1
end

local function forget_all()
  fields, changed = {}, {}
  fields.v, fields.s, fields.d, fields.p, fields.l, fields.q, fields.w, fields.z =
    false, false, false, false, false, false, false, false
  ask('DEL', key)
  local offset = S.offset
  S, P, L = no_state(S.last, S.fence), false, false
  S.offset = offset
end

local function paused_ms()
  return max(0, S.paused_until - now)
end

-- The epoch, begun where there is none.
local function live()
  if S.epoch == 0 then
    S.fence = max(S.fence + 1, now_us)
    S.epoch = S.fence
    S.born = now
    put('v', LAYOUT)
  end
end

local function load_state()
  fields, changed = {}, {}
  local names = { 'v', 's', 'd', 'p', 'l', 'q', 'w', 'z' }
  local values = ask('HMGET', key, unpack(names))
  for at, name in ipairs(names) do
    fields[name] = values[at]
  end
  local layout = fields.v and tonumber(fields.v)
  if layout and layout > LAYOUT then
    error({ layout = layout })
  end
  if fields.s then
    if not layout then
      corrupt('layout')
    end
    S = read_state(fields.s)
    if S.held < S.resting or S.epoch < 1 then
      corrupt('state')
    end
  elseif layout or fields.p then
    corrupt('state')
  else
    S = no_state(0, 0)
  end
  P = fields.p and read_policy(fields.p)
  if not P and fields.d or P and not fields.d then
    corrupt('policy')
  end
end

-- Settles what now is.
local function settle_clock()
  local given = min(clock(), LAST)
  stepped_back = 0
  if S.last - given > BEHIND_US then
    stepped_back = ceil((S.last - given) / 1000)
    S.offset = S.offset + stepped_back
    S.last = given
  else
    S.last = max(S.last, given)
  end
  now_us = S.last
  now = floor(now_us / 1000) + S.offset
end

-- Keeps the key as long as its pin, its levels and its pause.
local function keep_alive()
  local until_ms = max(now + PIN_TTL, S.levels_until, S.paused_until)
  if S.expires < until_ms then
    S.expires = until_ms + DAY
    return lives(S.expires - now + DAY)
  end
  return nil
end

-- Writes what was changed. Where `frees` only gives back or keeps what is there, a full server does it all the same: it
-- refuses a script at its first write alone, and only one that takes memory.
local function write(frees)
  if S.epoch == 0 then
    return
  end
  local ttl = keep_alive()
  if L and L.changed then
    put('l', written_limit())
  end
  put('s', written_state())
  local set, del = {}, {}
  for field, value in pairs(changed) do
    if value then
      set[#set + 1] = field
      set[#set + 1] = value
    else
      del[#del + 1] = field
    end
  end
  changed = {}
  if frees then
    ask('HDEL', key, 'x')
  end
  for from = 1, #set, 4000 do
    ask('HSET', key, unpack(set, from, min(from + 3999, #set)))
  end
  for from = 1, #del, 4000 do
    ask('HDEL', key, unpack(del, from, min(from + 3999, #del)))
  end
  if ttl then
    ask('PEXPIRE', key, string.format('%.0f', ttl))
  end
end

local function limit_now()
  if not P then
    return nil
  end
  if P.adaptive then
    return L.value
  end
  return P.fixed or nil
end

-- What every answer carries.
local function head()
  local limit = limit_now()
  return {
    S.epoch, now_us, limit or -1, limit and S.moved_at or 0, P and S.held or -1, paused_ms(), P and P.revision or -1,
    P and P.ttl or -1, stepped_back,
  }
end
