-- LEASES: slots that are held until a moment. The same decisions as `lease.rs`.
--
-- A lease is the field of its slot: fence, epoch, when it was granted, the cohort that it ends with (-1: it rests), tier,
-- owner. A free slot keeps the fence that was given for it last. Leases that end at one moment are a cohort: `c` with when
-- that is, how many are left, the cohorts before and after it, and `k` with the slots that ever were in it.

local LEASE <const> = '<ddddB'
-- The last number is the sum of those before it and 1: what was damaged is known by it.
local COHORT <const> = '<ddddd'
local CHUNK <const> = 1024
local MOST_LEASES <const> = 1000000
local NAMED <const> = 16384

-- Slots by their fields, written out once each: a number is slow to write. Those of a library live on, so not all are kept.
M.names = {}

function M.name_of(slot)
  local name = M.names[slot]
  if not name then
    name = string.format('%d', slot)
    if slot < NAMED then
      M.names[slot] = name
    end
  end
  return name
end

function M.cohort(number)
  local it = M.cohorts[number]
  if not it then
    local raw = M.get('c' .. number)
    if not raw then
      M.corrupt('cohort')
    end
    it = {}
    local sum
    it.ends, it.count, it.earlier, it.later, sum = struct.unpack(COHORT, raw)
    if sum ~= 1 + it.ends + it.count + it.earlier + it.later
      or it.ends % 1 + it.count % 1 + it.earlier % 1 + it.later % 1 ~= 0 then
      M.corrupt('cohort')
    end
    M.cohorts[number] = it
  end
  return it
end

-- Joins the cohort that ends at `ends`: behind all that end no later.
function M.join(slot, ends)
  local number = M.joined[ends]
  if not number then
    M.S.cohort = M.S.cohort + 1
    number = M.S.cohort
    local earlier = M.S.newest
    while earlier ~= 0 and M.cohort(earlier).ends > ends do
      earlier = M.cohort(earlier).earlier
    end
    local later
    if earlier == 0 then
      later = M.S.first
      M.S.first = number
    else
      later = M.cohort(earlier).later
      M.cohort(earlier).later = number
      M.cohort(earlier).changed = true
    end
    if later == 0 then
      M.S.newest = number
    else
      M.cohort(later).earlier = number
      M.cohort(later).changed = true
    end
    M.cohorts[number] = { ends = ends, count = 0, earlier = earlier, later = later, slots = {} }
    M.joined[ends] = number
  end
  local it = M.cohorts[number]
  it.count = it.count + 1
  it.changed = true
  it.slots[#it.slots + 1] = M.name_of(slot)
  return number
end

function M.leave(number)
  local it = M.cohort(number)
  it.count = it.count - 1
  it.changed = true
  if it.count > 0 then
    return
  end
  if it.earlier == 0 then
    M.S.first = it.later
  else
    local earlier = M.cohort(it.earlier)
    earlier.later, earlier.changed = it.later, true
  end
  if it.later == 0 then
    M.S.newest = it.earlier
  else
    local later = M.cohort(it.later)
    later.earlier, later.changed = it.earlier, true
  end
  it.over = true
  if M.joined[it.ends] == number then
    M.joined[it.ends] = nil
  end
end

function M.keep_cohorts()
  for number, it in pairs(M.cohorts) do
    if it.over then
      M.put('c' .. number, false)
      M.put('k' .. number, false)
    elseif it.changed then
      M.put('c' .. number, struct.pack(COHORT, it.ends, it.count, it.earlier, it.later,
        1 + it.ends + it.count + it.earlier + it.later))
      if it.slots then
        M.put('k' .. number, table.concat(it.slots, ' '))
      end
    end
  end
end

-- The bits of taken slots, 8,192 in a field, as the bytes that they are written in. Where there are leases, there is one.
function M.chunk(index)
  local bytes = M.chunks[index]
  if not bytes then
    local raw = M.get('m' .. index)
    if not raw and index == 0 and M.S.held > 0 or raw and #raw > CHUNK then
      M.corrupt('slots')
    end
    bytes = raw and { string.byte(raw, 1, -1) } or {}
    M.chunks[index] = bytes
  end
  return bytes
end

-- The lowest free slot. None that is lower than eight times `search` is free.
function M.lowest_free()
  local at = M.S.search
  while true do
    local byte = M.chunk(math.floor(at / CHUNK))[at % CHUNK + 1] or 0
    if byte < 255 then
      local slot = at * 8
      while byte % 2 == 1 do
        byte = (byte - 1) / 2
        slot = slot + 1
      end
      M.S.search = at
      return slot
    end
    at = at + 1
  end
end

function M.mark(slot, taken)
  local at = math.floor(slot / 8)
  local bytes = M.chunk(math.floor(at / CHUNK))
  local place = at % CHUNK + 1
  for missing = #bytes + 1, place do
    bytes[missing] = 0
  end
  local byte = bytes[place] + (taken and 1 or -1) * 2 ^ (slot % 8)
  if byte < 0 or byte > 255 then
    M.corrupt('slots')
  end
  bytes[place] = byte
  bytes.changed = true
  if not taken and at < M.S.search then
    M.S.search = at
  end
end

function M.keep_chunks()
  for index, bytes in pairs(M.chunks) do
    if bytes.changed then
      M.put('m' .. index, string.char(unpack(bytes)))
    end
  end
end

function M.lease_at(slot)
  local raw = M.get(M.name_of(slot))
  if not raw or #raw == 8 then
    return nil
  end
  local fence, epoch, granted, number, tier, from = struct.unpack(LEASE, raw)
  return { slot = slot, fence = fence, epoch = epoch, granted = granted, cohort = number, tier = tier,
    owner = string.sub(raw, from) }
end

function M.keep_lease(lease)
  local packed = struct.pack(LEASE, lease.fence, lease.epoch, lease.granted, lease.cohort, lease.tier)
  M.put(M.name_of(lease.slot), packed .. lease.owner)
end

function M.occupy(slot, fence, epoch, tier, owner)
  local number = M.join(slot, M.now + M.P.ttl)
  M.put(M.name_of(slot), struct.pack(LEASE, fence, epoch, M.now, number, tier) .. owner)
  M.mark(slot, true)
  M.S.tiers[tier] = M.S.tiers[tier] + 1
  M.S.held = M.S.held + 1
end

-- Takes the lowest free slot.
function M.grant(tier, owner)
  local slot = M.lowest_free()
  M.S.fence = math.max(M.S.fence + 1, M.now_us)
  M.occupy(slot, M.S.fence, M.S.epoch, tier, owner)
  return slot
end

local RESTING <const> = 24

function M.free(lease)
  if lease.cohort < 0 then
    M.end_rest(lease.slot)
  else
    M.leave(lease.cohort)
  end
  M.put(M.name_of(lease.slot), struct.pack('<d', lease.fence))
  M.mark(lease.slot, false)
  M.S.tiers[lease.tier] = (M.S.tiers[lease.tier] or M.corrupt('tiers')) - 1
  M.S.held = M.S.held - 1
  if M.S.held < 0 or M.S.tiers[lease.tier] < 0 then
    M.corrupt('held')
  end
end

-- The live lease of a token; nil where there is none.
function M.find(slot, fence, epoch)
  if slot < 0 then
    return nil
  end
  local lease = M.lease_at(slot)
  if lease and lease.fence == fence and lease.epoch == epoch and lease.cohort >= 0
    and M.cohort(lease.cohort).ends > M.now then
    return lease
  end
  return nil
end

-- Reads the leases of slots, and their cohorts, at once.
function M.fetch_leases(slots)
  local names = {}
  for at, slot in ipairs(slots) do
    names[at] = M.name_of(slot)
  end
  M.fetch(names)
  local cohorts, asked = {}, {}
  for _, name in ipairs(names) do
    local raw = M.fields[name]
    if raw and #raw > 8 then
      local number = struct.unpack('<d', raw, 25)
      if number >= 0 and not M.cohorts[number] and not asked[number] then
        asked[number] = true
        cohorts[#cohorts + 1] = 'c' .. number
      end
    end
  end
  M.fetch(cohorts)
end

function M.release(slot, fence, epoch, rest_ms)
  local lease = M.find(slot, fence, epoch)
  if not lease then
    return false
  end
  if rest_ms == 0 then
    M.free(lease)
  else
    M.leave(lease.cohort)
    lease.cohort = -1
    M.keep_lease(lease)
    M.rest(slot, M.now + rest_ms)
  end
  return true
end

local SWEPT <const> = 1000

-- When the next slot could come free by itself; nil where none is taken.
function M.next_end()
  local ends = M.S.first ~= 0 and M.cohort(M.S.first).ends or nil
  if M.S.resting > 0 then
    local resting = struct.unpack('<d', M.get('z') or M.corrupt('resting'))
    ends = ends and math.min(ends, resting) or resting
  end
  return ends
end

-- How many more leases of a tier may be taken, with `extra` of each tier counted as taken.
function M.room(tier, extra)
  local limit = M.limit_now()
  local classes = M.P.classes
  local own, held, reserved, unused = 0, 0, 0, 0
  for at = 1, #classes + 1 do
    local leases = M.S.tiers[at] + (extra and extra[at] or 0)
    held = held + leases
    if at == tier then
      own = leases
    elseif classes[at] and classes[at][2] > 0 then
      local slice = math.ceil(classes[at][2] * limit / 1000000)
      reserved = reserved + slice
      unused = unused + math.max(0, slice - leases)
    end
  end
  if reserved >= limit then
    return own == 0 and held < limit and 1 or 0
  end
  return math.max(0, limit - held - unused)
end
