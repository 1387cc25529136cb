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

-- What is asked: a whole exchange, or a single part of one; a look where that was refused.
local EXCHANGE <const> = 1
local RENEW <const> = 2
local HAND_OVER <const> = 3
local LOOK <const> = 4
-- The kind of an acquire: with scopes; 0 is without.
local SCOPED <const> = 1
-- In the place of the number that wait: the acquire was refused already.
local REFUSED <const> = -1

-- Pins the member's policy where there is none, or a lower revision.
function M.adopt()
  if R.offered and (not M.P or R.offered[3] > M.P.revision) then
    M.install(R.offered, R.initial)
  end
  M.S.used = M.now
end

function M.release_step()
  if not M.P or #R.releases == 0 then
    return
  end
  local slots, releases = {}, R.releases
  for at = 1, #releases, 5 do
    if releases[at] >= 0 then
      slots[#slots + 1] = releases[at]
    end
  end
  M.fetch_leases(slots)
  local before = M.limit_now()
  local adaptive = M.P.adaptive
  for at = 1, #releases, 5 do
    local outcome, retry_after = releases[at + 3], releases[at + 4]
    local rest_ms = 0
    if adaptive and outcome == 1 then
      rest_ms = retry_after >= 0 and math.min(retry_after, adaptive[6]) or adaptive[8]
    end
    local was_live = M.release(releases[at], releases[at + 1], releases[at + 2], rest_ms)
    if adaptive then
      if outcome == 1 then
        M.throttled(adaptive)
      elseif was_live and outcome == 0 then
        M.success(adaptive)
      elseif was_live then
        M.tally(adaptive)
      end
    end
  end
  M.limit_moved(before)
end

function M.slot_denial(safe)
  if safe > 0 then
    return { safe, 1, 0 }
  end
  local ends = M.next_end()
  return { ends and math.max(ends - M.from_now, 1) or M.P.ttl, 1, 0 }
end

-- Notes demand and places after an acquire; says how many other drivers wait for a rate.
function M.after_acquire(tier, waiting, waited, granted, denied)
  local slots_short = denied and denied[2] == 1
  local left_waiting = waiting > granted
  if M.L and (slots_short or not denied and left_waiting and M.room(tier) == 0) then
    M.demand()
  end
  if slots_short and left_waiting then
    M.keep_place(R.driver, tier, math.max(0, M.now - waited), waiting - granted)
  elseif M.Q or M.fields.q then
    M.leave_place(R.driver, tier)
  end
  local hint = denied and denied[2] == 0 and left_waiting and denied[1] or nil
  return (hint or M.fields.w) and M.rate_waiting(R.driver, hint) or 0
end

-- How many leases the asking driver may take in a tier, and what is left of a safe start.
function M.space_for(tier, waited, freed)
  local withheld = (M.Q or M.fields.q) and M.withhold(R.driver, waited, freed) or nil
  local safe = M.safe_start_left()
  if not M.P.leased then
    return EXACT, safe
  end
  return safe > 0 and 0 or M.room(tier, withheld), safe
end

function M.acquire_step(acquire, freed)
  local class, waiting, waited, _, runs = unpack(acquire, 1, 5)
  M.adopt()
  local left = M.paused_ms()
  if left > 0 then
    return { 0, 0, {}, {}, { left, 0, 0 }, 0 }, 0
  end
  local tier = M.tier_of(M.P, class)
  local space, safe = M.space_for(tier, waited, freed)
  local marks = {}
  for index, rule in ipairs(M.P.rules) do
    local level = M.own_level(index)
    M.advance_to(rule, level, M.now)
    marks[index] = level.spent
  end
  local granted, first_fence, slots, denied = 0, 0, {}, false
  for _, run in ipairs(runs) do
    local count, costs = run[1], run[2]
    local fit = #costs > 0 and M.fitting(costs, count) or count
    local takes = math.min(fit, space - granted)
    if takes > 0 then
      if #costs > 0 then
        M.spend_all(costs, takes)
      end
      if M.P.leased then
        local fence = M.grant_all(tier, R.owner, takes, slots)
        if first_fence == 0 then
          first_fence = fence
        end
      end
      granted = granted + takes
    end
    if takes < count then
      denied = #costs > 0 and M.rate_denial(costs) or M.slot_denial(safe)
      break
    end
  end
  local others = M.after_acquire(tier, waiting, waited, granted, denied)
  return { granted, first_fence, slots, marks, denied, others }, granted
end

function M.asks_for_leases()
  if #R.hand_overs > 0 or R.whole == HAND_OVER then
    return true
  end
  for _, acquire in ipairs(R.acquires) do
    if acquire[2] ~= REFUSED then
      return true
    end
  end
  return false
end

function M.remember(answer)
  -- Where nothing is kept of the id, nothing was done that must not be done twice.
  if not R.number or M.S.epoch == 0 then
    return
  end
  local kept = math.max(M.P and M.P.ttl or 0, 60000)
  local high, low, until_ms = R.number[1], R.number[2], M.now + kept
  local record = struct.pack('<ddddd', M.S.epoch, high, low, until_ms, 1 + M.S.epoch + high + low + until_ms)
    .. redis.sha1hex(answer) .. answer
  M.ask('SET', KEYS[2], record, 'PX', string.format('%.0f', M.lives(kept)))
end

function M.exchange(takes_memory)
  M.begin()
  if R.number then
    local record = M.ask('GET', KEYS[2])
    local last = { 0, 0 }
    if record then
      local epoch, high, low, until_ms, sum, from = struct.unpack('<ddddd', record)
      if sum ~= 1 + epoch + high + low + until_ms or epoch % 1 + high % 1 + low % 1 + until_ms % 1 ~= 0 then
        M.corrupt('answer')
      end
      if epoch == M.S.epoch and until_ms > M.now then
        last = { high, low }
        if high == R.number[1] and low == R.number[2] then
          local answer = string.sub(record, from + 40)
          if redis.sha1hex(answer) ~= string.sub(record, from, from + 39) then
            M.corrupt('answer')
          end
          M.finish(true)
          M.publish()
          return answer
        end
      end
    end
    local is_lower = R.number[1] < last[1] or R.number[1] == last[1] and R.number[2] < last[2]
    if is_lower or R.not_after >= 0 and M.S.last > R.not_after then
      M.finish(true)
      M.publish()
      return cmsgpack.pack({ 2, R.number, last })
    end
  end
  local lost = R.known and M.restore_step()
  local asks = M.asks_for_leases()
  if R.depends and M.is_unchecked(R.base, R.offered) then
    return cmsgpack.pack({ 1, M.P and M.fields.p })
  end
  local held = M.S.held
  M.release_step()
  local freed = math.max(0, held - M.S.held)
  local settled = #R.settlements > 0 and M.settle_step() or {}
  local observed = #R.observations > 0 and M.observe_step() or {}
  if R.whole == EXCHANGE or R.whole == RENEW then
    M.S.used = M.P and M.now or M.S.used
  end
  local renewed = #R.renewals > 0 and M.renew_step(lost) or {}
  local hands_over = #R.hand_overs > 0 or R.whole == HAND_OVER
  local handed = hands_over and takes_memory and M.hand_over_step() or {}
  if R.whole == EXCHANGE and (M.Q or M.fields.q or #R.queues > 0) then
    M.queues_step()
  end
  local acquired = {}
  for at, acquire in ipairs(R.acquires) do
    if acquire[2] == REFUSED or not takes_memory then
      acquired[at] = false
    else
      local granted
      acquired[at], granted = (acquire[4] == SCOPED and M.scoped_step or M.acquire_step)(acquire, freed)
      freed = math.max(0, freed - granted)
    end
  end
  if R.whole ~= LOOK and (M.Q or M.fields.q) then
    M.offer_room()
  end
  local answer = cmsgpack.pack({ 0, M.head(), settled, observed, renewed, handed, acquired })
  M.finish(not (asks and takes_memory))
  M.remember(answer)
  M.publish()
  return answer
end
