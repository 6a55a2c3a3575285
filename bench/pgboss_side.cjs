// pg-boss on PostgreSQL, with Onward's stop-watch written out again: see peers.py.
//
//     node pgboss_side.cjs prepare|fill|drain URL JOBS     drain prints one JSON object
//
// At its best of what was tried: batches of 500, two at once, each followed by the next while they come full. The table
// is analysed before it is drained: where it is not, pg-boss's claims may take a plan that gets slower with each.
"use strict";

const [what, url, number] = process.argv.slice(2);
const jobs = Number(number);
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };

async function main() {
  const module = await import(require.resolve("pg-boss"));
  const PgBoss = module.PgBoss || module.default?.PgBoss || module.default;
  const boss = new PgBoss({ connectionString: url });
  boss.on("error", (error) => { throw error; });
  await boss.start();
  const counted = async (where) =>
    Number((await boss.getDb().executeSql(`select count(*) from pgboss.job where name = 'bench' and ${where}`)).rows[0].count);
  if (what === "prepare") {
    await boss.createQueue("bench");
  } else if (what === "fill") {
    for (let first = 0; first < jobs; first += 1000) {
      const some = Array.from({ length: Math.min(1000, jobs - first) }, (_, at) => ({ data: { n: first + at } }));
      await boss.insert("bench", some);
    }
    await boss.getDb().executeSql("analyze pgboss.job");
  } else {
    const started = [];
    let first = 0, last = 0, used = 0, finish;
    const done = new Promise((resolve) => { finish = resolve; });
    const options = { pollingIntervalSeconds: 0.5, batchSize: 500, burstWhenBatchFull: true, localConcurrency: 2 };
    await boss.work("bench", options, async (batch) => {
      for (const job of batch) {
        last = monotonic();
        if (!started.length) { first = last; used = cpu(); }
        started.push(job.data.n);
        if (started.length === jobs) { used = cpu() - used; finish(); }
      }
    });
    await done;
    while (await counted("state = 'active'")) await new Promise((resolve) => setTimeout(resolve, 10));
    const once = started.length === jobs && new Set(started).size === jobs && (await counted("state = 'completed'")) === jobs;
    console.log(JSON.stringify({ jobs: jobs - 1, seconds: last - first, cpu_seconds: used, once }));
  }
  await boss.stop({ graceful: false });
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
