-- SNAPSHOT: how an id stands.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply 0, head, false or { policy or false, held, resting, held by tier, waiting, levels }, packed one after another; a level of a rule
--       with a scope is false

return M.step(function()
  M.begin()
  local body = false
  if M.P then
    M.check_policy()
  end
  if M.S.epoch > 0 then
    local levels = {}
    for index, rule in ipairs(M.P and M.P.rules or {}) do
      levels[index] = false
      if not rule[9] then
        local level = M.own_level(index)
        M.advance_to(rule, level, M.now)
        levels[index] = rule[5] - level.used
      end
    end
    body = { M.P and M.fields.p, M.S.held, M.S.resting, M.P and M.S.tiers or {}, M.P and M.jobs_waiting() or 0, levels }
  end
  M.finish(true)
  return M.answer(body)
end)
