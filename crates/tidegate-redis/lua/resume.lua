-- RESUME: ends a pause.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply 0, head, whether it was paused, packed one after another

return M.step(function()
  M.begin()
  local was_paused = M.paused_ms() > 0
  M.S.paused_until = 0
  if was_paused then
    M.tell_all('resumed')
    M.offer_room()
  end
  M.finish(true)
  M.publish()
  return M.answer(was_paused and 1 or 0)
end)
