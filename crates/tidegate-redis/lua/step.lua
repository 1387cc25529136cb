-- STEP: how a step on an id begins and ends.

-- Whether a pin that was without use for long is forgotten. A level that is not at rest and a pause keep it.
function M.is_outlived()
  if M.paused_ms() > 0 or M.P and (M.S.held > 0 or M.now < M.S.levels_until) then
    return false
  end
  for index, rule in ipairs(M.P and M.P.rules or {}) do
    if not rule[9] and M.rests_at(rule, M.own_level(index)) > M.now then
      return false
    end
  end
  return true
end

-- Reads the state, settles what now is, and sweeps.
function M.begin()
  M.key, M.channel, M.suspects = KEYS[1], KEYS[1] .. ':all', KEYS
  -- Cohorts, the new ones by their ends, and bits of slots. The levels that were looked at in this step, by the index of
  -- their rule or by their key. What is to be said.
  M.cohorts, M.joined, M.chunks, M.own, M.identities, M.pushes = {}, {}, {}, {}, {}, {}
  M.Q, M.L = false, false
  M.load_state()
  M.settle_clock()
  if M.P then
    if M.P.adaptive then
      M.L = M.read_limit(M.fields.l or M.corrupt('limit'))
    end
    if #M.S.tiers ~= #M.P.classes + 1 then
      M.corrupt('tiers')
    end
    -- Now and then, since it takes its time.
    if M.now % 64 == 0 then
      M.check_policy()
    end
    local S = M.S
    if S.resting > 0 or S.first ~= 0 and M.cohort(S.first).ends <= M.now then
      M.sweep_leases()
    end
    if S.held > 0 and S.first == 0 and S.resting == 0 then
      M.corrupt('held')
    end
  end
  local used = M.P and M.S.used or M.S.born
  if M.S.epoch > 0 and M.now - used >= PIN_TTL and M.is_outlived() then
    M.forget_all()
    M.own = {}
  end
end

-- Writes all that was changed.
function M.finish(frees)
  if next(M.own) then
    M.keep_levels()
  end
  if next(M.identities) then
    M.note_identities()
  end
  M.keep_cohorts()
  M.keep_chunks()
  if M.Q then
    M.keep_places()
  end
  M.write(frees)
  if next(M.identities) then
    M.write_identities()
  end
end
