-- CIRCUIT, from one revision of its policy to the next. The same decisions as `carry` in `circuit.rs`.

function C.same(one, other)
  for at = 1, math.max(#one, #other) do
    if one[at] ~= other[at] then
      return false
    end
  end
  return true
end

-- Whether what is kept under one strategy is of use under another.
function C.fits(from, to)
  return from.strategy == to.strategy and from.size == to.size and from.duration == to.duration
end

function C.carry(to)
  local S, from = M.S, M.P
  if not C.fits(from, to) then
    C.clear_results()
  end
  -- Who was forgotten by now stays so, however far the other looks back.
  if S.known > 0 and from.span ~= to.span then
    C.survey()
    M.P = to
    C.survey()
  end
  M.P = to
  if S.attempt == 0 then
    return
  end
  if not C.same(from.recovery_parts, to.recovery_parts) then
    C.permits, S.succeeded = {}, 0
  end
  if not C.same(from.backoff, to.backoff) then
    local first = C.first_wait()
    if first >= 0 then
      S.next, S.wait = S.next >= 0 and math.min(S.next, M.now + first) or M.now + first, first
    end
  end
end
