-- LEASES, what is rarer: renewing, resting, taking up again, and sweeping what is over.

local RESTING <const> = 24
local SWEPT <const> = 1000

-- Takes a lease of an earlier epoch up again, iff its slot is free and no higher fence was given for it.
function M.take_up(slot, fence, epoch, tier, owner)
  if slot < 0 or slot >= MOST_LEASES or fence >= EXACT then
    return false
  end
  local raw = M.get(M.name_of(slot))
  if raw and (#raw ~= 8 or struct.unpack('<d', raw) > fence) then
    return false
  end
  M.S.fence = math.max(M.S.fence, fence)
  M.occupy(slot, fence, epoch, tier, owner)
  return true
end

-- Puts a slot behind all that rest no longer than it.
function M.rest(slot, ends)
  local all = M.get('z') or ''
  local low, high = 0, #all / RESTING
  while low < high do
    local middle = math.floor((low + high) / 2)
    if struct.unpack('<d', all, middle * RESTING + 1) <= ends then
      low = middle + 1
    else
      high = middle
    end
  end
  M.put('z', string.sub(all, 1, low * RESTING) .. struct.pack('<ddd', ends, slot, 1 + ends + slot)
    .. string.sub(all, low * RESTING + 1))
  M.S.resting = M.S.resting + 1
end

function M.end_rest(slot)
  local all = M.get('z') or ''
  for from = 1, #all, RESTING do
    local _, resting_slot = struct.unpack('<dd', all, from)
    if resting_slot == slot then
      local left = string.sub(all, 1, from - 1) .. string.sub(all, from + RESTING)
      M.put('z', left ~= '' and left)
      M.S.resting = M.S.resting - 1
      return
    end
  end
  M.corrupt('resting')
end

function M.renew(slot, fence, epoch)
  local lease = M.find(slot, fence, epoch)
  if not lease then
    return false
  end
  local ends = M.from_now + M.P.ttl
  if ends > M.cohort(lease.cohort).ends then
    M.leave(lease.cohort)
    lease.cohort = M.enter(M.name_of(slot), ends)
    M.keep_lease(lease)
  end
  return true
end

function M.evict(slot, fence, epoch)
  local lease = M.lease_at(slot)
  if not lease or lease.fence ~= fence or lease.epoch ~= epoch then
    return false
  end
  M.free(lease)
  return true
end

function M.cohort_slots(number)
  -- One of this step is not written yet.
  local fresh = M.cohorts[number] and M.cohorts[number].slots
  local raw = fresh and table.concat(fresh, ' ') or M.get('k' .. number)
  if not raw then
    M.corrupt('cohort')
  end
  local slots = {}
  for name in string.gmatch(raw, '[^ ]+') do
    slots[#slots + 1] = tonumber(name) or M.corrupt('cohort')
  end
  return slots
end

-- Frees a bounded number of slots whose time has passed.
function M.sweep_leases()
  local swept = 0
  while swept < SWEPT do
    local first = M.S.first ~= 0 and M.cohort(M.S.first)
    if first and first.ends <= M.now then
      local number = M.S.first
      local slots = M.cohort_slots(number)
      M.fetch_leases(slots)
      for _, slot in ipairs(slots) do
        local lease = M.lease_at(slot)
        if lease and lease.cohort == number then
          if swept == SWEPT then
            return
          end
          M.free(lease)
          swept = swept + 1
        end
      end
      if M.S.first == number then
        M.corrupt('leases')
      end
    else
      local all = M.S.resting > 0 and (M.get('z') or M.corrupt('resting'))
      if not all then
        return
      end
      local ends, slot, sum = struct.unpack('<ddd', all)
      if sum ~= 1 + ends + slot or ends % 1 + slot % 1 ~= 0 or #all % RESTING ~= 0 then
        M.corrupt('resting')
      end
      if ends > M.now then
        return
      end
      local lease = M.lease_at(slot)
      if not lease or lease.cohort >= 0 then
        M.corrupt('resting')
      end
      M.free(lease)
      swept = swept + 1
    end
  end
end
