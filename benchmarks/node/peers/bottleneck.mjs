// bottleneck in clustering mode: a queue in each process, the count of running jobs in Redis, a message when one ends.
import Bottleneck from "bottleneck";
import { connect } from "../redis.mjs";

// Its README strongly recommends an expiration on every job, so that the jobs of a dead process free their places.
// It cost nothing that could be measured.
const JOB = { expiration: 10_000 };

function fail(error) {
  console.error(`bottleneck: ${error.stack ?? error}`);
  process.exit(1);
}

export async function semaphore({ url, key, limit }) {
  const client = await connect(url);
  const connection = new Bottleneck.IORedisConnection({ client });
  connection.on("error", fail);
  // The first limiter of an id stores its settings for all, so another limit is another id. `clearDatastore` stays
  // off: it would wipe what a process that started a moment earlier has registered, and leave its queued jobs waiting.
  const limiter = new Bottleneck({ id: `${key}-${limit}`, connection, maxConcurrent: limit });
  limiter.on("error", fail);
  await limiter.ready();
  return {
    // The promise resolves after the place is given back, so a turn waits for both round trips, as with any peer.
    turns: () => (work) => limiter.schedule(JOB, work),
    async close() {
      await limiter.disconnect(false);
      await connection.disconnect(false);
    },
  };
}
