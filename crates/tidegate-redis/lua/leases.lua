-- LEASES: slots that are held until a moment. The same decisions as `lease.rs`.
--
-- A lease is the field of its slot: fence, epoch, when it was granted, the cohort that it ends with (-1: it rests), tier,
-- owner. A free slot keeps the fence that was given for it last. Leases that end at one moment are a cohort: `c` with when
-- that is, how many are left, the cohorts before and after it, and `k` with the slots that ever were in it.

local cohorts, joined, CHUNK, RESTING, cohort, cohort_slots, lease_at, keep_lease, keep_cohorts, fetch_leases,
  grant, take_up, release, renew, evict, sweep_leases, next_end, room

do
  local LEASE = '<ddddB'
  -- The last number is the sum of those before it and 1: what was damaged is known by it.
  local COHORT = '<ddddd'
  CHUNK = 1024
  local MOST_LEASES = 1000000

  cohorts, joined = {}, {}

  function cohort(number)
    local it = cohorts[number]
    if not it then
      local raw = get('c' .. number)
      if not raw then
        corrupt('cohort')
      end
      it = {}
      local sum
      it.ends, it.count, it.earlier, it.later, sum = unpack_struct(COHORT, raw)
      if sum ~= 1 + it.ends + it.count + it.earlier + it.later
        or it.ends % 1 + it.count % 1 + it.earlier % 1 + it.later % 1 ~= 0 then
        corrupt('cohort')
      end
      cohorts[number] = it
    end
    return it
  end

  -- Joins the cohort that ends at `ends`: behind all that end no later.
  local function join(slot, ends)
    local number = joined[ends]
    if not number then
      S.cohort = S.cohort + 1
      number = S.cohort
      local earlier = S.newest
      while earlier ~= 0 and cohort(earlier).ends > ends do
        earlier = cohort(earlier).earlier
      end
      local later
      if earlier == 0 then
        later = S.first
        S.first = number
      else
        later = cohort(earlier).later
        cohort(earlier).later = number
        cohort(earlier).changed = true
      end
      if later == 0 then
        S.newest = number
      else
        cohort(later).earlier = number
        cohort(later).changed = true
      end
      cohorts[number] = { ends = ends, count = 0, earlier = earlier, later = later, slots = {} }
      joined[ends] = number
    end
    local it = cohorts[number]
    it.count = it.count + 1
    it.changed = true
    it.slots[#it.slots + 1] = pack('<I4', slot)
    return number
  end

  local function leave(number)
    local it = cohort(number)
    it.count = it.count - 1
    it.changed = true
    if it.count > 0 then
      return
    end
    if it.earlier == 0 then
      S.first = it.later
    else
      local earlier = cohort(it.earlier)
      earlier.later, earlier.changed = it.later, true
    end
    if it.later == 0 then
      S.newest = it.earlier
    else
      local later = cohort(it.later)
      later.earlier, later.changed = it.earlier, true
    end
    it.over = true
    if joined[it.ends] == number then
      joined[it.ends] = nil
    end
  end

  function keep_cohorts()
    for number, it in pairs(cohorts) do
      if it.over then
        put('c' .. number, false)
        put('k' .. number, false)
      elseif it.changed then
        put('c' .. number, pack(COHORT, it.ends, it.count, it.earlier, it.later,
          1 + it.ends + it.count + it.earlier + it.later))
        if it.slots then
          put('k' .. number, table.concat(it.slots))
        end
      end
    end
  end

  -- The bits of taken slots, 8,192 in a field. Where there are leases, there is one.
  local function chunk_at(index)
    local bits = get('m' .. index)
    if not bits then
      if index == 0 and S.held > 0 then
        corrupt('slots')
      end
      return ''
    end
    return bits
  end

  local function lowest_free()
    while true do
      local bits = chunk_at(S.search)
      local at = string.find(bits, '[^\255]')
      if at then
        local byte = string.byte(bits, at)
        local slot = (S.search * CHUNK + at - 1) * 8
        while byte % 2 == 1 do
          byte = (byte - 1) / 2
          slot = slot + 1
        end
        return slot
      elseif #bits < CHUNK then
        return (S.search * CHUNK + #bits) * 8
      end
      S.search = S.search + 1
    end
  end

  local function mark(slot, taken)
    local index = floor(slot / (8 * CHUNK))
    local at = floor(slot / 8) % CHUNK + 1
    local bits = chunk_at(index)
    if #bits < at then
      bits = bits .. string.rep('\0', at - #bits)
    end
    local bit = 2 ^ (slot % 8)
    local byte = string.byte(bits, at) + (taken and bit or -bit)
    if byte < 0 or byte > 255 then
      corrupt('slots')
    end
    put('m' .. index, sub(bits, 1, at - 1) .. string.char(byte) .. sub(bits, at + 1))
    if not taken then
      S.search = min(S.search, index)
    end
  end

  function lease_at(slot)
    local raw = get(slot)
    if not raw or #raw == 8 then
      return nil
    end
    local fence, epoch, granted, number, tier, from = unpack_struct(LEASE, raw)
    return { slot = slot, fence = fence, epoch = epoch, granted = granted, cohort = number, tier = tier,
      owner = sub(raw, from) }
  end

  function keep_lease(lease)
    put(lease.slot, pack(LEASE, lease.fence, lease.epoch, lease.granted, lease.cohort, lease.tier) .. lease.owner)
  end

  local function occupy(slot, fence, epoch, tier, owner)
    put(slot, pack(LEASE, fence, epoch, now, join(slot, now + P.ttl), tier) .. owner)
    mark(slot, true)
    S.tiers[tier] = S.tiers[tier] + 1
    S.held = S.held + 1
  end

  -- Takes the lowest free slot.
  function grant(tier, owner)
    local slot = lowest_free()
    S.fence = max(S.fence + 1, now_us)
    occupy(slot, S.fence, S.epoch, tier, owner)
    return slot
  end

  -- Takes a lease of an earlier epoch up again, iff its slot is free and no higher fence was given for it.
  function take_up(slot, fence, epoch, tier, owner)
    if slot < 0 or slot >= MOST_LEASES or fence >= EXACT then
      return false
    end
    local raw = get(slot)
    if raw and (#raw ~= 8 or unpack_struct('<d', raw) > fence) then
      return false
    end
    S.fence = max(S.fence, fence)
    occupy(slot, fence, epoch, tier, owner)
    return true
  end

  RESTING = 24

  -- Puts a slot behind all that rest no longer than it.
  local function rest(slot, ends)
    local all = get('z') or ''
    local low, high = 0, #all / RESTING
    while low < high do
      local middle = floor((low + high) / 2)
      if unpack_struct('<d', all, middle * RESTING + 1) <= ends then
        low = middle + 1
      else
        high = middle
      end
    end
    put('z', sub(all, 1, low * RESTING) .. pack('<ddd', ends, slot, 1 + ends + slot)
      .. sub(all, low * RESTING + 1))
    S.resting = S.resting + 1
  end

  local function end_rest(slot)
    local all = get('z') or ''
    for from = 1, #all, RESTING do
      local _, resting_slot = unpack_struct('<dd', all, from)
      if resting_slot == slot then
        local left = sub(all, 1, from - 1) .. sub(all, from + RESTING)
        put('z', left ~= '' and left)
        S.resting = S.resting - 1
        return
      end
    end
    corrupt('resting')
  end

  local function free(lease)
    if lease.cohort < 0 then
      end_rest(lease.slot)
    else
      leave(lease.cohort)
    end
    put(lease.slot, pack('<d', lease.fence))
    mark(lease.slot, false)
    S.tiers[lease.tier] = (S.tiers[lease.tier] or corrupt('tiers')) - 1
    S.held = S.held - 1
    if S.held < 0 or S.tiers[lease.tier] < 0 then
      corrupt('held')
    end
  end

  -- The live lease of a token; nil where there is none.
  local function find(slot, fence, epoch)
    if slot < 0 then
      return nil
    end
    local lease = lease_at(slot)
    if lease and lease.fence == fence and lease.epoch == epoch and lease.cohort >= 0
      and cohort(lease.cohort).ends > now then
      return lease
    end
    return nil
  end

  -- Reads the leases of slots, and their cohorts, at once.
  function fetch_leases(slots)
    fetch(slots)
    local names = {}
    for _, slot in ipairs(slots) do
      local raw = fields[slot]
      if raw and #raw > 8 then
        local _, _, _, number = unpack_struct('<dddd', raw)
        if number >= 0 and not cohorts[number] then
          names[#names + 1] = 'c' .. number
        end
      end
    end
    fetch(names)
  end

  function release(slot, fence, epoch, rest_ms)
    local lease = find(slot, fence, epoch)
    if not lease then
      return false
    end
    if rest_ms == 0 then
      free(lease)
    else
      leave(lease.cohort)
      lease.cohort = -1
      keep_lease(lease)
      rest(slot, now + rest_ms)
    end
    return true
  end

  function renew(slot, fence, epoch)
    local lease = find(slot, fence, epoch)
    if not lease then
      return false
    end
    local ends = now + P.ttl
    if ends > cohort(lease.cohort).ends then
      leave(lease.cohort)
      lease.cohort = join(slot, ends)
      keep_lease(lease)
    end
    return true
  end

  function evict(slot, fence, epoch)
    local lease = lease_at(slot)
    if not lease or lease.fence ~= fence or lease.epoch ~= epoch then
      return false
    end
    free(lease)
    return true
  end

  function cohort_slots(number)
    -- One of this step is not written yet.
    local fresh = cohorts[number] and cohorts[number].slots
    local raw = fresh and table.concat(fresh) or get('k' .. number)
    if not raw then
      corrupt('cohort')
    end
    local slots = {}
    for from = 1, #raw, 4 do
      slots[#slots + 1] = unpack_struct('<I4', raw, from)
    end
    return slots
  end

  local SWEPT = 1000

  -- Frees a bounded number of slots whose time has passed.
  function sweep_leases()
    local swept = 0
    while swept < SWEPT do
      local first = S.first ~= 0 and cohort(S.first)
      if first and first.ends <= now then
        local number = S.first
        local slots = cohort_slots(number)
        fetch(slots)
        for _, slot in ipairs(slots) do
          local lease = lease_at(slot)
          if lease and lease.cohort == number then
            if swept == SWEPT then
              return
            end
            free(lease)
            swept = swept + 1
          end
        end
        if S.first == number then
          corrupt('leases')
        end
      else
        local all = S.resting > 0 and (get('z') or corrupt('resting'))
        if not all then
          return
        end
        local ends, slot, sum = unpack_struct('<ddd', all)
        if sum ~= 1 + ends + slot or ends % 1 + slot % 1 ~= 0 or #all % RESTING ~= 0 then
          corrupt('resting')
        end
        if ends > now then
          return
        end
        local lease = lease_at(slot)
        if not lease or lease.cohort >= 0 then
          corrupt('resting')
        end
        free(lease)
        swept = swept + 1
      end
    end
  end

  -- When the next slot could come free by itself; nil where none is taken.
  function next_end()
    local ends = S.first ~= 0 and cohort(S.first).ends or nil
    if S.resting > 0 then
      local resting = unpack_struct('<d', get('z') or corrupt('resting'))
      ends = ends and min(ends, resting) or resting
    end
    return ends
  end

  -- How many more leases of a tier may be taken, with `extra` of each tier counted as taken.
  function room(tier, extra)
    local limit = limit_now()
    local classes = P.classes
    local own, held, reserved, unused = 0, 0, 0, 0
    for at = 1, #classes + 1 do
      local leases = S.tiers[at] + (extra and extra[at] or 0)
      held = held + leases
      if at == tier then
        own = leases
      elseif classes[at] and classes[at][2] > 0 then
        local slice = ceil(classes[at][2] * limit / 1000000)
        reserved = reserved + slice
        unused = unused + max(0, slice - leases)
      end
    end
    if reserved >= limit then
      return own == 0 and held < limit and 1 or 0
    end
    return max(0, limit - held - unused)
  end
end
