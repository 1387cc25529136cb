-- LIMIT: a limit of concurrency that moves. The same decisions as `limit.rs`, in the same order.
--
-- L is the limit with the evidence for its next move; -1 stands for a moment that never was.

local LIMIT <const> = '<ddddddddddddd'
local ADDITIVE <const> = 0
local SLOW_START <const> = 1
-- Clean windows that lift a probe after a decrease, those after which it has rested, and the most that its step doubles.
local LIFTS <const> = 2
local RESTED <const> = 26
local DOUBLINGS <const> = 20

-- Damage is known by it.
function M.sum_of(limit)
  return 1 + limit.value + limit.since + limit.demand + limit.throttle + limit.decrease + limit.tally_since
    + limit.releases + limit.throttled + limit.releases_before + limit.throttled_before + limit.doubled + limit.good
    + limit.top + limit.windows
end

-- What the numbers have beside whole ones: nothing.
function M.parts_of(limit)
  return limit.value % 1 + limit.since % 1 + limit.demand % 1 + limit.throttle % 1 + limit.decrease % 1
    + limit.tally_since % 1 + limit.releases % 1 + limit.throttled % 1 + limit.releases_before % 1
    + limit.throttled_before % 1 + limit.doubled % 1 + limit.good % 1 + limit.top % 1 + limit.windows % 1
end

function M.written_limit()
  return struct.pack(LIMIT, M.L.value, M.L.since, M.L.demand, M.L.throttle, M.L.decrease, M.L.tally_since, M.L.releases, M.L.throttled,
    M.L.releases_before, M.L.throttled_before, M.L.doubled, M.L.good, M.L.top) .. struct.pack('<dd', M.L.windows, M.sum_of(M.L))
end

function M.read_limit(raw)
  local limit = { changed = false }
  limit.value, limit.since, limit.demand, limit.throttle, limit.decrease, limit.tally_since, limit.releases,
    limit.throttled, limit.releases_before, limit.throttled_before, limit.doubled, limit.good, limit.top =
    struct.unpack(LIMIT, raw)
  local sum
  limit.windows, sum = struct.unpack('<dd', raw, 105)
  if sum ~= M.sum_of(limit) or M.parts_of(limit) ~= 0 then
    M.corrupt('limit')
  end
  return limit
end

function M.clamp(adaptive, value)
  return math.max(math.min(value, adaptive[2]), adaptive[1])
end

-- The growth begins: `doubled` is the limit before the last doubling, 0 for none, -1 when the slow start is over.
function M.start_course(growth)
  M.L.doubled = growth == ADDITIVE and -1 or 0
  M.L.good, M.L.top, M.L.windows = 0, 0, 0
end

function M.seed_limit(adaptive, initial)
  M.L = {
    value = M.clamp(adaptive, initial), since = M.now, demand = -1, throttle = -1, decrease = -1, tally_since = M.now,
    releases = 0, throttled = 0, releases_before = 0, throttled_before = 0, changed = true,
  }
  M.start_course(adaptive[9])
end

-- Whether a moment lies in (now - span, now].
function M.within(moment, span)
  return moment >= 0 and M.now - moment < span
end

function M.increased(adaptive, value)
  return math.min(value + adaptive[4], adaptive[2])
end

function M.decreased(adaptive, value)
  return math.max(math.floor(adaptive[3] * value / 1000000), adaptive[1])
end

-- The limit after a clean window of a slow start.
function M.slow_start_clean(adaptive, value)
  if M.L.doubled < 0 then
    return M.increased(adaptive, value)
  end
  local next = math.min(value * 2, adaptive[2])
  if next > value then
    M.L.doubled = value
  end
  return next
end

function M.slow_start_throttled(adaptive, value)
  local before = M.L.doubled
  M.L.doubled = -1
  if before > 0 and before < value then
    return math.max(before, adaptive[1])
  end
  return M.decreased(adaptive, value)
end

function M.clean(adaptive, value)
  local growth = adaptive[9]
  if growth == ADDITIVE then
    return M.increased(adaptive, value)
  elseif growth == SLOW_START then
    return M.slow_start_clean(adaptive, value)
  end
  M.L.good = math.max(M.L.good, value)
  if M.L.doubled >= 0 then
    return M.slow_start_clean(adaptive, value)
  end
  local next
  if M.L.windows == 0 then
    next = M.L.top - math.floor(math.max(0, M.L.top - value) / 8)
  elseif M.L.windows == 1 then
    next = M.L.top
  elseif M.L.windows < RESTED then
    next = value
  else
    next = value + math.min(value, 2 ^ math.min(M.L.windows - RESTED, DOUBLINGS))
  end
  M.L.windows = math.min(M.L.windows + 1, RESTED + DOUBLINGS)
  return math.min(math.max(next, value), adaptive[2])
end

function M.throttled_to(adaptive, value)
  local growth = adaptive[9]
  if growth == ADDITIVE then
    return M.decreased(adaptive, value)
  end
  local next = M.slow_start_throttled(adaptive, value)
  if growth ~= SLOW_START and next < value then
    M.L.top = (M.L.good > 0 and M.L.good < value) and M.L.good or value - 1
    M.L.good, M.L.windows = 0, 0
  end
  return next
end

-- Counts a release in the running one of two buckets of one window each.
function M.tally(adaptive)
  if adaptive[7] == 0 then
    return
  end
  local windows = math.floor(math.max(0, M.now - M.L.tally_since) / adaptive[5])
  if windows > 0 then
    M.L.releases_before = windows == 1 and M.L.releases or 0
    M.L.throttled_before = windows == 1 and M.L.throttled or 0
    M.L.releases, M.L.throttled = 0, 0
    M.L.tally_since = M.L.tally_since + windows * adaptive[5]
  end
  M.L.releases = math.min(M.L.releases + 1, 4294967295)
  M.L.changed = true
end

function M.demand()
  M.L.demand = M.now
  M.L.changed = true
end

function M.success(adaptive)
  M.tally(adaptive)
  local window = adaptive[5]
  if M.within(M.L.since, window) or not M.within(M.L.demand, window) or M.within(M.L.throttle, window) then
    return
  end
  M.L.value = M.clean(adaptive, M.L.value)
  M.L.since = M.now
  M.L.changed = true
end

function M.throttled(adaptive)
  M.tally(adaptive)
  if adaptive[7] > 0 then
    M.L.throttled = math.min(M.L.throttled + 1, 4294967295)
    local share = (M.L.throttled + M.L.throttled_before) * 1000000
    if share <= adaptive[7] * (M.L.releases + M.L.releases_before) then
      return
    end
  end
  M.L.throttle = M.now
  M.L.changed = true
  if M.within(M.L.decrease, adaptive[6]) then
    return
  end
  local next = M.throttled_to(adaptive, M.L.value)
  if next >= M.L.value then
    return
  end
  M.L.value, M.L.since, M.L.decrease = next, M.now, M.now
  M.L.throttled, M.L.throttled_before = 0, 0
end

-- Sets the limit by hand, or from what was known before it was lost: a slow start ends, a probe rests.
function M.set_limit(adaptive, value)
  M.L.value, M.L.since, M.L.changed = M.clamp(adaptive, value), M.now, true
  if adaptive[9] ~= ADDITIVE then
    M.L.doubled = -1
    if adaptive[9] ~= SLOW_START then
      M.L.good, M.L.top, M.L.windows = 0, 0, LIFTS
    end
  end
end

-- Takes the limit from one revision to the next.
function M.carry_limit(from, to)
  local value = M.clamp(to, M.L.value)
  if from[9] ~= to[9] then
    M.start_course(to[9])
    M.L.since = M.now
  end
  if value ~= M.L.value then
    M.L.value, M.L.since = value, M.now
  end
  M.L.changed = true
end
