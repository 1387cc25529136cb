-- HASH: a hash that is read once, changed in memory, and written at the end.
--
-- Nothing is written before everything is decided, so a step that fails has changed nothing. M.S has its numbers, M.P the
-- pinned policy, false where there is none; M.fields has fields as they are, M.changed those that are to be written.

local LAYOUT <const> = 1
local PIN_TTL <const> = 2592000000
local DAY <const> = 86400000
local EXACT <const> = 9007199254740992
local LAST <const> = 9007199254740991
local BEHIND_US <const> = 1000000
local MOST_POLICIES <const> = 16
local MOST_TEXTS <const> = 1024
-- A table that held more is not used again: it stays as large as it ever was.
local MOST_REUSED <const> = 256

M.changed, M.set = {}, {}

-- Asks the server; a refusal ends the step. It is not raised as `err`: of a table with that, the server's pcall leaves a text.
function M.ask(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    error({ refused = answer.err })
  end
  return answer
end

-- The same of an answer that is a table in any case, which is there already: what is asked most often takes no detour.
function M.heard(answer)
  if answer.err then
    error({ refused = answer.err })
  end
  return answer
end

function M.corrupt(what)
  error({ corrupt = what })
end

-- Whether a number that was read is a whole one from 0 to `most`: any other is told to nobody.
function M.is_whole(number, most)
  return number >= 0 and number <= most and number % 1 == 0
end

-- A field as it is; false where it is absent.
function M.get(field)
  local fields = M.fields
  local value = fields[field]
  if value == nil then
    value = M.ask('HGET', M.key, field)
    fields[field] = value
  end
  return value
end

-- Reads many fields at once.
function M.fetch(names)
  local fields, wanted, count = M.fields, {}, 0
  for at = 1, #names do
    local name = names[at]
    if fields[name] == nil then
      count = count + 1
      wanted[count] = name
    end
  end
  for from = 1, count, 4000 do
    local to = math.min(from + 3999, count)
    local values = M.ask('HMGET', M.key, unpack(wanted, from, to))
    for at = from, to do
      fields[wanted[at]] = values[at - from + 1]
    end
  end
end

function M.put(field, value)
  M.fields[field] = value
  M.changed[field] = value
end

-- A policy that was read is never changed. A library meets the same few again and again, so some of them are kept.
M.policies, M.policies_kept = {}, 0

-- A policy as `read` makes it of its parts.
function M.known_policy(blob, read)
  local known = M.policies[blob]
  if known then
    return known
  elseif M.policies_kept == MOST_POLICIES then
    M.policies, M.policies_kept = {}, 0
  end
  known = read(cmsgpack.unpack(blob))
  M.policies[blob], M.policies_kept = known, M.policies_kept + 1
  return known
end

-- Whether the policy is the one that was pinned.
function M.check_policy()
  local p = M.get('p')
  if not p or redis.sha1hex(p) ~= M.fields.d then
    M.corrupt('policy')
  end
end

-- Whether a request was checked against another policy than the one that is to decide: `base` is the digest of that one.
function M.is_unchecked(base, offered)
  if M.P and M.fields.d ~= base then
    M.check_policy()
    return true
  elseif M.P then
    return false
  end
  return base ~= '' or not offered
end

-- Settles what now is.
function M.settle_clock()
  local S, given = M.S, M.clock()
  if given > LAST then
    given = LAST
  end
  local last, stepped_back = S.last, 0
  if last < given then
    last = given
  elseif last - given > BEHIND_US then
    stepped_back = math.ceil((last - given) / 1000)
    S.offset = S.offset + stepped_back
    last = given
  end
  local part = last % 1000
  local now = (last - part) / 1000 + S.offset
  -- Nothing that is promised for a time ends before it: that counts from the next whole millisecond.
  S.last, M.now_us, M.stepped_back, M.now, M.from_now = last, last, stepped_back, now, part > 0 and now + 1 or now
end

-- Writes the fields that were changed, and how long the key lives where that is told. Where it only gives back or keeps
-- what is there (`frees`), a full server does it all the same: it refuses a script at its first write alone, and only one
-- that takes memory.
function M.write_fields(frees, ttl)
  local changed, set, del, sets, dels = M.changed, M.set, nil, 0, 0
  for field, value in next, changed do
    if value then
      set[sets + 1], set[sets + 2] = field, value
      sets = sets + 2
    else
      del = del or {}
      dels = dels + 1
      del[dels] = field
    end
    changed[field] = nil
  end
  if sets + dels > MOST_REUSED then
    M.changed, M.set = {}, {}
  end
  if frees and not M.is_library then
    M.ask('HDEL', M.key, 'x')
  end
  if sets > 0 and sets <= 4000 then
    local answer = redis.pcall('HSET', M.key, unpack(set, 1, sets))
    if type(answer) == 'table' then
      M.heard(answer)
    end
    sets = 0
  end
  for from = 1, sets, 4000 do
    M.ask('HSET', M.key, unpack(set, from, sets < from + 3999 and sets or from + 3999))
  end
  for from = 1, dels, 4000 do
    M.ask('HDEL', M.key, unpack(del, from, dels < from + 3999 and dels or from + 3999))
  end
  if ttl then
    M.ask('PEXPIRE', M.key, string.format('%.0f', ttl))
  end
end

-- Says something on a channel. From 7.0 on it goes where the keys are, and to no other server.
function M.say(channel, message)
  return M.ask((redis.REDIS_VERSION_NUM or 0) >= 458752 and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Notes a change that all are told of, once it is written.
function M.tell_all(message)
  M.pushes[#M.pushes + 1] = message
end

function M.publish()
  local pushes = M.pushes
  if #pushes == 0 then
    return
  end
  M.pushes = {}
  for _, message in ipairs(pushes) do
    M.say(M.channel or M.key .. ':all', message)
  end
end

-- Numbers as text, written out once each: that is slow. Those of a library live on, so not all are kept.
M.texts, M.texts_kept = {}, 0

function M.text_of(number)
  local text = M.texts[number]
  if not text then
    if M.texts_kept == MOST_TEXTS then
      M.texts, M.texts_kept = {}, 0
    end
    text = string.format('%.0f', number)
    M.texts[number], M.texts_kept = text, M.texts_kept + 1
  end
  return text
end

-- Answers 0 with the head and what `decide` says, or the number of what went wrong with what there is to know of it. Where the
-- server is full, it is asked once more without what takes memory, if it did with it.
function M.step(decide, takes_memory)
  local done, answer = pcall(decide, takes_memory)
  if done then
    return answer
  end
  if type(answer) ~= 'table' then
    answer = { corrupt = tostring(answer) }
  end
  if answer.refused then
    if takes_memory and string.find(answer.refused, 'OOM', 1, true) then
      return M.step(decide, false)
    elseif not string.find(answer.refused, 'WRONGTYPE', 1, true) then
      return { err = answer.refused }
    end
    answer.corrupt = answer.refused
  end
  if answer.layout then
    return cmsgpack.pack(3, answer.layout)
  end
  if not answer.corrupt then
    return { err = tostring(answer.err or 'unknown') }
  end
  -- All that was looked at: what made no sense may be beside the key itself.
  local cleared = redis.pcall('DEL', unpack(M.suspects))
  if type(cleared) == 'table' and cleared.err then
    return cleared
  end
  return cmsgpack.pack(4, tostring(answer.corrupt))
end
