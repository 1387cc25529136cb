-- LEASES PAGE: leases in the order of their slots.
--
-- KEYS  1 the id    ARGV  1 { the first slot, how many at most } packed
-- reply 0, head, leases, whether there are more, packed one after another; a lease is { slot, fence, epoch, owner, class or false, age,
--       what is left, whether it rests }

return M.step(function()
  M.begin()
  local from, most = unpack(cmsgpack.unpack(ARGV[1]))
  local slots, more = {}, false
  local at, taken = math.floor(from / 8), 0
  while M.P and not more and taken < M.S.held and at < MOST_LEASES / 8 do
    local byte = M.chunk(math.floor(at / CHUNK))[at % CHUNK + 1] or 0
    for bit = 0, byte > 0 and 7 or -1 do
      local slot = at * 8 + bit
      if math.floor(byte / 2 ^ bit) % 2 == 1 and slot >= from then
        more = more or #slots == most
        taken = taken + 1
        if not more then
          slots[#slots + 1] = slot
        end
      end
    end
    at = at + 1
  end
  M.fetch_leases(slots)
  local resting_until = {}
  local all = M.S.resting > 0 and M.get('z') or ''
  for at = 1, #all, RESTING do
    local ends, slot = struct.unpack('<dd', all, at)
    resting_until[slot] = ends
  end
  local page = {}
  for _, slot in ipairs(slots) do
    local lease = M.lease_at(slot) or M.corrupt('slots')
    local rests = lease.cohort < 0
    local ends = rests and (resting_until[slot] or M.corrupt('resting')) or not rests and M.cohort(lease.cohort).ends
    if not (M.is_whole(lease.fence, M.S.fence) and M.is_whole(lease.epoch, LAST) and M.is_whole(lease.granted, M.now)
      and M.is_whole(ends, LAST)) then
      M.corrupt('lease')
    end
    local class = M.P.classes[lease.tier] and M.P.classes[lease.tier][1] or false
    page[#page + 1] = { slot, lease.fence, lease.epoch, M.owner_of(lease), class, math.max(0, M.now - lease.granted),
      math.max(0, ends - M.from_now), rests and 1 or 0 }
  end
  M.finish(true)
  return M.answer(page, more and 1 or 0)
end)
