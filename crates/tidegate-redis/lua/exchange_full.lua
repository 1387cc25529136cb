-- EXCHANGE without what takes memory, for a full server.

M.read_request()
return M.step(function()
  return M.exchange(false)
end)
