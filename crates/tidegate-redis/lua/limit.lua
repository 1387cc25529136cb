-- LIMIT: a limit of concurrency that moves. The same decisions as `limit.rs`, in the same order.
--
-- L is the limit with the evidence for its next move; -1 stands for a moment that never was.

local read_limit, seed_limit, tally, demand, success, throttled, set_limit, carry_limit

do
  local LIMIT = '<ddddddddddddd'
  local ADDITIVE, SLOW_START = 0, 1
  -- Clean windows that lift a probe after a decrease, those after which it has rested, and the most that its step doubles.
  local LIFTS, RESTED, DOUBLINGS = 2, 26, 20

  -- Damage is known by it.
  local function sum_of(limit)
    return 1 + limit.value + limit.since + limit.demand + limit.throttle + limit.decrease + limit.tally_since
      + limit.releases + limit.throttled + limit.releases_before + limit.throttled_before + limit.doubled + limit.good
      + limit.top + limit.windows
  end

  -- What the numbers have beside whole ones: nothing.
  local function parts_of(limit)
    return limit.value % 1 + limit.since % 1 + limit.demand % 1 + limit.throttle % 1 + limit.decrease % 1
      + limit.tally_since % 1 + limit.releases % 1 + limit.throttled % 1 + limit.releases_before % 1
      + limit.throttled_before % 1 + limit.doubled % 1 + limit.good % 1 + limit.top % 1 + limit.windows % 1
  end

  written_limit = function()
    return pack(LIMIT, L.value, L.since, L.demand, L.throttle, L.decrease, L.tally_since, L.releases, L.throttled,
      L.releases_before, L.throttled_before, L.doubled, L.good, L.top) .. pack('<dd', L.windows, sum_of(L))
  end

  function read_limit(raw)
    local limit = { changed = false }
    limit.value, limit.since, limit.demand, limit.throttle, limit.decrease, limit.tally_since, limit.releases,
      limit.throttled, limit.releases_before, limit.throttled_before, limit.doubled, limit.good, limit.top =
      unpack_struct(LIMIT, raw)
    local sum
    limit.windows, sum = unpack_struct('<dd', raw, 105)
    if sum ~= sum_of(limit) or parts_of(limit) ~= 0 then
      corrupt('limit')
    end
    return limit
  end

  local function clamp(adaptive, value)
    return max(min(value, adaptive[2]), adaptive[1])
  end

  -- The growth begins: `doubled` is the limit before the last doubling, 0 for none, -1 when the slow start is over.
  local function start_course(growth)
    L.doubled = growth == ADDITIVE and -1 or 0
    L.good, L.top, L.windows = 0, 0, 0
  end

  function seed_limit(adaptive, initial)
    L = {
      value = clamp(adaptive, initial), since = now, demand = -1, throttle = -1, decrease = -1, tally_since = now,
      releases = 0, throttled = 0, releases_before = 0, throttled_before = 0, changed = true,
    }
    start_course(adaptive[9])
  end

  -- Whether a moment lies in (now - span, now].
  local function within(moment, span)
    return moment >= 0 and now - moment < span
  end

  local function increased(adaptive, value)
    return min(value + adaptive[4], adaptive[2])
  end

  local function decreased(adaptive, value)
    return max(floor(adaptive[3] * value / 1000000), adaptive[1])
  end

  -- The limit after a clean window of a slow start.
  local function slow_start_clean(adaptive, value)
    if L.doubled < 0 then
      return increased(adaptive, value)
    end
    local next = min(value * 2, adaptive[2])
    if next > value then
      L.doubled = value
    end
    return next
  end

  local function slow_start_throttled(adaptive, value)
    local before = L.doubled
    L.doubled = -1
    if before > 0 and before < value then
      return max(before, adaptive[1])
    end
    return decreased(adaptive, value)
  end

  local function clean(adaptive, value)
    local growth = adaptive[9]
    if growth == ADDITIVE then
      return increased(adaptive, value)
    elseif growth == SLOW_START then
      return slow_start_clean(adaptive, value)
    end
    L.good = max(L.good, value)
    if L.doubled >= 0 then
      return slow_start_clean(adaptive, value)
    end
    local next
    if L.windows == 0 then
      next = L.top - floor(max(0, L.top - value) / 8)
    elseif L.windows == 1 then
      next = L.top
    elseif L.windows < RESTED then
      next = value
    else
      next = value + min(value, 2 ^ min(L.windows - RESTED, DOUBLINGS))
    end
    L.windows = min(L.windows + 1, RESTED + DOUBLINGS)
    return min(max(next, value), adaptive[2])
  end

  local function throttled_to(adaptive, value)
    local growth = adaptive[9]
    if growth == ADDITIVE then
      return decreased(adaptive, value)
    end
    local next = slow_start_throttled(adaptive, value)
    if growth ~= SLOW_START and next < value then
      L.top = (L.good > 0 and L.good < value) and L.good or value - 1
      L.good, L.windows = 0, 0
    end
    return next
  end

  -- Counts a release in the running one of two buckets of one window each.
  function tally(adaptive)
    if adaptive[7] == 0 then
      return
    end
    local windows = floor(max(0, now - L.tally_since) / adaptive[5])
    if windows > 0 then
      L.releases_before = windows == 1 and L.releases or 0
      L.throttled_before = windows == 1 and L.throttled or 0
      L.releases, L.throttled = 0, 0
      L.tally_since = L.tally_since + windows * adaptive[5]
    end
    L.releases = min(L.releases + 1, 4294967295)
    L.changed = true
  end

  function demand()
    L.demand = now
    L.changed = true
  end

  function success(adaptive)
    tally(adaptive)
    local window = adaptive[5]
    if within(L.since, window) or not within(L.demand, window) or within(L.throttle, window) then
      return
    end
    L.value = clean(adaptive, L.value)
    L.since = now
    L.changed = true
  end

  function throttled(adaptive)
    tally(adaptive)
    if adaptive[7] > 0 then
      L.throttled = min(L.throttled + 1, 4294967295)
      local share = (L.throttled + L.throttled_before) * 1000000
      if share <= adaptive[7] * (L.releases + L.releases_before) then
        return
      end
    end
    L.throttle = now
    L.changed = true
    if within(L.decrease, adaptive[6]) then
      return
    end
    local next = throttled_to(adaptive, L.value)
    if next >= L.value then
      return
    end
    L.value, L.since, L.decrease = next, now, now
    L.throttled, L.throttled_before = 0, 0
  end

  -- Sets the limit by hand, or from what was known before it was lost: a slow start ends, a probe rests.
  function set_limit(adaptive, value)
    L.value, L.since, L.changed = clamp(adaptive, value), now, true
    if adaptive[9] ~= ADDITIVE then
      L.doubled = -1
      if adaptive[9] ~= SLOW_START then
        L.good, L.top, L.windows = 0, 0, LIFTS
      end
    end
  end

  -- Takes the limit from one revision to the next.
  function carry_limit(from, to)
    local value = clamp(to, L.value)
    if from[9] ~= to[9] then
      start_course(to[9])
      L.since = now
    end
    if value ~= L.value then
      L.value, L.since = value, now
    end
    L.changed = true
  end
end
