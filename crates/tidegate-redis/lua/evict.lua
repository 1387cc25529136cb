-- EVICT: ends a lease at once.
--
-- KEYS  1 the id    ARGV  1 { slot, fence, epoch } packed
-- reply { 0, head, whether it was there } packed

return step(function()
  begin()
  local slot, fence, epoch = unpack(cmsgpack.unpack(ARGV[1]))
  local there = P and slot >= 0 and evict(slot, fence, epoch)
  offer_room()
  finish(true)
  publish()
  return cmsgpack.pack({ 0, head(), there and 1 or 0 })
end)
