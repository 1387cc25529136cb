-- CIRCUIT, run.

return M.step(function()
  return C.request(false)
end)
