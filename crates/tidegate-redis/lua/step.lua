-- STEP: what every script does around what is its own.

-- Whether the pin was without use for so long that it is forgotten. A level that is not at rest and a pause keep it.
local function is_outlived()
  if S.epoch == 0 or paused_ms() > 0 then
    return false
  elseif not P then
    return now - S.born >= PIN_TTL
  elseif now - S.used < PIN_TTL or S.held > 0 or now < S.levels_until then
    return false
  end
  for index, rule in ipairs(P.rules) do
    if not rule[9] and rests_at(rule, own_level(index)) > now then
      return false
    end
  end
  return true
end

-- Whether the policy is the one that was pinned.
local function check_policy()
  if redis.sha1hex(fields.p) ~= fields.d then
    corrupt('policy')
  end
end

-- Reads the state, settles what now is, and sweeps.
local function begin()
  cohorts, joined, own, identities, pushes, Q, L = {}, {}, {}, {}, {}, nil, false
  load_state()
  settle_clock()
  if P then
    if P.adaptive then
      L = read_limit(fields.l or corrupt('limit'))
    end
    if #S.tiers ~= #P.classes + 1 then
      corrupt('tiers')
    end
    -- Now and then, since it takes its time.
    if now % 64 == 0 then
      check_policy()
    end
    sweep_leases()
    if S.held > 0 and S.first == 0 and S.resting == 0 then
      corrupt('held')
    end
    if is_outlived() then
      forget_all()
      own = {}
    end
  elseif is_outlived() then
    forget_all()
  end
end

-- Writes all that was changed.
local function finish(frees)
  keep_levels()
  note_identities()
  keep_cohorts()
  if Q then
    keep_places()
  end
  write(frees)
  write_identities()
end

-- Answers 0 with the head and what `decide` says, or the number of what went wrong with what there is to know of it.
local function step(decide, again)
  local done, answer = pcall(decide)
  if done then
    return answer
  end
  if type(answer) ~= 'table' then
    answer = { corrupt = tostring(answer) }
  end
  if answer.refused then
    if again and string.find(answer.refused, 'OOM', 1, true) then
      return step(again)
    elseif not string.find(answer.refused, 'WRONGTYPE', 1, true) then
      return { err = answer.refused }
    end
    answer.corrupt = answer.refused
  end
  if answer.layout then
    return cmsgpack.pack({ 3, answer.layout })
  end
  if not answer.corrupt then
    return { err = tostring(answer.err or 'unknown') }
  end
  -- All that was looked at: what made no sense may be beside the id's own key.
  local cleared = redis.pcall('DEL', unpack(KEYS))
  if type(cleared) == 'table' and cleared.err then
    return cleared
  end
  return cmsgpack.pack({ 4, tostring(answer.corrupt) })
end
