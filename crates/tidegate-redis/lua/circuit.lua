-- CIRCUIT: what is kept of the circuit of an id, and what ends and begins in it. The same decisions as `circuit.rs` of
-- `tidegate-core`, with its names.
--
-- It is a hash of its own, with a clock of its own: neither the id nor its circuit is lost with the other. M.S.generation is
-- 0 where there is none. Moments are kept in the circuit's own time, as those of an id are; generations and fences are none.

local CLOSED <const> = 0
local OPEN <const> = 1

-- What changed it.
local BY_CHECK <const> = 2
local BY_TRIALS <const> = 3
local BY_OPERATOR <const> = 4

local CONSECUTIVE <const> = 0
local COUNT <const> = 1
local SAMPLING <const> = 2
local CUSTOM <const> = 3

local HEALTH_CHECK <const> = 0
local HALF_OPEN <const> = 1

local CONSTANT <const> = 0
local EXPONENTIAL <const> = 1

-- For how long a process counts as heard.
local HEARD <const> = 10000
-- How many results a block has.
local BLOCK <const> = 32
local MILLION <const> = 1000000
local NOBODY <const> = string.rep('\0', 16)
local CIRCUIT <const> = '<dddddddddddddddddddddddddddc16'

-- What a field says, with what tells that it was damaged, or is another's.
function C.sealed(field, body)
  return string.sub(redis.sha1hex(field .. body), 1, 8) .. body
end

function C.unsealed(field, raw)
  local body = string.sub(raw, 9)
  if string.sub(redis.sha1hex(field .. body), 1, 8) ~= string.sub(raw, 1, 8) then
    M.corrupt(field)
  end
  return body
end

-- Attempt 0 is that of a closed circuit. Of `leads` it is the leader's fence, of `front` what `circuit_results` keeps of the
-- oldest result, and of `known` how many processes are told apart.
function C.nothing(last, offset)
  return {
    last = last, offset = offset, expires = 0, used = 0, fence = 0, generation = 0, since = 0, why = 0, stirred = -1,
    attempt = 0, wait = -1, next = -1, out = 0, succeeded = 0, leads = 0, leads_until = 0, successes = 0, failures = 0,
    head = 0, tail = 0, front = 0, front_last = 0, known = 0, heard = 0, heard_from = 0, failing = 0, failing_from = 0,
    leader = NOBODY,
  }
end

function C.read_state(raw)
  local last, offset, expires, used, fence, generation, since, why, stirred, attempt, wait, next, out, succeeded, leads,
    leads_until, successes, failures, head, tail, front, front_last, known, heard, heard_from, failing, failing_from, leader =
    struct.unpack(CIRCUIT, C.unsealed('s', raw))
  return {
    last = last, offset = offset, expires = expires, used = used, fence = fence, generation = generation, since = since,
    why = why, stirred = stirred, attempt = attempt, wait = wait, next = next, out = out, succeeded = succeeded,
    leads = leads, leads_until = leads_until, successes = successes, failures = failures, head = head, tail = tail,
    front = front, front_last = front_last, known = known, heard = heard, heard_from = heard_from, failing = failing,
    failing_from = failing_from, leader = leader,
  }
end

function C.written_state()
  local S = M.S
  return C.sealed('s', struct.pack(CIRCUIT, S.last, S.offset, S.expires, S.used, S.fence, S.generation, S.since, S.why,
    S.stirred, S.attempt, S.wait, S.next, S.out, S.succeeded, S.leads, S.leads_until, S.successes, S.failures, S.head, S.tail,
    S.front, S.front_last, S.known, S.heard, S.heard_from, S.failing, S.failing_from, S.leader))
end

-- The parts of a policy by name.
function C.policy_of(parts)
  local strategy, recovery, backoff = parts[4], parts[5], parts[6]
  local known = {
    revision = parts[1], leader_ttl = parts[2], min_reporters = parts[3], strategy = strategy[1], recovery = recovery[1],
    backoff = backoff, strategy_parts = strategy, recovery_parts = recovery, span = HEARD,
  }
  if strategy[1] == COUNT then
    known.threshold, known.size, known.minimum_calls = strategy[2], strategy[3], strategy[4]
  elseif strategy[1] == SAMPLING then
    known.threshold, known.duration, known.minimum_calls = strategy[2], strategy[3], strategy[4]
    known.span = strategy[3]
  elseif strategy[1] == CUSTOM then
    known.size = strategy[2]
  else
    known.threshold = strategy[2]
  end
  if recovery[1] == HALF_OPEN then
    known.permits, known.permit_ttl = recovery[2], recovery[3]
  else
    known.idle = recovery[3]
  end
  return known
end

-- Reads what is kept under a key, and settles what now is. `driver` is who is to speak.
function C.begin(key, driver)
  M.key, M.channel, M.suspects = key, string.sub(key, 1, -3) .. ':all', { key }
  M.changed, M.pushes, M.is_clean = {}, {}, false
  C.permits, C.blocks, C.fresh, C.back, C.me, C.me_at = false, {}, {}, false, false, driver and 'n' .. driver
  local values = M.ask('HMGET', key, 'v', 's', 'd', 'p', C.me_at or 'n')
  local fields = { v = values[1], s = values[2], d = values[3], p = values[4] }
  fields[C.me_at or 'n'] = values[5]
  M.fields = fields
  local layout = fields.v and tonumber(fields.v)
  if layout and layout > LAYOUT then
    error({ layout = layout })
  end
  if fields.s then
    if not (layout and fields.d and fields.p) then
      M.corrupt('circuit')
    end
    M.S = C.read_state(fields.s)
    if not M.policies[fields.p] then
      M.check_policy()
    end
    M.P = M.known_policy(fields.p, C.policy_of)
  elseif layout or fields.d or fields.p then
    M.corrupt('circuit')
  else
    M.S, M.P = C.nothing(0, 0), false
  end
  C.kept_tail = M.S.tail
  M.settle_clock()
  if M.P and M.now - M.S.used >= PIN_TTL then
    C.forget()
  end
end

function C.forget()
  M.ask('DEL', M.key)
  M.fields, M.changed = { p = false, d = false, s = false, v = false }, {}
  M.S, M.P = C.nothing(M.S.last, M.S.offset), false
  C.me, C.permits = false, false
end

-- Writes what was changed, as M.write_fields does.
function C.finish(frees)
  local S = M.S
  if S.generation == 0 then
    return
  end
  if C.me then
    C.keep_reporter()
  end
  if C.back or next(C.fresh) then
    C.keep_results()
  end
  if C.permits then
    C.keep_trials()
  end
  local ttl = nil
  if S.expires < S.used + PIN_TTL then
    S.expires = S.used + PIN_TTL + DAY
    ttl = M.lives(S.expires - M.now + DAY)
  end
  M.put('s', C.written_state())
  M.write_fields(frees, ttl)
end

-- ---- what others see ---------------------------------------------------------------------------------------------------

-- A moment of the store's clock.
function C.shown(moment)
  return moment < 0 and -1 or math.max(0, moment - M.S.offset)
end

-- The same as `Head`, as far as it is of a circuit.
function C.head()
  return { M.now_us, M.P and M.P.revision or -1, M.stepped_back }
end

-- Generation, why, since when, attempt, when that or the idle probe comes, and the leader with fence and end.
function C.view()
  local S, next_ms = M.S, -1
  if S.attempt > 0 then
    next_ms = C.shown(S.next)
  elseif M.P.recovery == HEALTH_CHECK and M.P.idle >= 0 then
    next_ms = C.idle_at()
  end
  local leads = S.leads_until > M.now
  return {
    S.generation, S.why, C.shown(S.since), S.attempt, next_ms, leads and S.leader, leads and S.leads or 0,
    leads and C.shown(S.leads_until) or 0,
  }
end

-- What all are told of when it changes.
function C.told()
  return M.S.generation, M.S.attempt, M.S.next
end

function C.tell()
  local view = C.view()
  local leader = view[6] and string.gsub(view[6], '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end) or '-'
  M.tell_all(string.format('circuit %.0f %.0f %.0f %.0f %.0f %.0f %s %.0f %.0f', M.now_us, view[1], view[2], view[3], view[4],
    view[5], leader, view[7], view[8]))
end

-- ---- changes -----------------------------------------------------------------------------------------------------------

-- Whether a moment lies in the last so many milliseconds.
function C.is_within(moment, span)
  return M.now - moment < span
end

-- The wait before attempt 1; -1 where a process has to say it.
function C.first_wait()
  local backoff = M.P.backoff
  return (backoff[1] == CONSTANT or backoff[1] == EXPONENTIAL) and backoff[2] or -1
end

-- The wait after another.
function C.wait_after(wait)
  local backoff = M.P.backoff
  if backoff[1] ~= EXPONENTIAL then
    return C.first_wait()
  end
  -- In two parts, so that neither product passes 2^53.
  wait = math.min(wait, backoff[4])
  local rest = wait % MILLION
  return math.min((wait - rest) / MILLION * backoff[3] + math.ceil(rest * backoff[3] / MILLION), backoff[4])
end

-- An attempt that comes after a wait, without trials.
function C.attempt(number, wait)
  local S = M.S
  S.attempt, S.wait, S.next, S.succeeded = number, wait, wait >= 0 and M.now + wait or -1, 0
  if S.out > 0 or C.permits then
    C.permits = {}
  end
end

function C.attempt_failed()
  local S = M.S
  C.attempt(math.min(S.attempt + 1, LAST), S.wait >= 0 and C.wait_after(S.wait) or C.first_wait())
end

function C.change(to, why)
  local S = M.S
  if to == OPEN then
    C.attempt(1, C.first_wait())
  else
    C.attempt(0, -1)
  end
  S.generation, S.since, S.why, S.failing = math.min(S.generation + 1, LAST), M.now, why, 0
  C.clear_results()
  return { to, why, S.generation }
end

-- The results are in blocks `b0`, `b1`, ..., of which `circuit_results` knows more.
function C.clear_results()
  local S = M.S
  for number = math.floor(S.head / BLOCK), S.tail > S.head and math.floor((S.tail - 1) / BLOCK) or -1 do
    M.put(string.format('b%.0f', number), false)
  end
  C.blocks, C.fresh, C.back, C.kept_tail = {}, {}, false, 0
  S.successes, S.failures, S.head, S.tail, S.front, S.front_last = 0, 0, 0, 0, 0, 0
end

function C.next_fence()
  local S = M.S
  S.fence = math.min(math.max(S.fence + 1, M.now - S.offset), LAST)
  return S.fence
end

-- Pins a policy { blob, digest, revision } where there is none, or a lower revision.
function C.adopt(offered)
  local S = M.S
  if not M.P then
    M.P = M.known_policy(offered[1], C.policy_of)
    S.generation, S.since = math.max(M.now - S.offset, 1), M.now
    M.put('v', LAYOUT)
  elseif offered and offered[3] > M.P.revision then
    C.carry(M.known_policy(offered[1], C.policy_of))
  else
    offered = false
  end
  if offered then
    M.put('p', offered[1])
    M.put('d', offered[2])
  end
  S.used = M.now
end

-- ---- the leader --------------------------------------------------------------------------------------------------------

function C.leads(driver, fence)
  local S = M.S
  return S.leads_until > M.now and S.leader == driver and S.leads == fence
end

-- Fence and end for the leader; for another how long that one still leads.
function C.elect(driver)
  local S = M.S
  if S.leads_until <= M.now then
    S.leader, S.leads, S.leads_until = driver, C.next_fence(), 0
  elseif S.leader ~= driver then
    return S.leads_until - M.now
  end
  S.leads_until = math.max(S.leads_until, M.now + M.P.leader_ttl)
  return { S.leads, C.shown(S.leads_until) }
end

function C.renew(driver, fence)
  local S = M.S
  if not C.leads(driver, fence) then
    return -1
  end
  S.leads_until = math.max(S.leads_until, M.now + M.P.leader_ttl)
  return C.shown(S.leads_until)
end

function C.resign(driver, fence)
  local held = C.leads(driver, fence)
  if held then
    M.S.leader, M.S.leads, M.S.leads_until = NOBODY, 0, 0
  end
  return held and 1 or 0
end

-- When the next idle probe comes, by the store's clock.
function C.idle_at()
  return C.shown(math.max(M.S.stirred, M.S.since)) + M.P.idle
end

-- 0 where it is stale, 1 where it was counted, or the change. `which` is the attempt to recover, or the moment of an idle probe.
function C.check_verdict(driver, fence, generation, is_idle, which, failed)
  local S, P = M.S, M.P
  if not C.leads(driver, fence) or generation ~= S.generation or P.recovery ~= HEALTH_CHECK then
    return 0
  elseif is_idle then
    if S.attempt > 0 or P.idle < 0 or which ~= C.idle_at() then
      return 0
    elseif failed then
      return C.change(OPEN, BY_CHECK)
    end
    S.stirred = M.now
  elseif S.attempt == 0 or which ~= S.attempt then
    return 0
  elseif failed then
    C.attempt_failed()
  else
    return C.change(CLOSED, BY_CHECK)
  end
  return 1
end

function C.schedule(generation, attempt, wait)
  local S = M.S
  if S.attempt == 0 or generation ~= S.generation or attempt ~= S.attempt then
    return -1
  end
  if S.next < 0 then
    C.attempt(attempt, wait)
  end
  return C.shown(S.next)
end
