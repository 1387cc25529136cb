-- SNAPSHOT: how an id stands.
--
-- KEYS  1 the id    ARGV  1 nothing
-- reply { 0, head, false or { policy or false, held, resting, held by tier, waiting, levels } } packed; a level of a rule
--       with a scope is false

return step(function()
  begin()
  local body = false
  if P then
    check_policy()
  end
  if S.epoch > 0 then
    local levels = {}
    for index, rule in ipairs(P and P.rules or {}) do
      levels[index] = false
      if not rule[9] then
        local level = own_level(index)
        advance_to(rule, level, now)
        levels[index] = rule[5] - level.used
      end
    end
    body = { P and fields.p, S.held, S.resting, P and S.tiers or {}, P and jobs_waiting() or 0, levels }
  end
  finish(true)
  return cmsgpack.pack({ 0, head(), body })
end)
