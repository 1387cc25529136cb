-- EXCHANGE without what takes memory, for a full server.

M.read_request()
return M.step(M.exchange, false)
