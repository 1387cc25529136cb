-- CLOCK: the server's own time, and how long a key may live.

function M.clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

function M.lives(ms)
  return ms
end
