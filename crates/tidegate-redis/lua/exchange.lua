-- EXCHANGE: all that a driver has for an id, in one step.
--
-- KEYS  1 the id, 2 the last answer to the driver, 3... levels of identities
-- ARGV  1 the request: { number in halves, or false, not after, restore or false, releases, settlements, observations, renewals,
--         classes of the renewals or false, hand-overs, acquires, queues, digest of the policy that it was checked
--         against, offer or false, initial limit, driver, owner, what is asked, whether that depends on the
--         policy }
-- reply { 0, head, settled, observed, renewed, handed over, acquired } packed, or
--       { 1, policy or false }: check the request against that one, and ask again; nothing was done
--       { 2, number, last }: too late    { 3, layout }: newer layout    { 4, what }: corrupt, and cleared

local number, not_after, known, releases, settlements, observations, renewals, renewal_classes, hand_overs, acquires,
  queues, base, offered, initial, driver, owner, whole, depends = unpack(cmsgpack.unpack(ARGV[1]), 1, 18)

-- What is asked: a whole exchange, or a single part of one; a look where that was refused.
local EXCHANGE, RENEW, HAND_OVER, LOOK = 1, 2, 3, 4
-- In the place of the number that wait: the acquire was refused already.
local REFUSED = -1

-- Pins the member's policy where there is none, or a lower revision.
local function adopt()
  if offered and (not P or offered[3] > P.revision) then
    install(offered, initial)
  end
  S.used = now
end

local function restore_step()
  if not known or S.epoch == known[1] then
    return false
  end
  if known[4] > 0 then
    live()
    local before = paused_ms()
    S.paused_until = max(S.paused_until, now + known[4])
    if before == 0 or paused_ms() > before + PUBLISHED then
      tell_all(string.format('paused %.0f', paused_ms()))
    end
  end
  if not P then
    install(offered, initial)
  end
  if known[2] >= 0 and P.adaptive then
    -- A limit as it was seeded counts as older than any that a holder knows.
    local known_at = min(max(known[3], 1), now_us)
    if known_at > S.moved_at then
      local before = L.value
      set_limit(P.adaptive, known[2])
      S.moved_at = known_at
      if L.value ~= before then
        tell_limit()
      end
    end
  end
  return true
end

local function release_step()
  if not P or #releases == 0 then
    return
  end
  local slots = {}
  for at = 1, #releases, 5 do
    if releases[at] >= 0 then
      slots[#slots + 1] = releases[at]
    end
  end
  fetch_leases(slots)
  local before = limit_now()
  local adaptive = P.adaptive
  for at = 1, #releases, 5 do
    local outcome, retry_after = releases[at + 3], releases[at + 4]
    local rest_ms = 0
    if adaptive and outcome == 1 then
      rest_ms = retry_after >= 0 and min(retry_after, adaptive[6]) or adaptive[8]
    end
    local was_live = release(releases[at], releases[at + 1], releases[at + 2], rest_ms)
    if adaptive then
      if outcome == 1 then
        throttled(adaptive)
      elseif was_live and outcome == 0 then
        success(adaptive)
      elseif was_live then
        tally(adaptive)
      end
    end
  end
  limit_moved(before)
end

-- The level that is named from outside, with its rule; nil where the policy has no such rule, or has it with another scope.
local function level_of(name, place)
  for index, rule in ipairs(P and P.rules or {}) do
    if rule[1] == name then
      if rule[9] and place > 0 then
        return rule, identity_level(index, place)
      elseif not rule[9] and place == 0 then
        return rule, own_level(index)
      end
      return nil
    end
  end
  return nil
end

local function settle_step()
  local settled = {}
  for at = 1, #settlements, 5 do
    local rule, level = level_of(settlements[at], settlements[at + 1])
    local cut = 0
    if rule then
      cut = settle(rule, level, settlements[at + 2] + S.offset, settlements[at + 3], settlements[at + 4])
      level.changed = true
    end
    settled[#settled + 1] = cut
  end
  return settled
end

local function observe_step()
  local observed = {}
  for at = 1, #observations, 6 do
    local rule, level = level_of(observations[at], observations[at + 1])
    local lowered, noted = false, false
    if rule then
      lowered, noted = observe(rule, level, observations[at + 2], observations[at + 3] + S.offset,
        observations[at + 4] + S.offset, observations[at + 5])
      if lowered or noted and (not rule[9] or level.is_kept) then
        level.changed = true
      end
    end
    observed[#observed + 1] = lowered and 1 or 0
  end
  return observed
end

local function renew_step(lost)
  local renewed = {}
  if P and (whole == EXCHANGE or whole == RENEW) then
    S.used = now
  end
  if P and #renewals > 0 then
    local slots = {}
    for at = 1, #renewals, 3 do
      if renewals[at] >= 0 then
        slots[#slots + 1] = renewals[at]
      end
    end
    fetch_leases(slots)
  end
  for at = 1, #renewals, 3 do
    local slot, fence, epoch = renewals[at], renewals[at + 1], renewals[at + 2]
    local alive = P and renew(slot, fence, epoch)
    if P and not alive and lost then
      local tier = tier_or_last(renewal_classes[(at - 1) / 3 + 1])
      alive = P.leased and room(tier) > 0 or not P.leased
      alive = alive and take_up(slot, fence, epoch, tier, owner)
    end
    renewed[#renewed + 1] = alive and 1 or 0
  end
  return renewed
end

local function hand_over_step()
  local handed = {}
  if #hand_overs > 0 or whole == HAND_OVER then
    adopt()
  end
  for _, class in ipairs(hand_overs) do
    local slot = grant(tier_or_last(class), owner)
    handed[#handed + 1] = slot
    handed[#handed + 1] = S.fence
  end
  return handed
end

-- Notes the queues that acquire nothing, and gives up the places of those that are empty.
local function queues_step()
  if not P then
    return
  end
  for tier = 1, #P.classes + 1 do
    local class = P.classes[tier] and P.classes[tier][1] or false
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
        keep_place(driver, tier, max(0, now - waited), waiting)
        if L and room(tier) == 0 then
          demand()
        end
      else
        leave_place(driver, tier)
      end
    end
  end
end

-- The longest hint of the rules that deny a job, with the number of that rule; nil where it fits.
local function rate_denial(costs)
  local longest, by
  for index, rule in ipairs(P.rules) do
    local hint = does_not_fit(rule, own_level(index), costs[index])
    if hint and (not longest or hint > longest) then
      longest, by = hint, index
    end
  end
  return longest and { longest, 0, by }
end

local function slot_denial(safe)
  if safe > 0 then
    return { safe, 1, 0 }
  end
  local ends = next_end()
  return { ends and max(ends - now, 1) or P.ttl, 1, 0 }
end

-- Notes demand and places after an acquire; says how many other drivers wait for a rate.
local function after_acquire(tier, waiting, waited, granted, denied)
  local slots_short = denied and denied[2] == 1
  local left_waiting = waiting > granted
  if L and (slots_short or not denied and left_waiting and room(tier) == 0) then
    demand()
  end
  if slots_short and left_waiting then
    keep_place(driver, tier, max(0, now - waited), waiting - granted)
  else
    leave_place(driver, tier)
  end
  return rate_waiting(driver, denied and denied[2] == 0 and left_waiting and denied[1] or nil)
end

-- How many of `count` jobs of these costs fit in the rules at once.
local function fitting(costs, count)
  for index, rule in ipairs(P.rules) do
    local cost = costs[index]
    local level = own_level(index)
    advance_to(rule, level, now)
    if cost > 0 then
      count = min(count, max(0, floor((rule[5] - level.used) / cost)))
    end
  end
  return count
end

-- Spends so many jobs of these costs, which fit.
local function spend_all(costs, count)
  for index, rule in ipairs(P.rules) do
    local level = own_level(index)
    local cost = costs[index]
    if cost > 0 then
      if level.spent + cost * count < EXACT then
        spend(rule, level, cost * count)
      else
        for _ = 1, count do
          spend(rule, level, cost)
        end
      end
      level.changed = true
    end
  end
end

local function acquire_step(acquire, freed)
  local class, waiting, waited, _, runs = unpack(acquire, 1, 5)
  adopt()
  local left = paused_ms()
  if left > 0 then
    return { 0, 0, {}, {}, { left, 0, 0 }, 0 }, 0
  end
  local tier = tier_of(P, class)
  local withheld = withhold(driver, waited, freed)
  local safe = safe_start_left()
  local space = EXACT
  if P.leased then
    space = safe > 0 and 0 or room(tier, withheld)
  end
  local marks = {}
  for index, rule in ipairs(P.rules) do
    local level = own_level(index)
    advance_to(rule, level, now)
    marks[index] = level.spent
  end
  local granted, first_fence, slots, denied = 0, 0, {}, false
  for _, run in ipairs(runs) do
    local count, costs = run[1], run[2]
    local fit = fitting(costs, count)
    local takes = min(fit, space - granted)
    if takes > 0 then
      spend_all(costs, takes)
      if P.leased then
        for _ = 1, takes do
          slots[#slots + 1] = grant(tier, owner)
          if first_fence == 0 then
            first_fence = S.fence
          end
        end
      end
      granted = granted + takes
    end
    if takes < count then
      denied = rate_denial(costs) or slot_denial(safe)
      break
    end
  end
  local others = after_acquire(tier, waiting, waited, granted, denied)
  return { granted, first_fence, slots, marks, denied, others }, granted
end

local function scoped_step(acquire, freed)
  local class, waiting, waited, _, jobs = unpack(acquire, 1, 5)
  adopt()
  local grants, denials = {}, {}
  local left = paused_ms()
  if left > 0 then
    for index = 1, #jobs do
      denials[#denials + 1] = { index - 1, left, 0, 0 }
    end
    return { grants, denials, 0 }, 0
  end
  local tier = tier_of(P, class)
  local withheld = withhold(driver, waited, freed)
  local safe = safe_start_left()
  local space = EXACT
  if P.leased then
    space = safe > 0 and 0 or room(tier, withheld)
  end
  local rules = P.rules
  local blocked, limited
  for index, job in ipairs(jobs) do
    local levels, longest, by = {}, nil, nil
    for at, rule in ipairs(rules) do
      local cost, place = job[2 * at - 1], job[2 * at]
      local level = place > 0 and identity_level(at, place) or own_level(at)
      levels[at] = level
      local hint = does_not_fit(rule, level, cost)
      if hint and (not longest or hint > longest) then
        longest, by = hint, at
      end
    end
    local denied = longest and { longest, 0, by }
    if not denied and P.leased and #grants >= space then
      denied = slot_denial(safe)
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
        if spend(rule, levels[at], job[2 * at - 1]) then
          levels[at].changed = true
        end
        granted[3 + at] = levels[at].spent
      end
      if P.leased then
        granted[2] = grant(tier, owner)
        granted[3] = S.fence
      end
      grants[#grants + 1] = granted
    end
  end
  -- Where slots denied any of them, the queue waits for slots.
  local others = after_acquire(tier, waiting, waited, #grants, blocked or limited)
  return { grants, denials, others }, #grants
end

local function asks_for_leases()
  if #hand_overs > 0 or whole == HAND_OVER then
    return true
  end
  for _, acquire in ipairs(acquires) do
    if acquire[2] ~= REFUSED then
      return true
    end
  end
  return false
end

-- Whether the request was checked against another policy than the one that is to decide.
local function is_unchecked()
  if P and fields.d ~= base then
    check_policy()
    return true
  elseif P then
    return false
  end
  return base ~= '' or not offered
end

local function remember(answer)
  -- Where nothing is kept of the id, nothing was done that must not be done twice.
  if not number or S.epoch == 0 then
    return
  end
  local kept = max(P and P.ttl or 0, 60000)
  local record = pack('<dddd', S.epoch, number[1], number[2], now + kept) .. answer
  ask('SET', KEYS[2], record, 'PX', string.format('%.0f', lives(kept)))
end

local function exchange(takes_memory)
  begin()
  if number then
    local record = ask('GET', KEYS[2])
    local last = { 0, 0 }
    if record then
      local epoch, high, low, until_ms, from = unpack_struct('<dddd', record)
      if epoch == S.epoch and until_ms > now then
        last = { high, low }
        if high == number[1] and low == number[2] then
          finish(true)
          publish()
          return sub(record, from)
        end
      end
    end
    local is_lower = number[1] < last[1] or number[1] == last[1] and number[2] < last[2]
    if is_lower or not_after >= 0 and S.last > not_after then
      finish(true)
      publish()
      return cmsgpack.pack({ 2, number, last })
    end
  end
  local lost = restore_step()
  local asks = asks_for_leases()
  if depends and is_unchecked() then
    return cmsgpack.pack({ 1, P and fields.p })
  end
  local held = S.held
  release_step()
  local freed = max(0, held - S.held)
  local settled = settle_step()
  local observed = observe_step()
  local renewed = renew_step(lost)
  local handed = takes_memory and hand_over_step() or {}
  if whole == EXCHANGE then
    queues_step()
  end
  local acquired = {}
  for at, acquire in ipairs(acquires) do
    if acquire[2] == REFUSED or not takes_memory then
      acquired[at] = false
    else
      local granted
      acquired[at], granted = (acquire[4] == 1 and scoped_step or acquire_step)(acquire, freed)
      freed = max(0, freed - granted)
    end
  end
  if whole ~= LOOK then
    offer_room()
  end
  local answer = cmsgpack.pack({ 0, head(), settled, observed, renewed, handed, acquired })
  finish(not (asks and takes_memory))
  remember(answer)
  publish()
  return answer
end

return step(function()
  return exchange(true)
end, function()
  return exchange(false)
end)
