// Graphile Worker on PostgreSQL, with Onward's stop-watch written out again: see postgres_peers.py.
//
//     node graphile_side.cjs prepare|bulk|drain URL JOBS [default]     bulk and drain print one JSON object
//
// At its best: a local queue of 500, completions in batches without delay, 24 jobs at once, as its own notes on
// performance have it; with "default" as it comes, ten jobs at once. A completed job is gone; results are not kept.
"use strict";
const worker = require("graphile-worker");
const { Pool } = require("pg");

const [what, url, number, manner] = process.argv.slice(2);
const jobs = Number(number);
const logger = new worker.Logger(() => () => {});
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const say = (found) => console.log(JSON.stringify(found));
const waiting = async (pool) => Number((await pool.query("select count(*) from graphile_worker.jobs")).rows[0].count);

async function main() {
  const pgPool = new Pool({ connectionString: url });
  if (what === "prepare") {
    const utils = await worker.makeWorkerUtils({ pgPool, logger });
    await utils.migrate();
    await utils.release();
  } else if (what === "bulk" || what === "fill") {
    const utils = await worker.makeWorkerUtils({ pgPool, logger });
    const began = monotonic(), used = cpu();
    for (let first = 0; first < jobs; first += 1000) {
      const some = [];
      for (let n = first; n < Math.min(first + 1000, jobs); n++) some.push({ identifier: "noop", payload: { n } });
      await utils.addJobs(some);
    }
    say({ jobs, seconds: monotonic() - began, cpu_seconds: cpu() - used, once: (await waiting(pgPool)) === jobs });
    await utils.release();
  } else {
    const started = new Map();
    let first = 0, last = 0, used = 0, count = 0, finish;
    const done = new Promise((resolve) => { finish = resolve; });
    const noop = (payload) => {
      last = monotonic();
      if (count === 0) { first = last; used = cpu(); }
      started.set(payload.n, (started.get(payload.n) || 0) + 1);
      if (++count === jobs) { used = cpu() - used; finish(); }
    };
    const common = { connectionString: url, logger, pollInterval: 2000 };
    const atItsBest = {
      maxPoolSize: 26, concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    };
    const preset = { worker: { ...common, ...(manner === "default" ? { concurrentJobs: 10 } : atItsBest) } };
    const runner = await worker.run({ preset, taskList: { noop }, noHandleSignals: true });
    await done;
    await runner.stop();
    const once = started.size === jobs && count === jobs && (await waiting(pgPool)) === 0;
    say({ jobs: jobs - 1, seconds: last - first, cpu_seconds: used, once });
  }
  await pgPool.end();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
