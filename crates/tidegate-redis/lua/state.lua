-- STATE: what is kept of an id, without its circuit.
--
-- S.epoch is 0 where there is none.

-- The state proper. The moment in microseconds of the store's clock, in milliseconds of the id's own, and how far that was set back.
--
-- Moments are kept in milliseconds of the id's own time: that of the store, plus `offset`, which grows when the store's
-- clock is set back. So what was kept never has to be moved.
-- The last number is the sum of those before it and 1: what was damaged is known by it, or by a number that is not whole.
local STATE <const> = '<dddddddddddddddddd'

function M.no_state(last, fence)
  return {
    last = last, offset = 0, fence = fence, epoch = 0, born = 0, paused_until = 0, used = 0, held = 0, resting = 0,
    first = 0, newest = 0, cohort = 0, search = 0, moved_at = 0, expires = 0, levels_until = 0, spent_out_at = -1, tiers = {},
  }
end

function M.read_state(raw)
  local last, offset, fence, epoch, born, paused_until, used, held, resting, first, newest, cohort, search,
    moved_at, expires, levels_until, spent_out_at, sum, at = struct.unpack(STATE, raw)
  if sum ~= 1 + last + offset + fence + epoch + born + paused_until + used + held + resting + first + newest + cohort
    + search + moved_at + expires + levels_until + spent_out_at
    or last % 1 + offset % 1 + fence % 1 + epoch % 1 + born % 1 + paused_until % 1 + used % 1 + held % 1 + resting % 1
    + first % 1 + newest % 1 + cohort % 1 + search % 1 + moved_at % 1 + expires % 1 + levels_until % 1
    + spent_out_at % 1 ~= 0 then
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
    moved_at = moved_at, expires = expires, levels_until = levels_until, spent_out_at = spent_out_at, tiers = tiers,
  }
end

function M.written_state()
  local S, tiers = M.S, {}
  for at, count in ipairs(S.tiers) do
    tiers[at] = struct.pack('<I4', count)
  end
  return struct.pack(STATE, S.last, S.offset, S.fence, S.epoch, S.born, S.paused_until, S.used, S.held, S.resting, S.first,
    S.newest, S.cohort, S.search, S.moved_at, S.expires, S.levels_until, S.spent_out_at,
    1 + S.last + S.offset + S.fence + S.epoch + S.born + S.paused_until + S.used + S.held + S.resting + S.first + S.newest
    + S.cohort + S.search + S.moved_at + S.expires + S.levels_until + S.spent_out_at) .. table.concat(tiers)
end

-- The policy, by name: what it says of concurrency, its classes and rules.
--
-- A rule is { key, algorithm, limit, interval, burst, n, d, name, scope }; a class is { name, ppm }.
--
function M.policy_of(parts)
  local revision, ttl, safe_start, fixed, adaptive, classes, rules = unpack(parts, 1, 7)
  return {
    revision = revision, ttl = ttl, safe_start = safe_start, fixed = fixed, adaptive = adaptive, classes = classes,
    rules = rules, leased = fixed ~= false or adaptive ~= false,
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
  M.fields, M.changed = {}, {}
  M.fields.v, M.fields.s, M.fields.d, M.fields.p, M.fields.l, M.fields.q, M.fields.w, M.fields.z =
    false, false, false, false, false, false, false, false
  M.ask('DEL', M.key)
  local offset = M.S.offset
  M.S, M.P, M.L = M.no_state(M.S.last, M.S.fence), false, false
  M.S.offset = offset
end

function M.paused_ms()
  return math.max(0, M.S.paused_until - M.now)
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

-- Reads the state. M.fields has fields as they are, M.changed those that are to be written.
function M.load_state()
  M.changed = {}
  local values = M.ask('HMGET', M.key, 'v', 's', 'd', 'p', 'l', 'q', 'w', 'z', 'm0')
  local fields = {
    v = values[1], s = values[2], d = values[3], p = values[4], l = values[5], q = values[6], w = values[7],
    z = values[8], m0 = values[9],
  }
  M.fields = fields
  local layout = fields.v and tonumber(fields.v)
  if layout and layout > LAYOUT then
    error({ layout = layout })
  end
  if fields.s then
    if not layout then
      M.corrupt('layout')
    end
    local S = M.read_state(fields.s)
    if S.held < S.resting or S.epoch < 1 then
      M.corrupt('state')
    end
    M.S = S
  elseif layout or fields.p then
    M.corrupt('state')
  else
    M.S = M.no_state(0, 0)
  end
  M.P = fields.p and M.read_policy(fields.p)
  if not M.P and fields.d or M.P and not fields.d then
    M.corrupt('policy')
  end
end

-- Keeps the key as long as its pin, its levels and its pause.
function M.keep_alive()
  local until_ms = math.max(M.now + PIN_TTL, M.S.levels_until, M.S.paused_until)
  if M.S.expires < until_ms then
    M.S.expires = until_ms + DAY
    return M.lives(M.S.expires - M.now + DAY)
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
  M.put('s', M.written_state())
  M.write_fields(frees, ttl)
end

function M.limit_now()
  if not M.P then
    return nil
  end
  if M.P.adaptive then
    return M.L.value
  end
  return M.P.fixed or nil
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
