// Runs one peer at one work: sets up, warms, says `ready`, waits for a line, works, prints one line of JSON.
//
// A peer exports what it can do:
//   semaphore({ url, key, limit })            -> { turns, close }    turns() -> turn; turn(work): acquire, work, release
//   limiter({ url, rules, points, interval }) -> { admit, close }    admit(key)
//   breaker()                                 -> { execute, close }
// A turn is one function, not an acquire and a release, because bottleneck takes jobs and lends nothing. Each task has
// a turn of its own, because an object of redis-semaphore serves one caller at a time.
import { createInterface } from "node:readline";
import { setImmediate as breathe, setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

const PEERS = ["redis-semaphore", "bottleneck", "rate-limiter-flexible", "opossum"];

// What a peer must export to do a work.
const NEEDS = { pairs: "semaphore", spans: "semaphore", rate: "limiter", execute: "breaker" };

// A rule that never denies: admissions are measured, not denials.
const ALWAYS = { points: 1_000_000_000, interval: 60 };

// A work that the peer cannot do is no fault: a suite leaves that cell empty.
const CANNOT = 64;
// A mistake in the arguments must not look like such a cell.
const MISUSED = 2;

const DEFAULTS = {
  redis: "redis://127.0.0.1:6379",
  key: "bench",
  tasks: "1",
  limit: "64",
  seconds: "2",
  "hold-ms": "0",
  "think-ms": "0",
  keys: "1",
  rules: "1",
};

function leave(code, message) {
  console.error(`contender: ${message}`);
  process.exit(code);
}

function number(options, name, { least, whole }) {
  const value = Number(options[name]);
  if (options[name] === "" || !Number.isFinite(value) || value < least || (whole && !Number.isSafeInteger(value))) {
    leave(MISUSED, `--${name} ${options[name]}: a ${whole ? "whole number" : "number"} of at least ${least} is needed`);
  }
  return value;
}

function read(argv) {
  let parsed;
  try {
    const known = Object.entries(DEFAULTS).map(([name, value]) => [name, { type: "string", default: value }]);
    parsed = parseArgs({ args: argv, options: Object.fromEntries(known), allowPositionals: true });
  } catch (error) {
    leave(MISUSED, error.message);
  }
  const { positionals, values } = parsed;
  const [peer, work] = positionals;
  if (positionals.length !== 2 || !PEERS.includes(peer) || !Object.hasOwn(NEEDS, work)) {
    leave(MISUSED, `usage: contender.mjs ${PEERS.join("|")} ${Object.keys(NEEDS).join("|")} [--option value]...`);
  }
  const count = { least: 1, whole: true };
  return {
    peer,
    work,
    url: values.redis,
    key: values.key,
    tasks: number(values, "tasks", count),
    limit: number(values, "limit", count),
    seconds: number(values, "seconds", { least: 0 }),
    hold: number(values, "hold-ms", { least: 0 }),
    think: number(values, "think-ms", { least: 0 }),
    keys: number(values, "keys", count),
    rules: number(values, "rules", count),
  };
}

const now = () => process.hrtime.bigint();
const after = (seconds) => now() + BigInt(Math.round(seconds * 1e9));
const secondsSince = (start) => Number(now() - start) / 1e9;
const nothing = async () => {};

// Counts what `tasks` concurrent loops of `step` do until the time is over.
async function counted(tasks, seconds, step) {
  const start = now();
  const end = after(seconds);
  let count = 0;
  const loop = async (task) => {
    while (now() < end) {
      await step(task);
      count += 1;
    }
  };
  await Promise.all(Array.from({ length: tasks }, (_, task) => loop(task)));
  return { count, seconds: secondsSince(start) };
}

async function pairs(offer, options) {
  const semaphore = await offer(options);
  const turns = Array.from({ length: options.tasks }, () => semaphore.turns());
  await turns[0](nothing);
  return {
    run: () => counted(options.tasks, options.seconds, (task) => turns[task](nothing)),
    close: semaphore.close,
  };
}

async function spans(offer, { hold, think, tasks, seconds, ...options }) {
  const semaphore = await offer(options);
  const turns = Array.from({ length: tasks }, () => semaphore.turns());
  await turns[0](nothing);
  const run = async () => {
    const seen = [];
    const start = now();
    const end = after(seconds);
    const loop = async (task) => {
      while (now() < end) {
        const asked = now();
        let granted;
        let released;
        await turns[task](async () => {
          granted = now();
          if (hold > 0) await sleep(hold);
          released = now();
        });
        seen.push([task, asked, granted, released]);
        if (think > 0) await sleep(think);
      }
    };
    await Promise.all(Array.from({ length: tasks }, (_, task) => loop(task)));
    return { seconds: secondsSince(start), spans: seen };
  };
  return { run, close: semaphore.close };
}

async function rate(offer, { url, key, keys, rules, tasks, seconds }) {
  const limiter = await offer({ url, rules, ...ALWAYS });
  const pick = keys === 1 ? () => key : () => `${key}-${Math.floor(Math.random() * keys)}`;
  await limiter.admit(pick());
  return { run: () => counted(tasks, seconds, () => limiter.admit(pick())), close: limiter.close };
}

// How many calls go by between two looks at the clock, so that the look is not measured. Timers get their turn there
// too: a loop of promises alone would starve the one by which a breaker moves its window.
const STRIDE = 1024;

async function execute(offer, { seconds }) {
  const breaker = await offer();
  const stride = async () => {
    for (let call = 0; call < STRIDE; call += 1) await breaker.execute();
    await breathe();
  };
  for (let round = 0; round < 20; round += 1) await stride();
  const run = async () => {
    const strides = await counted(1, seconds, stride);
    return { ...strides, count: strides.count * STRIDE };
  };
  return { run, close: breaker.close };
}

function go() {
  return new Promise((resolve) => {
    const lines = createInterface({ input: process.stdin });
    const gone = () => leave(1, "the input ended before it said go");
    lines.once("close", gone);
    lines.once("line", () => {
      lines.off("close", gone);
      lines.close();
      process.stdin.destroy();
      resolve();
    });
  });
}

// `JSON.stringify` refuses a BigInt, and a double would round the nanoseconds of a host that is up for long.
function json(result) {
  if (!result.spans) return JSON.stringify(result);
  const spans = result.spans.map((span) => `[${span.join(",")}]`).join(",");
  return `{"seconds":${result.seconds},"spans":[${spans}]}`;
}

async function main() {
  const options = read(process.argv.slice(2));
  const peer = await import(`./peers/${options.peer}.mjs`);
  const offer = peer[NEEDS[options.work]];
  if (!offer) leave(CANNOT, `${options.peer} cannot do ${options.work}`);
  const { run, close } = await { pairs, spans, rate, execute }[options.work](offer, options);
  console.log("ready");
  await go();
  console.log(json(await run()));
  await close();
}

main().catch((error) => leave(1, error.stack ?? String(error)));
