-- PAUSE: stops an id, never for less than it is already.
--
-- KEYS  1 the id    ARGV  1 the length in milliseconds
-- reply 0, head, what is left, whether it was paused, packed one after another

return M.step(function()
  M.begin()
  local length = tonumber(ARGV[1])
  M.live()
  local before = M.paused_ms()
  M.S.paused_until = math.max(M.S.paused_until, M.now + length)
  local left = M.paused_ms()
  if before == 0 or left > before + PUBLISHED then
    M.tell_all(string.format('paused %.0f', left))
  end
  M.finish(false)
  M.publish()
  return M.answer(left, before > 0 and 1 or 0)
end)
