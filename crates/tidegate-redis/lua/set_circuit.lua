-- SET CIRCUIT: opens or closes a circuit by hand.
--
-- KEYS  1 the circuit    ARGV  1 whether it is to be open: 1 or 0
-- reply { 0, head, whether that changed it } packed

return M.step(function()
  C.begin(KEYS[1])
  local opens = ARGV[1] == '1'
  local changes = M.P and opens == (M.S.attempt == 0)
  if changes then
    C.change(opens and OPEN or CLOSED, BY_OPERATOR)
    C.tell()
  end
  C.finish(true)
  M.publish()
  return cmsgpack.pack({ 0, C.head(), changes and 1 or 0 })
end)
