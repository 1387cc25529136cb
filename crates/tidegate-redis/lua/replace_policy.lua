-- REPLACE POLICY: goes over to a policy of a higher revision.
--
-- KEYS  1 the id    ARGV  1 { policy, digest, revision } packed
-- reply { 0, head, the pinned revision where that is not lower, -1 where none is pinned, else false } packed

return step(function()
  begin()
  local offered = cmsgpack.unpack(ARGV[1])
  local why = false
  if not P then
    why = -1
  elseif offered[3] <= P.revision then
    why = P.revision
  else
    install(offered, nil)
    offer_room()
  end
  finish(false)
  publish()
  return cmsgpack.pack({ 0, head(), why })
end)
