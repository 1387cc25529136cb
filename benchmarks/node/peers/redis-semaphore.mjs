// redis-semaphore: a sorted set of holders, which waiting callers poll.
import { Semaphore } from "redis-semaphore";
import { connect } from "../redis.mjs";

// Nobody gives up waiting. The rest is the default: a look every 10 ms, a lease of 10 s, renewed after 8 s. Without
// renewal it was no faster.
const SETTING = { acquireTimeout: 3_600_000 };

export async function semaphore({ url, key, limit }) {
  const client = await connect(url);
  return {
    // One object is one acquirer, and may be used again. All share the client.
    turns() {
      const own = new Semaphore(client, key, limit, SETTING);
      return async (work) => {
        await own.acquire();
        await work();
        await own.release();
      };
    },
    close: () => client.disconnect(),
  };
}
