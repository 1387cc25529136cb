// rate-limiter-flexible: a counter with a TTL per key and rule.
import { RateLimiterRedis, RateLimiterUnion } from "rate-limiter-flexible";
import { connect } from "../redis.mjs";

export async function limiter({ url, rules, points, interval }) {
  const client = await connect(url);
  // Defaults. What else could be set would not make an admission faster and stay exact: the block in memory serves
  // denials, the insurance limiter serves outages, and the other client sends the text of the script each time.
  const each = Array.from(
    { length: rules },
    (_, rule) => new RateLimiterRedis({ storeClient: client, keyPrefix: `rule-${rule}`, points, duration: interval }),
  );
  // A union asks every rule in a call of its own, and takes nothing back from those that admitted if one denies.
  const all = rules === 1 ? each[0] : new RateLimiterUnion(...each);
  return {
    admit: (key) => all.consume(key),
    close: () => client.disconnect(),
  };
}
