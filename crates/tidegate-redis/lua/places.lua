-- PLACES: who waits, and who is told of what. The same decisions as `places.rs`.
--
-- `q` has the places of those that wait for a slot, oldest first: a head with the moment when the first of them lapses and
-- how much room is offered in each tier, then 57 bytes each: since, driver, tier, jobs, offered, lapses. `w` has those that
-- wait for a rate: driver, and until when that counts.

local LAPSES <const> = 2000
local OWN_FIRST <const> = 10
local PUBLISHED <const> = 1000
local PLACE <const> = '<dc32BI4I4d'
local PLACE_BYTES <const> = 57
local WAITER <const> = '<c32d'
local WAITER_BYTES <const> = 40

function M.load_places()
  if M.Q then
    return M.Q
  end
  local raw = M.get('q')
  M.Q = { lapse = 0, offered = {}, all = '' }
  local tiers = #M.P.classes + 1
  if raw then
    local at
    M.Q.lapse, at = struct.unpack('<d', raw)
    for tier = 1, tiers do
      M.Q.offered[tier], at = struct.unpack('<I4', raw, at)
    end
    M.Q.all = string.sub(raw, at)
    if #M.Q.all % PLACE_BYTES ~= 0 or not (M.Q.lapse <= M.now + LAPSES) then
      M.corrupt('places')
    end
  else
    for tier = 1, tiers do
      M.Q.offered[tier] = 0
    end
  end
  return M.Q
end

function M.keep_places()
  if M.Q and M.Q.changed then
    if M.Q.all == '' then
      M.put('q', false)
    else
      local offered = {}
      for tier, count in ipairs(M.Q.offered) do
        offered[tier] = struct.pack('<I4', count)
      end
      M.put('q', struct.pack('<d', M.Q.lapse) .. table.concat(offered) .. M.Q.all)
    end
  end
end

-- Removes the place that begins at `from`.
function M.remove_place(from)
  local _, _, tier, _, offered = struct.unpack(PLACE, M.Q.all, from)
  M.Q.all = string.sub(M.Q.all, 1, from - 1) .. string.sub(M.Q.all, from + PLACE_BYTES)
  M.Q.offered[tier] = M.Q.offered[tier] - offered
  M.Q.changed = true
end

-- Gives a driver's place up.
function M.leave_place(driver, tier)
  if not M.Q and not M.get('q') then
    return
  end
  M.load_places()
  local mine = driver .. string.char(tier)
  local from = 1
  while true do
    local at = string.find(M.Q.all, mine, from, true)
    if not at then
      return
    elseif (at - 9) % PLACE_BYTES == 0 then
      M.remove_place(at - 8)
      return
    end
    from = at + 1
  end
end

-- Takes a driver's place, or keeps it, with so many jobs and no offer outstanding.
function M.keep_place(driver, tier, since, jobs)
  M.leave_place(driver, tier)
  if jobs <= 0 then
    return
  end
  M.load_places()
  local low, high = 0, #M.Q.all / PLACE_BYTES
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other, other_driver, other_tier = struct.unpack('<dc32B', M.Q.all, middle * PLACE_BYTES + 1)
    local before = other < since
      or other == since and (other_driver < driver or other_driver == driver and other_tier < tier)
    if before then
      low = middle + 1
    else
      high = middle
    end
  end
  local place = struct.pack(PLACE, since, driver, tier, jobs, 0, M.now + LAPSES)
  M.Q.lapse = M.Q.all == '' and M.now + LAPSES or math.min(M.Q.lapse, M.now + LAPSES)
  M.Q.all = string.sub(M.Q.all, 1, low * PLACE_BYTES) .. place .. string.sub(M.Q.all, low * PLACE_BYTES + 1)
  M.Q.changed = true
end

function M.drop_lapsed()
  if M.Q.all == '' or M.now < M.Q.lapse then
    return
  end
  local next_lapse = EXACT
  local from = 1
  while from <= #M.Q.all do
    local _, _, _, _, _, lapses = struct.unpack(PLACE, M.Q.all, from)
    if lapses <= M.now then
      M.remove_place(from)
    else
      next_lapse = math.min(next_lapse, lapses)
      from = from + PLACE_BYTES
    end
  end
  M.Q.lapse, M.Q.changed = next_lapse, true
end

-- How many jobs wait in all.
function M.jobs_waiting()
  if not M.get('q') and not M.Q then
    return 0
  end
  M.load_places()
  M.drop_lapsed()
  local jobs = 0
  for from = 1, #M.Q.all, PLACE_BYTES do
    local _, _, _, waiting = struct.unpack(PLACE, M.Q.all, from)
    jobs = jobs + waiting
  end
  return jobs
end

-- Offers room to the oldest places that began before `before`, as far as more of a tier fits beyond what was offered
-- already. One whose message reaches no one is passed over in the same step.
function M.offer(before, most, except)
  if not M.P or not M.P.leased or not M.Q and not M.get('q') then
    return
  end
  if M.paused_ms() > 0 or M.safe_start_left() > 0 then
    return
  end
  M.load_places()
  M.drop_lapsed()
  local full, open = {}, 0
  for tier = 1, #M.P.classes + 1 do
    full[tier] = M.room(tier, M.Q.offered) == 0
    open = open + (full[tier] and 0 or 1)
  end
  local from = 1
  while open > 0 and most > 0 and from <= #M.Q.all do
    local since, driver, tier, jobs, offered, lapses = struct.unpack(PLACE, M.Q.all, from)
    if since >= before then
      return
    end
    if not full[tier] and driver ~= except and offered < jobs then
      local left = M.room(tier, M.Q.offered)
      local count = math.min(left, jobs - offered, most)
      if count > 0 then
        local class = M.P.classes[tier] and M.P.classes[tier][1] or ''
        local reached = M.say(M.key .. ':' .. driver, string.format('room %.0f %s', count, class))
        if reached > 0 then
          M.Q.all = string.sub(M.Q.all, 1, from - 1) .. struct.pack(PLACE, since, driver, tier, jobs, offered + count, lapses)
            .. string.sub(M.Q.all, from + PLACE_BYTES)
          M.Q.offered[tier] = M.Q.offered[tier] + count
          M.Q.changed = true
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

function M.offer_room()
  M.offer(EXACT, EXACT, nil)
end

-- Offers room that was freed in this exchange to those that have waited clearly longer than the asking driver. Says what
-- room is theirs: that which was offered to them before as well, and which they have not come for yet.
function M.withhold(driver, waited, freed)
  local before = math.max(0, math.max(0, M.now - waited) - OWN_FIRST)
  if freed > 0 then
    M.offer(before, freed, driver)
  end
  if not M.Q and not M.get('q') then
    return nil
  end
  M.load_places()
  M.drop_lapsed()
  local any = 0
  for tier = 1, #M.Q.offered do
    any = any + M.Q.offered[tier]
  end
  if any == 0 then
    return nil
  end
  local theirs = {}
  for tier = 1, #M.Q.offered do
    theirs[tier] = 0
  end
  for from = 1, #M.Q.all, PLACE_BYTES do
    local since, other, tier, _, offered = struct.unpack(PLACE, M.Q.all, from)
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
function M.rate_waiting(driver, hint)
  local raw = M.get('w') or ''
  if raw == '' and not hint then
    return 0
  end
  local kept = {}
  for from = 1, #raw, WAITER_BYTES do
    local other, until_ms = struct.unpack(WAITER, raw, from)
    if other ~= driver and until_ms > M.now then
      kept[#kept + 1] = string.sub(raw, from, from + WAITER_BYTES - 1)
    end
  end
  local others = #kept
  if hint then
    kept[others + 1] = struct.pack(WAITER, driver, math.min(M.now + hint + LAPSES, EXACT))
  end
  local left = table.concat(kept)
  if left ~= raw then
    M.put('w', left ~= '' and left)
  end
  return others
end
