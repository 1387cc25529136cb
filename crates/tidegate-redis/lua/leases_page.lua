-- LEASES PAGE: leases in the order of their slots.
--
-- KEYS  1 the id    ARGV  1 { the first slot, how many at most } packed
-- reply { 0, head, leases, whether there are more } packed; a lease is { slot, fence, epoch, owner, class or false, age,
--       what is left, whether it rests }

return step(function()
  begin()
  local from, most = unpack(cmsgpack.unpack(ARGV[1]))
  local slots, index = {}, floor(from / (8 * CHUNK))
  local more = false
  while not more do
    local bits = P and get('m' .. index)
    if not bits then
      break
    end
    local at = string.find(bits, '%Z')
    while at and not more do
      local byte = string.byte(bits, at)
      for bit = 0, 7 do
        local slot = (index * CHUNK + at - 1) * 8 + bit
        if floor(byte / 2 ^ bit) % 2 == 1 and slot >= from then
          if #slots == most then
            more = true
            break
          end
          slots[#slots + 1] = slot
        end
      end
      at = string.find(bits, '%Z', at + 1)
    end
    index = index + 1
  end
  fetch_leases(slots)
  local resting_until = {}
  local all = S.resting > 0 and get('z') or ''
  for at = 1, #all, RESTING do
    local ends, slot = unpack_struct('<dd', all, at)
    resting_until[slot] = ends
  end
  local page = {}
  for _, slot in ipairs(slots) do
    local lease = lease_at(slot) or corrupt('slots')
    local parts = lease.fence % 1 + lease.epoch % 1 + lease.granted % 1
    if parts ~= 0 or lease.fence < 1 or lease.epoch < 1 or lease.fence > S.fence or lease.granted > now then
      corrupt('lease')
    end
    local rests = lease.cohort < 0
    local ends = rests and (resting_until[slot] or corrupt('resting')) or not rests and cohort(lease.cohort).ends
    local class = P.classes[lease.tier] and P.classes[lease.tier][1] or false
    page[#page + 1] = { slot, lease.fence, lease.epoch, lease.owner, class, max(0, now - lease.granted),
      max(0, ends - now), rests and 1 or 0 }
  end
  finish(true)
  return cmsgpack.pack({ 0, head(), page, more and 1 or 0 })
end)
