-- EVICT: ends a lease at once.
--
-- KEYS  1 the id    ARGV  1 { slot, fence, epoch } packed
-- reply 0, head, whether it was there, packed one after another

return M.step(function()
  M.begin()
  local slot, fence, epoch = unpack(cmsgpack.unpack(ARGV[1]))
  local there = M.P and slot >= 0 and M.evict(slot, fence, epoch)
  M.offer_room()
  M.finish(true)
  M.publish()
  return M.answer(there and 1 or 0)
end)
