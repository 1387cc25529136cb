-- LIBRARY: what a library of functions is put together from, in the place of PARTS.
--
-- Its functions are made once, when it is loaded. What they keep in M lives on between calls: each call begins by setting
-- all of it anew. What the server offers is not there yet while a library is loaded, so the first call takes it in.

local function offered()
  return redis, struct, cmsgpack, string, math, table, unpack, pcall, error, type, ipairs, pairs, next, tonumber, tostring
end

local register = redis.register_function

local KEYS, ARGV
local redis, struct, cmsgpack, string, math, table, unpack, pcall, error, type, ipairs, pairs, next, tonumber, tostring

local M, C = { is_library = true }, {}

-- A function of the library: the server hands over its keys and arguments.
local function called(run)
  return function(keys, args)
    if not redis then
      redis, struct, cmsgpack, string, math, table, unpack, pcall, error, type, ipairs, pairs, next, tonumber, tostring =
        offered()
    end
    KEYS, ARGV = keys, args
    return run()
  end
end
