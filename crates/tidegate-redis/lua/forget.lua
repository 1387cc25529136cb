-- FORGET: drops all that is kept of an id and of its circuit, unless leases live.
--
-- KEYS  1 the id, 2 its circuit    ARGV  1 nothing
-- reply 0, head, leases that live, whether there was anything, packed one after another

return M.step(function()
  C.begin(KEYS[2])
  local held = (M.S.leads_until > M.now and 1 or 0) + #C.trials()
  local there = M.S.generation > 0
  C.finish(true)
  -- What makes no sense from here on is no fault of the circuit.
  local circuit = table.remove(KEYS)
  M.begin()
  while M.P do
    local before = M.S.held
    M.sweep_leases()
    if M.S.held == before then
      break
    end
  end
  held, there = held + M.S.held, there or M.S.epoch > 0
  if held > 0 then
    M.finish(true)
  elseif there then
    M.ask('DEL', circuit)
    M.forget_all()
  end
  return M.answer(held, there and 1 or 0)
end)
