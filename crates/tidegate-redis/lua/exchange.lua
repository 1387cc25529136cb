-- EXCHANGE: all that a driver has for an id, in one step.
--
-- KEYS  1 the id, 2 the last answer to the driver, 3... levels of identities
-- ARGV  1 the request, its values packed one after another: number in two halves (false: it has none), not after, restore,
--         releases, settlements, observations, renewals, classes of the renewals, hand-overs, acquires, queues, digest of
--         the policy that it was checked against, offer, initial limit, driver, owner, what is asked, whether that depends
--         on the policy. What is empty is false. Releases are doubles, five for each.
-- reply 0, head, { settled, observed, renewed, handed over } or false, and each that was acquired, packed one after another, or
--       1, policy or false: check the request against that one, and ask again; nothing was done
--       2, number, last: too late    3, layout: newer layout    4, what: corrupt, and cleared

-- What is asked: a whole exchange, or a single part of one; a look where that was refused.
local EXCHANGE <const> = 1
local RENEW <const> = 2
local HAND_OVER <const> = 3
local LOOK <const> = 4
-- An acquire is { class, how many wait, since when, kind, then of each run how many jobs and what one costs by rule }. The kind
-- with scopes has its jobs in the place of the runs; 0 is without.
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

-- Says how many leases are fewer than before.
function M.release_step()
  if not M.P then
    return 0
  end
  local S, adaptive, releases = M.S, M.P.adaptive, R.releases
  local held, before = S.held, adaptive and M.L.value
  local at = 1
  -- A single one was read with the state.
  if #releases > 40 then
    local slots, count = {}, 0
    for from = 1, #releases, 40 do
      local slot = struct.unpack('<d', releases, from)
      if slot >= 0 then
        count = count + 1
        slots[count] = slot
      end
    end
    M.fetch_leases(slots)
  end
  while at < #releases do
    local slot, fence, epoch, outcome, retry_after
    slot, fence, epoch, outcome, retry_after, at = struct.unpack('<ddddd', releases, at)
    if not adaptive then
      M.free_live(slot, fence, epoch)
    else
      local rest_ms = 0
      if outcome == 1 then
        rest_ms = retry_after >= 0 and math.min(retry_after, adaptive[6]) or adaptive[8]
      end
      local was_live = M.release(slot, fence, epoch, rest_ms)
      if outcome == 1 then
        M.throttled(adaptive)
      elseif was_live and outcome == 0 then
        M.success(adaptive)
      elseif was_live then
        M.tally(adaptive)
      end
    end
  end
  if adaptive then
    M.limit_moved(before)
  end
  return held > S.held and held - S.held or 0
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
  local P = M.P
  local safe = P.safe_start and M.safe_start_left() or 0
  if not P.leased then
    return EXACT, safe
  end
  return safe > 0 and 0 or M.room(tier, withheld), safe
end

-- Answers { granted, first fence, others that wait, hint or -1, whether slots are short, number of the rule that denies, how
-- many marks, these, slots }, and says how many were granted.
function M.acquire_step(acquire, freed)
  local R = R
  local class, waiting, waited = acquire[1], acquire[2], acquire[3]
  M.adopt()
  local S, P = M.S, M.P
  if S.paused_until > M.now then
    return { 0, 0, 0, M.paused_ms(), 0, 0, 0 }, 0
  end
  local tier = class and M.tier_of(P, class) or #P.classes + 1
  local space, safe = M.space_for(tier, waited, freed)
  local rules = #P.rules
  -- With room for a slot or a mark.
  local reply = { 0, 0, 0, -1, 0, 0, rules, nil }
  if rules > 0 then
    M.mark_levels(reply, 7)
  end
  local granted, denied = 0, false
  for at = 5, #acquire, rules + 1 do
    local count = acquire[at]
    local takes = rules > 0 and M.fitting(acquire, at, count) or count
    if takes > space - granted then
      takes = space - granted
    end
    if takes > 0 then
      if rules > 0 then
        M.spend_all(acquire, at, takes)
      end
      if P.leased then
        local fence = M.grant_all(tier, R.owner, takes, reply)
        if granted == 0 then
          reply[2] = fence
        end
      end
      granted = granted + takes
    end
    if takes < count then
      denied = rules > 0 and M.rate_denial(acquire, at) or M.slot_denial(safe)
      reply[4], reply[5], reply[6] = denied[1], denied[2], denied[3]
      break
    end
  end
  reply[1], reply[3] = granted, M.after_acquire(tier, waiting, waited, granted, denied)
  return reply, granted
end

function M.asks_for_leases()
  if R.hand_overs or R.whole == HAND_OVER then
    return true
  end
  local acquires = R.acquires or {}
  for at = 1, #acquires do
    if acquires[at][2] ~= REFUSED then
      return true
    end
  end
  return false
end

function M.acquire_one(acquire, takes_memory, freed)
  if acquire[2] == REFUSED or not takes_memory then
    return false, 0
  end
  return (acquire[4] == SCOPED and M.scoped_step or M.acquire_step)(acquire, freed)
end

-- The record of the last answer: epoch, number in two halves, until when it counts, and the sum of these; the digest of the
-- answer, and the answer.
local RECORD <const> = '<ddddd'
local ANSWERED <const> = '<dddddc0c0'
-- The most drivers of an id whose last numbers a library keeps.
local MOST_DRIVERS <const> = 256

function M.remember(answer)
  local S, P = M.S, M.P
  local epoch, high, low = S.epoch, R.high, R.low
  -- Where nothing is kept of the id, nothing was done that must not be done twice.
  if epoch == 0 then
    return
  end
  local kept = P and P.ttl > 60000 and P.ttl or 60000
  local until_ms, key = M.now + kept, KEYS[2]
  local record =
    struct.pack(ANSWERED, epoch, high, low, until_ms, 1 + epoch + high + low + until_ms, redis.sha1hex(answer), answer)
  M.heard(redis.pcall('SET', key, record, 'PX', M.text_of(M.lives(kept))))
  local known = M.now_known
  if known then
    if not known.highs[key] then
      if known.drivers == MOST_DRIVERS then
        known.highs, known.lows, known.drivers = {}, {}, 0
      end
      known.drivers = known.drivers + 1
    end
    known.highs[key], known.lows[key] = high, low
  end
end

-- Whether it is known that the last answer to the driver was to an earlier request: the state is the one that was written with
-- it, or after it. Then it does not matter what that was.
function M.is_later(high, low)
  local known = M.now_known
  local last_high = known and known.highs[KEYS[2]]
  return last_high and (last_high < high or last_high == high and known.lows[KEYS[2]] < low)
end

-- The last answer to the driver: its number in two halves, and the answer where it is that to this request.
function M.last_answer()
  local record = M.ask('GET', KEYS[2])
  if not record then
    return 0, 0, nil
  end
  local epoch, high, low, until_ms, sum, from = struct.unpack(RECORD, record)
  if sum ~= 1 + epoch + high + low + until_ms or epoch % 1 + high % 1 + low % 1 + until_ms % 1 ~= 0 then
    M.corrupt('answer')
  end
  if epoch ~= M.S.epoch or until_ms <= M.now then
    return 0, 0, nil
  end
  if high ~= R.high or low ~= R.low then
    return high, low, nil
  end
  local answer = string.sub(record, from + 40)
  if redis.sha1hex(answer) ~= string.sub(record, from, from + 39) then
    M.corrupt('answer')
  end
  return high, low, answer
end

-- Ends a step in which nothing was done.
function M.say_only(answer)
  M.finish(true)
  M.publish()
  return answer
end

function M.exchange(takes_memory)
  local R = R
  local high, low, releases, acquires, whole = R.high, R.low, R.releases, R.acquires, R.whole
  M.begin(releases, acquires)
  if high then
    local last_high, last_low, answer = 0, 0, nil
    local too_late = R.not_after >= 0 and M.S.last > R.not_after
    if too_late or not M.is_later(high, low) then
      last_high, last_low, answer = M.last_answer()
    end
    if answer then
      return M.say_only(answer)
    end
    if too_late or high < last_high or high == last_high and low < last_low then
      return M.say_only(cmsgpack.pack(2, high, low, last_high, last_low))
    end
  end
  local lost = R.known and M.restore_step()
  local asks = (acquires or R.hand_overs or whole == HAND_OVER) and M.asks_for_leases()
  if R.depends and M.is_unchecked(R.base, R.offered) then
    return cmsgpack.pack(1, M.P and M.get('p'))
  end
  local freed = releases and M.release_step() or 0
  local settled = R.settlements and M.settle_step()
  local observed = R.observations and M.observe_step()
  if M.P and (whole == EXCHANGE or whole == RENEW) then
    M.S.used = M.now
  end
  local renewed = R.renewals and M.renew_step(lost)
  local handed = takes_memory and (R.hand_overs or whole == HAND_OVER) and M.hand_over_step()
  if whole == EXCHANGE and (R.queues or M.Q or M.fields.q) then
    M.queues_step()
  end
  local first, granted, others
  if acquires then
    first, granted = M.acquire_one(acquires[1], takes_memory, freed)
    for at = 2, #acquires do
      freed = math.max(0, freed - granted)
      others = others or {}
      others[at - 1], granted = M.acquire_one(acquires[at], takes_memory, freed)
    end
  end
  if whole ~= LOOK and (M.Q or M.fields.q) then
    M.offer_room()
  end
  local answer
  local done = (settled or observed or renewed or handed) and { settled, observed, renewed, handed }
  if others then
    answer = M.answer(done, first, unpack(others, 1, #acquires - 1))
  elseif acquires then
    answer = M.answer(done, first)
  else
    answer = M.answer(done)
  end
  M.finish(not (asks and takes_memory))
  if high then
    M.remember(answer)
  end
  M.publish()
  return answer
end
