-- CIRCUIT SNAPSHOT: how a circuit stands.
--
-- KEYS  1 the circuit    ARGV  1 nothing
-- reply { 0, head, false or { policy, view, heard, failing, trials } } packed

return M.step(function()
  C.begin(KEYS[1])
  local body = false
  if M.P then
    M.check_policy()
    body = { M.fields.p, C.view(), C.heard(), C.failing(), #C.trials() }
  end
  C.finish(true)
  return cmsgpack.pack({ 0, C.head(), body })
end)
