-- POLICY: pinning one, and going over to the next revision. The same decisions as `install` and `carry` in `model/one.rs`.

local function same_rule(one, other)
  for at = 1, 9 do
    if one[at] ~= other[at] then
      return false
    end
  end
  return true
end

local function begin_generation(rule, revision)
  if rule[9] then
    put('g:' .. rule[1], cmsgpack.pack({ { revision, now, rule } }))
  end
end

-- The most generations of a rule that are told apart.
local MOST_GENERATIONS = 16

local function next_generation(rule, revision)
  local all = generations(rule)
  -- Where all that was kept under them is at rest by now, the older ones are over.
  while #all > 1 and now >= S.levels_until or #all >= MOST_GENERATIONS do
    table.remove(all, 1)
  end
  all[#all + 1] = { revision, now, rule }
  put('g:' .. rule[1], cmsgpack.pack(all))
end

local function carry_levels(from, to)
  local levels = {}
  for index = 1, #from.rules do
    levels[index] = not from.rules[index][9] and own_level(index)
  end
  own = {}
  local gone = {}
  for _, rule in ipairs(from.rules) do
    gone[rule[1]] = true
  end
  for index, rule in ipairs(to.rules) do
    local kept
    for at, was in ipairs(from.rules) do
      if was[1] == rule[1] and was[9] == rule[9] and carries_over(was, rule) then
        kept = at
      end
    end
    local was = kept and from.rules[kept]
    if not kept then
      put('r:' .. rule[1], false)
      put('g:' .. rule[1], false)
      begin_generation(rule, to.revision)
    elseif rule[9] then
      if not same_rule(was, rule) then
        next_generation(rule, to.revision)
      end
    else
      local level = levels[kept]
      if not same_rule(was, rule) then
        level = carry_level(level, was, rule, now)
        level.changed = true
      end
      own[index] = level
    end
    for place, level in pairs(identities) do
      if level.rule[1] == rule[1] then
        if not kept or not rule[9] then
          identities[place] = nil
        elseif not same_rule(was, rule) then
          local changed_before = level.changed
          level = carry_level(level, was, rule, now)
          level.rule, level.is_kept, level.changed = rule, true, changed_before
          identities[place] = level
        end
      end
    end
    gone[rule[1]] = nil
  end
  for name in pairs(gone) do
    put('r:' .. name, false)
    put('g:' .. name, false)
  end
  for place, level in pairs(identities) do
    if gone[level.rule[1]] then
      identities[place] = nil
    end
  end
end

-- Gives every lease the tier of its class in another policy.
local function retier(from, to)
  local tiers, map, same = {}, {}, #from.classes == #to.classes
  for tier = 1, #to.classes + 1 do
    tiers[tier] = 0
  end
  for tier = 1, #from.classes + 1 do
    local class = from.classes[tier]
    map[tier] = class and tier_of(to, class[1]) or #to.classes + 1
    same = same and map[tier] == tier
  end
  if same then
    return
  end
  local slots = {}
  local number = S.first
  while number ~= 0 do
    for _, slot in ipairs(cohort_slots(number)) do
      slots[#slots + 1] = slot
    end
    number = cohort(number).later
  end
  local all = get('z') or ''
  for at = 1, #all, RESTING do
    local _, slot = unpack_struct('<dd', all, at)
    slots[#slots + 1] = slot
  end
  fetch(slots)
  local seen = {}
  for _, slot in ipairs(slots) do
    local lease = not seen[slot] and lease_at(slot)
    seen[slot] = true
    if lease then
      lease.tier = map[lease.tier]
      tiers[lease.tier] = tiers[lease.tier] + 1
      keep_lease(lease)
    end
  end
  S.tiers = tiers
end

-- Pins a policy { blob, digest, revision }, carrying over what there is.
local function install(offered, initial)
  live()
  local policy = read_policy(offered[1])
  local from, before = P, limit_now()
  if not from then
    P = policy
    S.used, S.moved_at = now, 0
    S.spent_out_at = policy.safe_start and now or -1
    for tier = 1, #policy.classes + 1 do
      S.tiers[tier] = 0
    end
    if policy.adaptive then
      seed_limit(policy.adaptive, initial or policy.adaptive[1])
    end
    for _, rule in ipairs(policy.rules) do
      begin_generation(rule, policy.revision)
    end
  else
    if not policy.adaptive then
      L = false
      put('l', false)
    elseif L then
      carry_limit(from.adaptive, policy.adaptive)
    else
      seed_limit(policy.adaptive, initial or before or policy.adaptive[1])
    end
    carry_levels(from, policy)
    retier(from, policy)
    -- Whoever waits comes back within its polling time.
    put('q', false)
    P, Q = policy, nil
    if limit_now() ~= before then
      S.moved_at = now_us
    end
    tell_all(string.format('policy %.0f', policy.revision))
    if limit_now() and limit_now() ~= before then
      tell_limit()
    end
  end
  put('p', offered[1])
  put('d', offered[2])
end
