-- EXCHANGE, run; where the server is full, once more without what takes memory.

M.read_request()
return M.step(M.exchange, true)
