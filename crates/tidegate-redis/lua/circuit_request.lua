-- CIRCUIT: all that a process has to say about one, in one step.
--
-- KEYS  1 the circuit
-- ARGV  1 the request: { digest of the policy that it was checked against, offer or false, whether it was refused, driver, acts };
--         an act is { its number below, ... }
-- reply { 0, head, view, what came of each act } packed, or
--       { 1, policy or false }: check the request against that one, and ask again; nothing was done
--       { 3, layout }: newer layout    { 4, what }: corrupt, and cleared

local REPORT <const> = 0
local OPENS <const> = 1
local RECENT <const> = 2
local ELECT <const> = 3
local RENEWS <const> = 4
local RESIGN <const> = 5
local VERDICT <const> = 6
local SCHEDULE <const> = 7
local TRIAL <const> = 8
local RENEW_TRIAL <const> = 9
local GIVE_BACK <const> = 10
local TRIAL_RESULT <const> = 11

function C.act(driver, act)
  local kind = act[1]
  if kind == REPORT then
    return C.report(driver, act[2], act[3], act[4])
  elseif kind == RENEWS then
    return C.renew(driver, act[2])
  elseif kind == ELECT then
    return C.elect(driver)
  elseif kind == TRIAL then
    return C.try_half_open(driver, act[2])
  elseif kind == TRIAL_RESULT then
    return C.half_open_result(driver, act[2], act[3])
  elseif kind == VERDICT then
    return C.check_verdict(driver, act[2], act[3], act[4], act[5], act[6])
  elseif kind == RECENT then
    return { M.S.generation, C.recent() }
  elseif kind == OPENS then
    return C.strategy_opens(act[2])
  elseif kind == SCHEDULE then
    return C.schedule(act[2], act[3], act[4])
  elseif kind == RENEW_TRIAL then
    return C.renew_trial(driver, act[2])
  elseif kind == GIVE_BACK then
    return C.give_back(driver, act[2])
  elseif kind == RESIGN then
    return C.resign(driver, act[2])
  end
  error({ refused = 'an act of no known kind' })
end

-- Whether what is asked takes memory: reports, permits of trials, and a policy.
function C.takes_memory(offered, acts)
  if not M.P or offered and offered[3] > M.P.revision then
    return true
  end
  for _, act in ipairs(acts) do
    if act[1] == REPORT or act[1] == TRIAL then
      return true
    end
  end
  return false
end

function C.request(on_full)
  local base, offered, is_refused, driver, acts = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
  C.begin(KEYS[1], driver)
  if M.is_unchecked(base, offered) then
    return cmsgpack.pack({ 1, M.P and M.fields.p })
  end
  local takes = not is_refused and C.takes_memory(offered, acts)
  if on_full and takes then
    error({ refused = 'OOM of a circuit: reports, trials and policies take memory' })
  end
  local did = {}
  if is_refused then
    C.finish(true)
    return cmsgpack.pack({ 0, C.head(), false, did })
  end
  C.adopt(offered)
  local generation, attempt, next_ms = C.told()
  local led = M.S.leads_until > M.now
  for at, act in ipairs(acts) do
    did[at] = C.act(driver, act)
  end
  local generation_now, attempt_now, next_now = C.told()
  if generation ~= generation_now or attempt ~= attempt_now or next_ms ~= next_now or led and M.S.leads_until <= M.now then
    C.tell()
  end
  C.finish(not takes)
  M.publish()
  return cmsgpack.pack({ 0, C.head(), C.view(), did })
end
