-- LEASES: slots that are held until a moment. The same decisions as `lease.rs`.
--
-- A lease is the field of its slot: fence, epoch, when it was granted, the cohort that it ends with (-1: it rests), tier,
-- owner. A free slot keeps the fence that was given for it last. Leases that end at one moment are a cohort: `c` with when
-- that is, how many are left, the cohorts before and after it, and `k` with the slots that ever were in it.

local LEASE <const> = '<ddddB'
local OWNED <const> = '<ddddBc0'
local OWNER_FROM <const> = 34
-- The last number is the sum of those before it and 1: what was damaged is known by it.
local COHORT <const> = '<ddddd'
local CHUNK <const> = 128
local MOST_LEASES <const> = 1000000
local NAMED <const> = 16384
-- What a library knows of an id at most: cohorts, and the cohorts that the lowest slots are in.
local MOST_COHORTS <const> = 256
local GUESSED <const> = 1024

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

-- The cohorts that were looked at in this step, by their numbers, and the bits of slots.
M.cohorts, M.chunks, M.has_chunks, M.has_more_chunks = {}, {}, false, false

function M.cohort(number)
  local it = M.cohorts[number]
  if not it then
    local name = 'c' .. M.text_of(number)
    local raw = M.get(name)
    if not raw then
      M.corrupt('cohort')
    end
    it = M.now_known and M.now_known.ends[number]
    if not it or it.raw ~= raw then
      local ends, count, earlier, later, sum = struct.unpack(COHORT, raw)
      if sum ~= 1 + ends + count + earlier + later or ends % 1 + count % 1 + earlier % 1 + later % 1 ~= 0 then
        M.corrupt('cohort')
      end
      it = { name = name, raw = raw, ends = ends, count = count, earlier = earlier, later = later, slots = false, changed = false,
        over = false }
    end
    M.cohorts[number] = it
  end
  return it
end

-- The cohort that ends at `ends`, begun where there is none: behind all that end no later. It takes the number of one that
-- was left by all in this step, so that nothing has to be deleted.
function M.join(ends)
  if M.joined_ends == ends then
    return M.joined
  end
  local S, cohorts, number = M.S, M.cohorts, M.spare
  local it = number and cohorts[number]
  if it then
    M.spare, it.over = false, false
  else
    number = S.cohort + 1
    S.cohort = number
    it = {
      name = 'c' .. M.text_of(number), raw = false, over = false, ends = 0, count = 0, earlier = 0, later = 0, slots = false,
      changed = true,
    }
  end
  local earlier, later = S.newest, 0
  local before = earlier ~= 0 and M.cohort(earlier)
  while before and before.ends > ends do
    later, earlier = earlier, before.earlier
    before = earlier ~= 0 and M.cohort(earlier)
  end
  if before then
    before.later, before.changed = number, true
  else
    S.first = number
  end
  if later == 0 then
    S.newest = number
  else
    local behind = M.cohort(later)
    behind.earlier, behind.changed = number, true
  end
  it.ends, it.count, it.earlier, it.later, it.slots, it.changed = ends, 0, earlier, later, { nil }, true
  cohorts[number], M.joined_ends, M.joined = it, ends, number
  return number
end

-- Puts a slot, by its name, in the cohort that ends at `ends`.
function M.enter(name, ends)
  local number = M.join(ends)
  local it = M.cohorts[number]
  it.count, it.changed = it.count + 1, true
  it.slots[#it.slots + 1] = name
  return number
end

function M.leave(number)
  local it = M.cohorts[number] or M.cohort(number)
  local count = it.count - 1
  it.count, it.changed = count, true
  if count > 0 then
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
  M.spare = number
  if M.joined == number then
    M.joined_ends = false
  end
end

function M.keep_cohorts()
  local changed, cohorts, first, kept = M.changed, M.cohorts, M.S.first, 0
  local known = M.now_known
  local ends_known, count_known = known and known.ends, known and known.ends_kept
  for number, it in next, cohorts do
    if it.over then
      changed[it.name], changed['k' .. M.text_of(number)] = false, false
      if known and ends_known[number] then
        ends_known[number], count_known = nil, count_known - 1
      end
    else
      if it.changed then
        local ends, count, earlier, later = it.ends, it.count, it.earlier, it.later
        local raw, slots = struct.pack(COHORT, ends, count, earlier, later, 1 + ends + count + earlier + later), it.slots
        changed[it.name], it.raw, it.changed = raw, raw, false
        if slots then
          changed['k' .. M.text_of(number)] = #slots == 1 and slots[1] or table.concat(slots, ' ')
          it.slots = false
        end
      end
      if number == first then
        M.first, M.first_ends = number, it.ends
      end
      if known then
        count_known = ends_known[number] and count_known or count_known + 1
        ends_known[number] = it
      end
    end
    cohorts[number] = nil
    kept = kept + 1
  end
  if known then
    known.ends_kept = count_known
    if count_known > MOST_COHORTS then
      known.ends, known.ends_kept = {}, 0
    end
  end
  if kept > MOST_REUSED then
    M.cohorts = {}
  end
end

-- The bits of taken slots, 1,024 in a field, as the bytes that they are written in. Where there are leases, there is one.
function M.chunk(index)
  local bytes = M.chunks[index]
  if not bytes then
    local raw = M.get('m' .. index)
    if not raw and index == 0 and M.S.held > 0 or raw and #raw > CHUNK then
      M.corrupt('slots')
    end
    bytes = raw and { string.byte(raw, 1, -1) } or {}
    M.chunks[index], M.has_chunks = bytes, true
    M.has_more_chunks = M.has_more_chunks or index > 0
  end
  return bytes
end

function M.mark(slot, taken)
  local bit = slot % 8
  local at = (slot - bit) / 8
  local place = at % CHUNK + 1
  local index = (at - place + 1) / CHUNK
  local bytes = M.chunks[index] or M.chunk(index)
  local byte = bytes[place]
  if not byte then
    for missing = #bytes + 1, place do
      bytes[missing] = 0
    end
    byte = 0
  end
  byte = byte + (taken and 1 or -1) * 2 ^ bit
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
  for index, bytes in next, M.chunks do
    if bytes.changed then
      M.put('m' .. (index == 0 and '0' or index), string.char(unpack(bytes)))
    end
  end
end

function M.lease_at(slot)
  local raw = M.get(M.name_of(slot))
  if not raw or #raw == 8 then
    return nil
  end
  local fence, epoch, granted, number, tier = struct.unpack(LEASE, raw)
  return { slot = slot, fence = fence, epoch = epoch, granted = granted, cohort = number, tier = tier, raw = raw }
end

function M.keep_lease(lease)
  M.put(M.name_of(lease.slot),
    struct.pack(OWNED, lease.fence, lease.epoch, lease.granted, lease.cohort, lease.tier, M.owner_of(lease)))
end

function M.owner_of(lease)
  return string.sub(lease.raw, OWNER_FROM)
end

function M.occupy(slot, fence, epoch, tier, owner)
  local S, name = M.S, M.name_of(slot)
  local number = M.enter(name, M.from_now + M.P.ttl)
  M.put(name, struct.pack(OWNED, fence, epoch, M.now, number, tier, owner))
  M.mark(slot, true)
  S.tiers[tier] = S.tiers[tier] + 1
  S.held = S.held + 1
end

-- Takes so many of the lowest free slots, puts them in `slots`, and returns the first fence. No slot that is lower than eight
-- times `search` is free.
function M.grant_all(tier, owner, count, slots)
  local S, now = M.S, M.now
  local number = M.join(M.from_now + M.P.ttl)
  local it, fields, changed, names = M.cohorts[number], M.fields, M.changed, M.names
  local joined, fence, chunks = it.slots, S.fence + 1, M.chunks
  if fence < M.now_us then
    fence = M.now_us
  end
  local epoch, pack = S.epoch, struct.pack
  local at, taken, cohorts = S.search, 0, M.now_known and M.now_known.cohorts
  while taken < count do
    local place = at % CHUNK + 1
    local index = (at - place + 1) / CHUNK
    local bytes = chunks[index] or M.chunk(index)
    local byte = bytes[place] or 0
    if byte < 255 then
      for missing = #bytes + 1, place do
        bytes[missing] = 0
      end
      local left, slot, bit = byte, at * 8, 1
      while bit < 256 and taken < count do
        if left % 2 == 0 then
          local name = names[slot] or M.name_of(slot)
          local lease = pack(OWNED, fence + taken, epoch, now, number, tier, owner)
          fields[name], changed[name] = lease, lease
          if cohorts and slot < GUESSED then
            cohorts[slot] = it.name
          end
          taken = taken + 1
          joined[#joined + 1] = name
          slots[#slots + 1] = slot
          byte = byte + bit
          left = left + 1
        end
        left, slot, bit = (left - 1) / 2, slot + 1, bit * 2
      end
      bytes[place], bytes.changed = byte, true
    end
    if taken < count then
      at = at + 1
    end
  end
  S.search = at
  S.fence = fence + count - 1
  it.count, it.changed = it.count + count, true
  S.tiers[tier] = S.tiers[tier] + count
  S.held = S.held + count
  return fence
end

-- Takes the lowest free slot; returns it with its fence.
function M.grant(tier, owner)
  local slots = {}
  local fence = M.grant_all(tier, owner, 1, slots)
  return slots[1], fence
end

function M.free(lease)
  if lease.cohort < 0 then
    M.end_rest(lease.slot)
  else
    M.leave(lease.cohort)
  end
  M.put(M.name_of(lease.slot), struct.pack('<d', lease.fence))
  M.mark(lease.slot, false)
  M.count_free(lease.tier)
end

function M.count_free(tier)
  local S = M.S
  local in_tier = (S.tiers[tier] or M.corrupt('tiers')) - 1
  S.tiers[tier] = in_tier
  S.held = S.held - 1
  if S.held < 0 or in_tier < 0 then
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
  for at = 1, #slots do
    names[at] = M.name_of(slots[at])
  end
  M.fetch(names)
  local fields, cohorts, asked = M.fields, {}, {}
  for at = 1, #names do
    local raw = fields[names[at]]
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
  if rest_ms == 0 then
    return M.free_live(slot, fence, epoch)
  end
  local lease = M.find(slot, fence, epoch)
  if not lease then
    return false
  end
  M.leave(lease.cohort)
  lease.cohort = -1
  M.keep_lease(lease)
  M.rest(slot, M.now + rest_ms)
  return true
end

-- Finds a live lease and frees it, in one: what is done most often.
function M.free_live(slot, fence, epoch)
  if slot < 0 then
    return false
  end
  local name = M.names[slot] or M.name_of(slot)
  local raw = M.fields[name]
  if raw == nil then
    raw = M.get(name)
  end
  if not raw or #raw == 8 then
    return false
  end
  local its_fence, its_epoch, _, number, tier = struct.unpack(LEASE, raw)
  if its_fence ~= fence or its_epoch ~= epoch or number < 0 then
    return false
  end
  local it = M.cohorts[number] or M.cohort(number)
  if it.ends <= M.now then
    return false
  end
  M.leave(number)
  local free = string.sub(raw, 1, 8)
  M.fields[name], M.changed[name] = free, free
  M.mark(slot, false)
  M.count_free(tier)
  return true
end

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
