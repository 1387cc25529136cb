// The one way in which a peer gets its client.
import { once } from "node:events";
import Redis from "ioredis";

// ioredis with its defaults: pipelining by itself made every peer slower here. Only a lost connection is not mended,
// because a benchmark that goes on after an outage reports the outage as the peer's speed.
export async function connect(url) {
  const client = new Redis(url, { retryStrategy: () => null });
  await once(client, "ready");
  return client;
}
