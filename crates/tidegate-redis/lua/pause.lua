-- PAUSE: stops an id, never for less than it is already.
--
-- KEYS  1 the id    ARGV  1 the length in milliseconds
-- reply { 0, head, what is left, whether it was paused } packed

return step(function()
  begin()
  local length = tonumber(ARGV[1])
  live()
  local before = paused_ms()
  S.paused_until = max(S.paused_until, now + length)
  local left = paused_ms()
  if before == 0 or left > before + PUBLISHED then
    tell_all(string.format('paused %.0f', left))
  end
  finish(false)
  publish()
  return cmsgpack.pack({ 0, head(), left, before > 0 and 1 or 0 })
end)
