-- POLICY: pinning one, and going over to the next revision. The same decisions as `install` and `carry` in `model/one.rs`.

function M.same_rule(one, other)
  for at = 1, 9 do
    if one[at] ~= other[at] then
      return false
    end
  end
  return true
end

function M.begin_generation(rule, revision)
  if rule[9] then
    M.put('g:' .. rule[1], cmsgpack.pack({ { revision, M.now, rule } }))
  end
end

-- The most generations of a rule that are told apart.
local MOST_GENERATIONS <const> = 16

function M.next_generation(rule, revision)
  local all = M.generations(rule)
  -- Where all that was kept under them is at rest by now, the older ones are over.
  while #all > 1 and M.now >= M.S.levels_until or #all >= MOST_GENERATIONS do
    table.remove(all, 1)
  end
  all[#all + 1] = { revision, M.now, rule }
  M.put('g:' .. rule[1], cmsgpack.pack(all))
end

function M.carry_levels(from, to)
  local levels = {}
  for index = 1, #from.rules do
    levels[index] = not from.rules[index][9] and M.own_level(index)
  end
  M.own = {}
  local gone = {}
  for _, rule in ipairs(from.rules) do
    gone[rule[1]] = true
  end
  for index, rule in ipairs(to.rules) do
    local kept
    for at, was in ipairs(from.rules) do
      if was[1] == rule[1] and was[9] == rule[9] and M.carries_over(was, rule) then
        kept = at
      end
    end
    local was = kept and from.rules[kept]
    if not kept then
      M.put('r:' .. rule[1], false)
      M.put('g:' .. rule[1], false)
      M.begin_generation(rule, to.revision)
    elseif rule[9] then
      if not M.same_rule(was, rule) then
        M.next_generation(rule, to.revision)
      end
    else
      local level = levels[kept]
      if not M.same_rule(was, rule) then
        level = M.carry_level(level, was, rule, M.now)
        level.changed = true
      end
      M.own[index] = level
    end
    for place, level in pairs(M.identities) do
      if level.rule[1] == rule[1] then
        if not kept or not rule[9] then
          M.identities[place] = nil
        elseif not M.same_rule(was, rule) then
          local changed_before = level.changed
          level = M.carry_level(level, was, rule, M.now)
          level.rule, level.is_kept, level.changed = rule, true, changed_before
          M.identities[place] = level
        end
      end
    end
    gone[rule[1]] = nil
  end
  for name in pairs(gone) do
    M.put('r:' .. name, false)
    M.put('g:' .. name, false)
  end
  for place, level in pairs(M.identities) do
    if gone[level.rule[1]] then
      M.identities[place] = nil
    end
  end
end

-- Gives every lease the tier of its class in another policy.
function M.retier(from, to)
  local tiers, map, same = {}, {}, #from.classes == #to.classes
  for tier = 1, #to.classes + 1 do
    tiers[tier] = 0
  end
  for tier = 1, #from.classes + 1 do
    local class = from.classes[tier]
    map[tier] = class and M.tier_of(to, class[1]) or #to.classes + 1
    same = same and map[tier] == tier
  end
  if same then
    return
  end
  local slots = {}
  local number = M.S.first
  while number ~= 0 do
    for _, slot in ipairs(M.cohort_slots(number)) do
      slots[#slots + 1] = slot
    end
    number = M.cohort(number).later
  end
  local all = M.get('z') or ''
  for at = 1, #all, RESTING do
    local _, slot = struct.unpack('<dd', all, at)
    slots[#slots + 1] = slot
  end
  M.fetch_leases(slots)
  local seen = {}
  for _, slot in ipairs(slots) do
    local lease = not seen[slot] and M.lease_at(slot)
    seen[slot] = true
    if lease then
      lease.tier = map[lease.tier]
      tiers[lease.tier] = tiers[lease.tier] + 1
      M.keep_lease(lease)
    end
  end
  M.S.tiers = tiers
end

-- Pins a policy { blob, digest, revision }, carrying over what there is.
function M.install(offered, initial)
  M.live()
  local policy = M.read_policy(offered[1])
  local from, before = M.P, M.limit_now()
  if not from then
    M.P = policy
    M.S.used, M.S.moved_at = M.now, 0
    M.S.spent_out_at = policy.safe_start and M.now or -1
    for tier = 1, #policy.classes + 1 do
      M.S.tiers[tier] = 0
    end
    if policy.adaptive then
      M.seed_limit(policy.adaptive, initial or policy.adaptive[1])
    end
    for _, rule in ipairs(policy.rules) do
      M.begin_generation(rule, policy.revision)
    end
  else
    if not policy.adaptive then
      M.L = false
      M.put('l', false)
    elseif M.L then
      M.carry_limit(from.adaptive, policy.adaptive)
    else
      M.seed_limit(policy.adaptive, initial or before or policy.adaptive[1])
    end
    M.carry_levels(from, policy)
    M.retier(from, policy)
    -- Whoever waits comes back within its polling time.
    M.put('q', false)
    M.P, M.Q = policy, false
    if M.limit_now() ~= before then
      M.S.moved_at = M.now_us
    end
    M.tell_all(string.format('policy %.0f', policy.revision))
    if M.limit_now() and M.limit_now() ~= before then
      M.tell_limit()
    end
  end
  M.put('p', offered[1])
  M.put('d', offered[2])
end
