-- CLOCK, for tests: the last argument is the time in microseconds, and keys outlive it.

local function clock()
  return tonumber(ARGV[#ARGV])
end

local function lives(ms)
  return math.max(ms, 3600000)
end
