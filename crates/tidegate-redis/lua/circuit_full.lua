-- CIRCUIT without what takes memory, for a full server.

return M.step(function()
  return C.request(true)
end)
