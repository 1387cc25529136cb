-- SET LIMIT: sets an adaptive limit, within the bounds of the policy.
--
-- KEYS  1 the id    ARGV  1 the limit
-- reply { 0, head, why not } packed: 0 it is set, 1 no policy is pinned, 2 the limit does not move, or { least, most }

return step(function()
  begin()
  local value = tonumber(ARGV[1])
  local why = 0
  if not P then
    why = 1
  elseif not P.adaptive then
    why = 2
  elseif value < P.adaptive[1] or value > P.adaptive[2] then
    why = { P.adaptive[1], P.adaptive[2] }
  else
    local before = L.value
    set_limit(P.adaptive, value)
    limit_moved(before)
    offer_room()
  end
  finish(true)
  publish()
  return cmsgpack.pack({ 0, head(), why })
end)
