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

-- Of an id: the levels that were looked at in this step, by the index of their rule or by their key; what is to be said.
M.own, M.identities, M.pushes, M.is_clean = {}, {}, {}, true

-- Drops what a step that failed has left behind.
function M.drop_left()
  M.own, M.identities, M.pushes, M.cohorts, M.chunks, M.changed = {}, {}, {}, {}, {}, {}
end

-- Reads the state, settles what now is, and sweeps. What is released and whether something is acquired tells what else will
-- be asked for.
function M.begin(releases, acquires)
  M.key, M.channel, M.suspects = KEYS[1], false, KEYS
  if M.is_clean then
    M.is_clean = false
  else
    M.drop_left()
  end
  M.chunks[0], M.has_chunks = nil, false
  -- The cohort that was joined last, and one that all have left.
  M.Q, M.L, M.joined, M.joined_ends, M.spare = false, false, false, false, false
  M.load_state(releases, acquires)
  M.settle_clock()
  local S, P, now = M.S, M.P, M.now
  if P then
    if P.adaptive then
      local raw = M.get('l') or M.corrupt('limit')
      M.L = M.known_limit(raw) or M.read_limit(raw)
    end
    if #S.tiers ~= #P.classes + 1 then
      M.corrupt('tiers')
    end
    -- Now and then, since it takes its time.
    if now % 64 == 0 then
      M.check_policy()
    end
    if S.resting > 0 or S.first ~= 0 and (M.first_ends or M.cohort(S.first).ends) <= now then
      M.sweep_leases()
    end
    if S.held > 0 and S.first == 0 and S.resting == 0 then
      M.corrupt('held')
    end
  end
  if S.epoch > 0 and now - (P and S.used or S.born) >= PIN_TTL and M.is_outlived() then
    M.forget_all()
    M.own = {}
  end
end

-- Writes all that was changed.
function M.finish(frees)
  local own = next(M.own)
  if own then
    M.keep_levels()
  end
  local identities = next(M.identities)
  if identities then
    M.note_identities()
  end
  if next(M.cohorts) then
    M.keep_cohorts()
  end
  if M.has_chunks then
    M.keep_chunks()
  end
  if M.Q then
    M.keep_places()
  end
  M.write(frees)
  if identities then
    M.write_identities()
    M.identities = {}
  end
  if M.has_more_chunks then
    M.chunks, M.has_more_chunks = {}, false
  end
  if M.is_library then
    M.keep()
  end
  if own then
    M.own = {}
  end
  M.is_clean = next(M.changed) == nil
end
