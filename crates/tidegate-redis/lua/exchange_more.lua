-- EXCHANGE, what is rarer: whatever is neither a release nor an acquire without scopes.

function M.restore_step()
  if not R.known or M.S.epoch == R.known[1] then
    return false
  end
  if R.known[4] > 0 then
    M.live()
    local before = M.paused_ms()
    M.S.paused_until = math.max(M.S.paused_until, M.now + R.known[4])
    if before == 0 or M.paused_ms() > before + PUBLISHED then
      M.tell_all(string.format('paused %.0f', M.paused_ms()))
    end
  end
  if not M.P then
    M.install(R.offered, R.initial)
  end
  if R.known[2] >= 0 and M.P.adaptive then
    -- A limit as it was seeded counts as older than any that a holder knows.
    local known_at = math.min(math.max(R.known[3], 1), M.now_us)
    if known_at > M.S.moved_at then
      local before = M.L.value
      M.set_limit(M.P.adaptive, R.known[2])
      M.S.moved_at = known_at
      if M.L.value ~= before then
        M.tell_limit()
      end
    end
  end
  return true
end

-- The level that is named from outside, with its rule; nil where the policy has no such rule, or has it with another scope.
function M.level_of(name, place)
  for index, rule in ipairs(M.P and M.P.rules or {}) do
    if rule[1] == name then
      if rule[9] and place > 0 then
        return rule, M.identity_level(index, place)
      elseif not rule[9] and place == 0 then
        return rule, M.own_level(index)
      end
      return nil
    end
  end
  return nil
end

function M.settle_step()
  local settled = {}
  for at = 1, #R.settlements, 5 do
    local rule, level = M.level_of(R.settlements[at], R.settlements[at + 1])
    local cut = 0
    if rule then
      cut = M.settle(rule, level, R.settlements[at + 2] + M.S.offset, R.settlements[at + 3], R.settlements[at + 4])
      level.changed = true
    end
    settled[#settled + 1] = cut
  end
  return settled
end

function M.observe_step()
  local observed = {}
  for at = 1, #R.observations, 6 do
    local rule, level = M.level_of(R.observations[at], R.observations[at + 1])
    local lowered, noted = false, false
    if rule then
      lowered, noted = M.observe(rule, level, R.observations[at + 2], R.observations[at + 3] + M.S.offset,
        R.observations[at + 4] + M.S.offset, R.observations[at + 5])
      if lowered or noted and (not rule[9] or level.is_kept) then
        level.changed = true
      end
    end
    observed[#observed + 1] = lowered and 1 or 0
  end
  return observed
end

function M.renew_step(lost)
  local renewed = {}
  if M.P then
    local slots = {}
    for at = 1, #R.renewals, 3 do
      if R.renewals[at] >= 0 then
        slots[#slots + 1] = R.renewals[at]
      end
    end
    M.fetch_leases(slots)
  end
  for at = 1, #R.renewals, 3 do
    local slot, fence, epoch = R.renewals[at], R.renewals[at + 1], R.renewals[at + 2]
    local alive = M.P and M.renew(slot, fence, epoch)
    if M.P and not alive and lost then
      local tier = M.tier_or_last(R.renewal_classes[(at - 1) / 3 + 1])
      alive = M.P.leased and M.room(tier) > 0 or not M.P.leased
      alive = alive and M.take_up(slot, fence, epoch, tier, R.owner)
    end
    renewed[#renewed + 1] = alive and 1 or 0
  end
  return renewed
end

function M.hand_over_step()
  local handed = {}
  M.adopt()
  for _, class in ipairs(R.hand_overs or {}) do
    local slot, fence = M.grant(M.tier_or_last(class), R.owner)
    handed[#handed + 1] = slot
    handed[#handed + 1] = fence
  end
  return handed
end

-- Notes the queues that acquire nothing, and gives up the places of those that are empty.
function M.queues_step()
  if not M.P then
    return
  end
  local queues, acquires = R.queues or {}, R.acquires or {}
  for tier = 1, #M.P.classes + 1 do
    local class = M.P.classes[tier] and M.P.classes[tier][1] or false
    local acquires_it = false
    for _, acquire in ipairs(acquires) do
      acquires_it = acquires_it or acquire[1] == class
    end
    if not acquires_it then
      local waiting, waited = 0, 0
      for at = #queues - 2, 1, -3 do
        if queues[at] == class then
          waiting, waited = queues[at + 1], queues[at + 2]
        end
      end
      if waiting > 0 then
        M.keep_place(R.driver, tier, math.max(0, M.now - waited), waiting)
        if M.L and M.room(tier) == 0 then
          M.demand()
        end
      else
        M.leave_place(R.driver, tier)
      end
    end
  end
end

function M.scoped_step(acquire, freed)
  local class, waiting, waited, _, jobs = unpack(acquire, 1, 5)
  M.adopt()
  local grants, denials = {}, {}
  local left = M.paused_ms()
  if left > 0 then
    for index = 1, #jobs do
      denials[#denials + 1] = { index - 1, left, 0, 0 }
    end
    return { grants, denials, 0 }, 0
  end
  local tier = M.tier_of(M.P, class)
  local space, safe = M.space_for(tier, waited, freed)
  local rules = M.P.rules
  local blocked, limited
  for index, job in ipairs(jobs) do
    local levels, longest, by = {}, nil, nil
    for at, rule in ipairs(rules) do
      local cost, place = job[2 * at - 1], job[2 * at]
      local level = place > 0 and M.identity_level(at, place) or M.own_level(at)
      levels[at] = level
      local hint = M.does_not_fit(rule, level, cost)
      if hint and (not longest or hint > longest) then
        longest, by = hint, at
      end
    end
    local denied = longest and { longest, 0, by }
    if not denied and M.P.leased and #grants >= space then
      denied = M.slot_denial(safe)
    end
    if denied then
      denials[#denials + 1] = { index - 1, denied[1], denied[2], denied[3] }
      if denied[2] == 1 then
        blocked = blocked or denied
      end
      limited = limited or denied
    else
      local granted = { index - 1, -1, 0 }
      for at, rule in ipairs(rules) do
        if M.spend(rule, levels[at], job[2 * at - 1]) then
          levels[at].changed = true
        end
        granted[3 + at] = levels[at].spent
      end
      if M.P.leased then
        granted[2], granted[3] = M.grant(tier, R.owner)
      end
      grants[#grants + 1] = granted
    end
  end
  -- Where slots denied any of them, the queue waits for slots.
  local others = M.after_acquire(tier, waiting, waited, #grants, blocked or limited)
  return { grants, denials, others }, #grants
end
