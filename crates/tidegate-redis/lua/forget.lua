-- FORGET: drops all that is kept of an id, unless leases live.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply { 0, head, leases that live, whether there was anything } packed

return M.step(function()
  M.begin()
  while M.P do
    local held = M.S.held
    M.sweep_leases()
    if M.S.held == held then
      break
    end
  end
  local there = M.S.epoch > 0
  local held = M.S.held
  if held == 0 then
    if there then
      M.forget_all()
    end
  else
    M.finish(true)
  end
  return cmsgpack.pack({ 0, M.head(), held, there and 1 or 0 })
end)
