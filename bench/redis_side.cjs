// BullMQ for Node, measured by the same rules as bench/redis_side.py: see bench/redis_peers.py.
//
//   node redis_side.cjs fill|bulk|drain|delay URL JOBS     all but fill print one JSON object
//   node redis_side.cjs idle URL SECONDS                  a worker with nothing to do
'use strict';
const { Queue, Worker } = require('bullmq');
const [what, url, number] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const jobs = Number(number);
const BATCH_SIZE = 1000;
const CONCURRENCY = 50;

const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const processor = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};

async function bulk(queue) {
  const all = Array.from({ length: jobs }, (_, n) => ({ name: 'noop', data: { n } }));
  const began = seconds();
  const cpu = processor();
  for (let first = 0; first < jobs; first += BATCH_SIZE) await queue.addBulk(all.slice(first, first + BATCH_SIZE));
  return { jobs, seconds: seconds() - began, cpu_seconds: processor() - cpu, once: true };
}

async function drain(queue) {
  const started = [];
  const late = [];
  let first = 0, last = 0, cpuFirst = 0, cpuLast = 0, all;
  const done = new Promise((resolve) => { all = resolve; });
  const worker = new Worker('bench', async (job) => {
    const now = seconds();
    if (!started.length) { first = now; cpuFirst = processor(); }
    if (job.data.due) late.push(Date.now() / 1000 - job.data.due);
    started.push(job.data.n);
    if (started.length === jobs) { last = now; cpuLast = processor(); all(); }
    return job.data.n;
  }, { connection, concurrency: CONCURRENCY });
  if (what === 'delay') {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    for (let n = 0; n < jobs; n++) {
      const delay = 200 + (n * 7919) % 2000;
      await queue.add('noop', { n, due: (Date.now() + delay) / 1000 }, { delay });
    }
  }
  await done;
  let left;
  do left = await queue.getJobCountByTypes('waiting', 'active', 'delayed'); while (await queue.getActiveCount());
  await worker.close();
  if (what === 'delay') {
    late.sort((a, b) => a - b);
    return { jobs, median: late[late.length >> 1], worst: late[late.length - 1] };
  }
  const once = new Set(started).size === jobs && started.length === jobs && (await queue.getCompletedCount()) === jobs;
  return { jobs: jobs - 1, seconds: last - first, cpu_seconds: cpuLast - cpuFirst, once: once && left >= 0 };
}

(async () => {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  if (what === 'idle') {
    new Worker('bench', async () => {}, { connection, concurrency: CONCURRENCY });
    await new Promise((resolve) => setTimeout(resolve, jobs * 1000));
    process.exit(0);
  }
  const found = what === 'drain' || what === 'delay' ? await drain(queue) : await bulk(queue);
  if (what !== 'fill') console.log(JSON.stringify(found));
  await queue.close();
  process.exit(0);
})();
