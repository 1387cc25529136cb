// opossum: a breaker within one process.
import CircuitBreaker from "opossum";

// No timer per call, because no peer here has one. No snapshots, as its docs advise to whoever does not listen to
// them: each one sorts the latency of every call of the last ten seconds.
const SETTING = { timeout: false, enableSnapshots: false };

export async function breaker() {
  const circuit = new CircuitBreaker(async () => {}, SETTING);
  return {
    execute: () => circuit.fire(),
    close: () => circuit.shutdown(),
  };
}
