-- REPLACE POLICY: goes over to a policy of a higher revision.
--
-- KEYS  1 the id    ARGV  1 { policy, digest, revision } packed
-- reply 0, head, the pinned revision where that is not lower, -1 where none is pinned, else false, packed one after another

return M.step(function()
  M.begin()
  local offered = cmsgpack.unpack(ARGV[1])
  local why = false
  if not M.P then
    why = -1
  elseif offered[3] <= M.P.revision then
    why = M.P.revision
  else
    M.install(offered, nil)
    M.offer_room()
  end
  M.finish(false)
  M.publish()
  return M.answer(why)
end)
