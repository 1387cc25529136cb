-- REQUEST: what an exchange asks; see `exchange.lua`.

local R = {}

function M.read_request()
  R.high, R.low, R.not_after, R.known, R.releases, R.settlements, R.observations, R.renewals, R.renewal_classes, R.hand_overs,
    R.acquires, R.queues, R.base, R.offered, R.initial, R.driver, R.owner, R.whole, R.depends = cmsgpack.unpack(ARGV[1])
end
