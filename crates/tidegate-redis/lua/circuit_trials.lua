-- CIRCUIT: the permits of trial calls. The same decisions as `circuit/trials.rs`.
--
-- A permit is { driver, ask, fence, end }; all that are out have the present generation.

local PERMIT <const> = '<c16ddd'
local PERMIT_BYTES <const> = 40

-- Those that are out, in the order in which they were granted; what has lapsed is let go.
function C.trials()
  local S, all = M.S, C.permits
  if not all then
    all = {}
    local body = S.out > 0 and C.unsealed('t', M.get('t') or M.corrupt('trials')) or ''
    if #body ~= S.out * PERMIT_BYTES then
      M.corrupt('trials')
    end
    for at = 1, #body, PERMIT_BYTES do
      all[#all + 1] = { struct.unpack(PERMIT, body, at) }
    end
  end
  local live = {}
  for _, permit in ipairs(all) do
    if M.now < permit[4] then
      live[#live + 1] = permit
    end
  end
  C.permits = live
  return live
end

function C.keep_trials()
  local parts = {}
  for at, permit in ipairs(C.permits) do
    parts[at] = struct.pack(PERMIT, permit[1], permit[2], permit[3], permit[4])
  end
  if #parts > 0 then
    M.put('t', C.sealed('t', table.concat(parts)))
  elseif M.S.out > 0 then
    M.put('t', false)
  end
  M.S.out = #parts
end

-- The place of a permit among those that are out.
function C.place(driver, fence)
  for at, permit in ipairs(C.trials()) do
    if permit[1] == driver and permit[3] == fence then
      return at
    end
  end
  return nil
end

-- { 0, fence, generation, end } granted, { 1, hint } too early, { 2, attempt } unscheduled, { 3, hint } full, { 4 } not offered.
function C.try_half_open(driver, ask)
  local S, P = M.S, M.P
  if P.recovery ~= HALF_OPEN or S.attempt == 0 then
    return { 4 }
  end
  local out = C.trials()
  local first
  for _, permit in ipairs(out) do
    if permit[1] == driver and permit[2] == ask then
      return { 0, permit[3], S.generation, C.shown(permit[4]) }
    end
    first = math.min(first or permit[4], permit[4])
  end
  if S.next < 0 then
    return { 2, S.attempt }
  elseif M.now < S.next then
    return { 1, S.next - M.now }
  elseif #out + S.succeeded >= P.permits then
    return { 3, math.max((first or M.now) - M.now, 1) }
  end
  local permit = { driver, ask, C.next_fence(), M.now + P.permit_ttl }
  out[#out + 1] = permit
  return { 0, permit[3], S.generation, C.shown(permit[4]) }
end

function C.renew_trial(driver, fence)
  if M.P.recovery ~= HALF_OPEN or M.S.attempt == 0 then
    return -1
  end
  local at = C.place(driver, fence)
  if not at then
    return -1
  end
  local permit = C.permits[at]
  permit[4] = math.max(permit[4], M.now + M.P.permit_ttl)
  return C.shown(permit[4])
end

function C.give_back(driver, fence)
  local at = M.S.attempt > 0 and C.place(driver, fence)
  if at then
    table.remove(C.permits, at)
  end
  return at and 1 or 0
end

function C.half_open_result(driver, fence, failed)
  local S = M.S
  if M.P.recovery ~= HALF_OPEN or C.give_back(driver, fence) == 0 then
    return 0
  elseif failed then
    C.attempt_failed()
    return 1
  end
  S.succeeded = S.succeeded + 1
  if S.succeeded >= M.P.permits then
    return C.change(CLOSED, BY_TRIALS)
  end
  return 1
end
