-- FORGET: drops all that is kept of an id, unless leases live.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply { 0, head, leases that live, whether there was anything } packed

return step(function()
  begin()
  while P do
    local held = S.held
    sweep_leases()
    if S.held == held then
      break
    end
  end
  local there = S.epoch > 0
  local held = S.held
  if held == 0 then
    if there then
      forget_all()
    end
  else
    finish(true)
  end
  return cmsgpack.pack({ 0, head(), held, there and 1 or 0 })
end)
