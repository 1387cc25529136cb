-- CIRCUIT: who reports. The same decisions as `circuit/reporters.rs`.
--
-- A process has a field of its own, `n` and its 16 bytes: when it was heard, the number of its last report, its last failure
-- that counts (-1 for none) and the generation of that, and the sum of these and 1. Who there is, is in `w`. How many were
-- heard, and fail, is kept: it is so until the oldest of what it rests on is too old. Only then all are looked at.

local MOST_REPORTERS <const> = 1000
local REPORTER <const> = '<ddddd'

function C.read_reporter(raw)
  local heard, number, failed, of, sum = struct.unpack(REPORTER, raw)
  if sum ~= 1 + heard + number + failed + of or heard % 1 + number % 1 + failed % 1 + of % 1 ~= 0 then
    M.corrupt('reporter')
  end
  return { heard = heard, number = number, failed = failed, of = of }
end

function C.keep_reporter()
  local who = C.me
  M.put(C.me_at, struct.pack(REPORTER, who.heard, who.number, who.failed, who.of, 1 + who.heard + who.number + who.failed + who.of))
end

-- Whether it has a recent failure since the last change.
function C.is_failing(who)
  return who.failed >= 0 and who.of == M.S.generation and C.is_within(who.failed, M.P.span)
end

function C.directory()
  local S = M.S
  local names = S.known > 0 and C.unsealed('w', M.get('w') or M.corrupt('reporters')) or ''
  if #names ~= S.known * 16 then
    M.corrupt('reporters')
  end
  return names
end

function C.keep_directory(names)
  M.put('w', #names > 0 and C.sealed('w', names))
  M.S.known = #names / 16
end

-- Where a process is in the directory; nil where it is not.
function C.place_in(names, driver)
  for at = 1, #names, 16 do
    if string.sub(names, at, at + 15) == driver then
      return at
    end
  end
  return nil
end

-- Looks at all: counts them, forgets who counts in nothing any more, and gives the one that matters least, if any is left.
function C.survey()
  local S, names, fields = M.S, C.directory(), {}
  for at = 1, #names, 16 do
    fields[#fields + 1] = 'n' .. string.sub(names, at, at + 15)
  end
  M.fetch(fields)
  local left, least, least_at = {}, nil, nil
  S.heard, S.failing = 0, 0
  for _, field in ipairs(fields) do
    local who = field == C.me_at and C.me or C.read_reporter(M.fields[field] or M.corrupt('reporters'))
    local is_heard, is_failing = C.is_within(who.heard, HEARD), C.is_failing(who)
    if is_heard then
      S.heard_from = S.heard > 0 and math.min(S.heard_from, who.heard) or who.heard
      S.heard = S.heard + 1
    end
    if is_failing then
      S.failing_from = S.failing > 0 and math.min(S.failing_from, who.failed) or who.failed
      S.failing = S.failing + 1
    end
    if is_heard or is_failing then
      left[#left + 1] = string.sub(field, 2)
      if not least or C.matters_less(who, field, least, least_at) then
        least, least_at = who, field
      end
    else
      M.put(field, false)
    end
  end
  if #left < #fields then
    C.keep_directory(table.concat(left))
  end
  return least, least_at
end

-- It has no failure or the older one, and of these it has been silent for longer.
function C.matters_less(who, field, other, other_field)
  local one = who.of == M.S.generation and who.failed or -1
  local two = other.of == M.S.generation and other.failed or -1
  if one ~= two then
    return one < two
  elseif who.heard ~= other.heard then
    return who.heard < other.heard
  end
  for at = 2, 17 do
    local a, b = string.byte(field, at), string.byte(other_field, at)
    if a ~= b then
      return a < b
    end
  end
  return false
end

-- Makes room for one more.
function C.make_room()
  local least, field = C.survey()
  local S = M.S
  if S.known < MOST_REPORTERS then
    return
  end
  S.heard = S.heard - (C.is_within(least.heard, HEARD) and 1 or 0)
  S.failing = S.failing - (C.is_failing(least) and 1 or 0)
  M.put(field, false)
  local names = C.directory()
  local at = C.place_in(names, string.sub(field, 2))
  C.keep_directory(string.sub(names, 1, at - 1) .. string.sub(names, at + 16))
end

-- The process has been heard; whether this report of it is a new one.
function C.hear(driver, number)
  local S = M.S
  if not C.me then
    local raw = M.get(C.me_at)
    local who = raw and C.read_reporter(raw)
    if not who then
      if S.known >= MOST_REPORTERS then
        C.make_room()
      end
      local names = C.directory()
      if C.place_in(names, driver) then
        M.corrupt('reporter')
      end
      C.keep_directory(names .. driver)
    end
    if not who or not C.is_within(who.heard, HEARD) and not C.is_failing(who) then
      who = { heard = -HEARD, number = 0, failed = -1, of = 0 }
    end
    C.me = who
  end
  local who = C.me
  if not C.is_within(who.heard, HEARD) then
    S.heard_from = S.heard > 0 and S.heard_from or M.now
    S.heard = S.heard + 1
  end
  who.heard = M.now
  local is_new = number > who.number
  who.number = math.max(who.number, number)
  return is_new
end

-- The process, which was just heard, has a failure.
function C.fail()
  local S, who = M.S, C.me
  if not C.is_failing(who) then
    S.failing_from = S.failing > 0 and S.failing_from or M.now
    S.failing = S.failing + 1
  end
  who.failed, who.of = M.now, S.generation
end

-- How many were heard in the last 10 s.
function C.heard()
  local S = M.S
  if S.heard > 0 and not C.is_within(S.heard_from, HEARD) then
    C.survey()
  end
  return S.heard
end

-- How many have a recent failure.
function C.failing()
  local S = M.S
  if S.failing > 0 and not C.is_within(S.failing_from, M.P.span) then
    C.survey()
  end
  return S.failing
end

-- Whether so many processes have a recent failure as the policy asks for, of those that were heard; one is no condition.
function C.enough_fail()
  local needed = math.min(M.P.min_reporters, C.heard())
  return needed <= 1 or C.failing() >= needed
end
