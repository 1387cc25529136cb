-- RESUME: ends a pause.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply { 0, head, whether it was paused } packed

return step(function()
  begin()
  local was_paused = paused_ms() > 0
  S.paused_until = 0
  if was_paused then
    tell_all('resumed')
    offer_room()
  end
  finish(true)
  publish()
  return cmsgpack.pack({ 0, head(), was_paused and 1 or 0 })
end)
