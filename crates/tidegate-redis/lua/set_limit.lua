-- SET LIMIT: sets an adaptive limit, within the bounds of the policy.
--
-- KEYS  1 the id    ARGV  1 the limit
-- reply 0, head, why not, packed one after another: 0 it is set, 1 no policy is pinned, 2 the limit does not move, or { least, most }

return M.step(function()
  M.begin()
  local value = tonumber(ARGV[1])
  local why = 0
  if not M.P then
    why = 1
  elseif not M.P.adaptive then
    why = 2
  elseif value < M.P.adaptive[1] or value > M.P.adaptive[2] then
    why = { M.P.adaptive[1], M.P.adaptive[2] }
  else
    local before = M.L.value
    M.set_limit(M.P.adaptive, value)
    M.limit_moved(before)
    M.offer_room()
  end
  M.finish(true)
  M.publish()
  return M.answer(why)
end)
