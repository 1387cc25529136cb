-- PLACES: who waits, and who is told of what. The same decisions as `places.rs`.
--
-- `q` has the places of those that wait for a slot, oldest first: a head with the moment when the first of them lapses and
-- how much room is offered in each tier, then 57 bytes each: since, driver, tier, jobs, offered, lapses. `w` has those that
-- wait for a rate: driver, and until when that counts.

-- From 7.0 on, what is published goes where the keys are, and to no other server.
local PUBLISH = (redis.REDIS_VERSION_NUM or 0) >= 458752 and 'SPUBLISH' or 'PUBLISH'

local LAPSES = 2000
local OWN_FIRST = 10
local PUBLISHED = 1000
local PLACE, PLACE_BYTES = '<dc32BI4I4d', 57
local WAITER, WAITER_BYTES = '<c32d', 40

local pushes = {}

-- Notes a change that all are told of, once it is written.
local function tell_all(message)
  pushes[#pushes + 1] = message
end

local function tell_limit()
  tell_all(string.format('limit %.0f %.0f', limit_now(), S.moved_at))
end

local function publish()
  for _, message in ipairs(pushes) do
    ask(PUBLISH, key .. ':all', message)
  end
  pushes = {}
end

-- Notes a limit that is no longer what it was, later than any move that anyone can know of.
local function limit_moved(before)
  if limit_now() ~= before then
    S.moved_at = max(now_us, S.moved_at + 1)
    tell_limit()
  end
end

local Q

local function load_places()
  if Q then
    return Q
  end
  local raw = get('q')
  Q = { lapse = 0, offered = {}, all = '' }
  local tiers = #P.classes + 1
  if raw then
    local at
    Q.lapse, at = unpack_struct('<d', raw)
    for tier = 1, tiers do
      Q.offered[tier], at = unpack_struct('<I4', raw, at)
    end
    Q.all = sub(raw, at)
    if #Q.all % PLACE_BYTES ~= 0 or not (Q.lapse <= now + LAPSES) then
      corrupt('places')
    end
  else
    for tier = 1, tiers do
      Q.offered[tier] = 0
    end
  end
  return Q
end

local function keep_places()
  if Q and Q.changed then
    if Q.all == '' then
      put('q', false)
    else
      local offered = {}
      for tier, count in ipairs(Q.offered) do
        offered[tier] = pack('<I4', count)
      end
      put('q', pack('<d', Q.lapse) .. table.concat(offered) .. Q.all)
    end
  end
end

-- Removes the place that begins at `from`.
local function remove_place(from)
  local _, _, tier, _, offered = unpack_struct(PLACE, Q.all, from)
  Q.all = sub(Q.all, 1, from - 1) .. sub(Q.all, from + PLACE_BYTES)
  Q.offered[tier] = Q.offered[tier] - offered
  Q.changed = true
end

-- Gives a driver's place up.
local function leave_place(driver, tier)
  if not Q and not get('q') then
    return
  end
  load_places()
  local mine = driver .. string.char(tier)
  local from = 1
  while true do
    local at = string.find(Q.all, mine, from, true)
    if not at then
      return
    elseif (at - 9) % PLACE_BYTES == 0 then
      remove_place(at - 8)
      return
    end
    from = at + 1
  end
end

-- Takes a driver's place, or keeps it, with so many jobs and no offer outstanding.
local function keep_place(driver, tier, since, jobs)
  leave_place(driver, tier)
  if jobs <= 0 then
    return
  end
  load_places()
  local low, high = 0, #Q.all / PLACE_BYTES
  while low < high do
    local middle = floor((low + high) / 2)
    local other, other_driver, other_tier = unpack_struct('<dc32B', Q.all, middle * PLACE_BYTES + 1)
    local before = other < since
      or other == since and (other_driver < driver or other_driver == driver and other_tier < tier)
    if before then
      low = middle + 1
    else
      high = middle
    end
  end
  local place = pack(PLACE, since, driver, tier, jobs, 0, now + LAPSES)
  Q.lapse = Q.all == '' and now + LAPSES or min(Q.lapse, now + LAPSES)
  Q.all = sub(Q.all, 1, low * PLACE_BYTES) .. place .. sub(Q.all, low * PLACE_BYTES + 1)
  Q.changed = true
end

local function drop_lapsed()
  if Q.all == '' or now < Q.lapse then
    return
  end
  local next_lapse = EXACT
  local from = 1
  while from <= #Q.all do
    local _, _, _, _, _, lapses = unpack_struct(PLACE, Q.all, from)
    if lapses <= now then
      remove_place(from)
    else
      next_lapse = min(next_lapse, lapses)
      from = from + PLACE_BYTES
    end
  end
  Q.lapse, Q.changed = next_lapse, true
end

-- How many jobs wait in all.
local function jobs_waiting()
  if not get('q') and not Q then
    return 0
  end
  load_places()
  drop_lapsed()
  local jobs = 0
  for from = 1, #Q.all, PLACE_BYTES do
    local _, _, _, waiting = unpack_struct(PLACE, Q.all, from)
    jobs = jobs + waiting
  end
  return jobs
end

-- What is left of the time that a safe start waits.
local function safe_start_left()
  return P and P.safe_start and max(0, S.born + P.ttl - now) or 0
end

-- Offers room to the oldest places that began before `before`, as far as more of a tier fits beyond what was offered
-- already. One whose message reaches no one is passed over in the same step.
local function offer(before, most, except)
  if not P or not P.leased or not Q and not get('q') then
    return
  end
  if paused_ms() > 0 or safe_start_left() > 0 then
    return
  end
  load_places()
  drop_lapsed()
  local full, open = {}, 0
  for tier = 1, #P.classes + 1 do
    full[tier] = room(tier, Q.offered) == 0
    open = open + (full[tier] and 0 or 1)
  end
  local from = 1
  while open > 0 and most > 0 and from <= #Q.all do
    local since, driver, tier, jobs, offered, lapses = unpack_struct(PLACE, Q.all, from)
    if since >= before then
      return
    end
    if not full[tier] and driver ~= except and offered < jobs then
      local left = room(tier, Q.offered)
      local count = min(left, jobs - offered, most)
      if count > 0 then
        local class = P.classes[tier] and P.classes[tier][1] or ''
        local reached = ask(PUBLISH, key .. ':' .. driver, string.format('room %.0f %s', count, class))
        if reached > 0 then
          Q.all = sub(Q.all, 1, from - 1) .. pack(PLACE, since, driver, tier, jobs, offered + count, lapses)
            .. sub(Q.all, from + PLACE_BYTES)
          Q.offered[tier] = Q.offered[tier] + count
          Q.changed = true
          most = most - count
        end
      end
      if left == 0 then
        full[tier] = true
        open = open - 1
      end
    end
    from = from + PLACE_BYTES
  end
end

local function offer_room()
  offer(EXACT, EXACT, nil)
end

-- Offers room that was freed in this exchange to those that have waited clearly longer than the asking driver. Says what
-- room is theirs: that which was offered to them before as well, and which they have not come for yet.
local function withhold(driver, waited, freed)
  local before = max(0, max(0, now - waited) - OWN_FIRST)
  if freed > 0 then
    offer(before, freed, driver)
  end
  if not Q and not get('q') then
    return nil
  end
  load_places()
  drop_lapsed()
  local any = 0
  for tier = 1, #Q.offered do
    any = any + Q.offered[tier]
  end
  if any == 0 then
    return nil
  end
  local theirs = {}
  for tier = 1, #Q.offered do
    theirs[tier] = 0
  end
  for from = 1, #Q.all, PLACE_BYTES do
    local since, other, tier, _, offered = unpack_struct(PLACE, Q.all, from)
    if since >= before then
      break
    end
    if other ~= driver then
      theirs[tier] = theirs[tier] + offered
    end
  end
  return theirs
end

-- Notes that a driver waits for a rate, or does not; says how many others do.
local function rate_waiting(driver, hint)
  local raw = get('w') or ''
  if raw == '' and not hint then
    return 0
  end
  local kept = {}
  for from = 1, #raw, WAITER_BYTES do
    local other, until_ms = unpack_struct(WAITER, raw, from)
    if other ~= driver and until_ms > now then
      kept[#kept + 1] = sub(raw, from, from + WAITER_BYTES - 1)
    end
  end
  local others = #kept
  if hint then
    kept[others + 1] = pack(WAITER, driver, min(now + hint + LAPSES, EXACT))
  end
  local left = table.concat(kept)
  if left ~= raw then
    put('w', left ~= '' and left)
  end
  return others
end
