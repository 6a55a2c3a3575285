// A BullMQ client of Node that does what it is told: one JSON object a line on stdin, one for each on stdout.
//
//   {"number": 1, "command": "make", "handle": "q", "kind": "Queue", "queue": "mail", "options": {…}}
//   {"number": 2, "command": "call", "handle": "q", "method": "add", "args": ["welcome", {"n": 1}, {"attempts": 3}]}
//   {"number": 2, "answer": {"id": "1", "name": "welcome", …}}   or   {"number": 2, "error": "…", "kind": "TypeError"}
//
// Between the answers come notifications: {"notification": "started", …} when a handler starts,
// {"notification": "event", …} for what a QueueEvents has received, {"notification": "error", …} for what a worker
// could not cope with.
//
// A worker made by "work" does what the job's data says in "steps"; see STEPS. Jobs can be taken by hand as well
// ("claim", then "callJob"), each step one script of BullMQ's own, and the clock can be set ("clock"): so that the same
// can be done twice, by two clients, at the same millisecond.
'use strict';
const { randomUUID } = require('node:crypto');
const fs = require('node:fs');
const readline = require('node:readline');

const RealDate = Date;
let fixedNow = null;
globalThis.Date = class extends RealDate {
  constructor(...given) {
    if (given.length) super(...given);
    else super(Date.now());
  }
  static now() {
    return fixedNow ?? RealDate.now();
  }
};

const bullmq = require('bullmq');
const connection = { ...JSON.parse(process.env.PEER_CONNECTION), maxRetriesPerRequest: null };
const objects = new Map(); // handle -> Queue, Worker, …
const claimed = new Map(); // "handle/id" -> a job taken by hand

const send = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const FIELDS = [
  'id', 'name', 'queueName', 'data', 'opts', 'progress', 'returnvalue', 'failedReason', 'stacktrace', 'attemptsMade',
  'attemptsStarted', 'stalledCounter', 'delay', 'priority', 'timestamp', 'processedOn', 'finishedOn', 'parentKey',
  'repeatJobKey', 'deduplicationId', 'processedBy',
];

function toPlain(value) {
  if (value instanceof bullmq.Job) return Object.fromEntries(FIELDS.map((field) => [field, toPlain(value[field])]));
  if (Array.isArray(value)) return value.map(toPlain);
  if (value instanceof Map) return Object.fromEntries(value);
  if (value && typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype) {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toPlain(inner)]));
  }
  if (value === undefined || typeof value === 'function') return null;
  return value;
}

// What a handler can be asked to do, by {"steps": [["progress", 50], ["return", 1]]} in the job's data. The first that
// gives a value ends the job with it.
const STEPS = {
  return: async (job, token, value) => ({ value }),
  twice: async (job) => ({ value: { twice: 2 * job.data.n } }),
  children: async (job) => ({ value: await job.getChildrenValues() }),
  ignored: async (job) => ({ value: await job.getIgnoredChildrenFailures() }),
  throw: async (job, token, message) => { throw new Error(message); },
  unrecoverable: async (job, token, message) => { throw new bullmq.UnrecoverableError(message); },
  failUntil: async (job, token, attempt) => { if (job.attemptsMade + 1 < attempt) throw new Error('not yet'); },
  progress: async (job, token, value) => { await job.updateProgress(value); },
  log: async (job, token, line) => { await job.log(line); },
  sleep: async (job, token, ms) => { await sleep(ms); },
  delayOnce: async (job, token, ms) => {
    if (job.attemptsStarted > 1) return;
    await job.moveToDelayed(Date.now() + ms, token);
    throw new bullmq.DelayedError();
  },
  forever: async () => { await new Promise(() => {}); },
  // As tests/interop/bullmq/worker_process.py does: a line for the run, then the work, then the run's name.
  work: async (job, token, { ledger, ms }) => {
    const run = randomUUID();
    fs.appendFileSync(ledger, `${job.id} ${run} node ${process.pid}\n`);
    await sleep(ms);
    return { value: { run } };
  },
};

async function handle(job, token) {
  send({ notification: 'started', queue: job.queueName, id: job.id, name: job.name, attempt: job.attemptsMade + 1 });
  for (const [name, argument] of job.data?.steps ?? [['return', { by: 'node' }]]) {
    const given = await STEPS[name](job, token, argument);
    if (given) return given.value;
  }
  return null;
}

const EVENTS = [
  'added', 'active', 'cleaned', 'completed', 'deduplicated', 'delayed', 'drained', 'duplicated', 'failed', 'paused',
  'progress', 'removed', 'resumed', 'retries-exhausted', 'stalled', 'waiting', 'waiting-children',
];

const COMMANDS = {
  async make({ handle: name, kind, queue, options }) {
    const all = { connection, ...options };
    let thing;
    if (kind === 'FlowProducer') thing = new bullmq.FlowProducer(all);
    else if (kind === 'Worker') thing = new bullmq.Worker(queue, null, { autorun: false, ...all });
    else thing = new bullmq[kind](queue, all);
    thing.on('error', (error) => send({ notification: 'error', handle: name, error: error.message }));
    if (kind === 'QueueEvents') {
      for (const event of EVENTS) {
        thing.on(event, (fields, eventId) => send({ notification: 'event', handle: name, event, fields, eventId }));
      }
    }
    objects.set(name, thing);
    await thing.waitUntilReady?.();
    return null;
  },
  async work({ handle: name, queue, options }) {
    const worker = new bullmq.Worker(queue, handle, { connection, ...options });
    worker.on('error', (error) => send({ notification: 'error', handle: name, error: error.message }));
    worker.on('completed', (job) => send({ notification: 'completed', queue, id: job.id }));
    worker.on('failed', (job, error) => send({ notification: 'failed', queue, id: job?.id, error: error.message }));
    objects.set(name, worker);
    await worker.waitUntilReady();
    return null;
  },
  async call({ handle: name, method, args }) {
    return objects.get(name)[method](...(args ?? []));
  },
  async job({ handle: name, id, method, args }) {
    const job = await bullmq.Job.fromId(objects.get(name), id);
    if (!method) return job;
    if (!job) throw new Error('there is no such job');
    return job[method](...(args ?? []));
  },
  async finished({ handle: name, events, id, timeout }) {
    const job = await bullmq.Job.fromId(objects.get(name), id);
    return job.waitUntilFinished(objects.get(events), timeout);
  },
  async claim({ handle: name, token }) {
    const worker = objects.get(name);
    worker.limitUntil = 0; // what it remembers of a limit is its own; the store says whether there is one
    const job = await worker.getNextJob(token, { block: false });
    if (job) claimed.set(`${name}/${job.id}`, job);
    return job;
  },
  async callJob({ handle: name, id, method, args }) {
    return claimed.get(`${name}/${id}`)[method](...(args ?? []));
  },
  async fail({ handle: name, id, token, message, unrecoverable, stack, fetch }) {
    const error = unrecoverable ? new bullmq.UnrecoverableError(message) : new Error(message);
    if (stack !== undefined) error.stack = stack;
    return claimed.get(`${name}/${id}`).moveToFailed(error, token, fetch ?? false);
  },
  // Finish and fetch as a worker does; what comes is held like what was claimed.
  async finish({ handle: name, id, token, value }) {
    const worker = objects.get(name);
    const result = await claimed.get(`${name}/${id}`).moveToCompleted(value, token, true);
    if (!Array.isArray(result)) return null;
    const next = await worker.nextJobFromJobData(result[0], result[1], token);
    if (next) claimed.set(`${name}/${next.id}`, next);
    return next;
  },
  async clock({ now }) {
    fixedNow = now ?? null;
    return Date.now();
  },
  // What cron-parser computes: [{pattern, tz, at, hashSeed}, …] -> milliseconds, or why it cannot.
  async cron({ cases }) {
    const parser = require('cron-parser');
    const parse = parser.parseExpression ?? ((pattern, options) => parser.CronExpressionParser.parse(pattern, options));
    return cases.map(({ pattern, at, ...options }) => {
      try {
        return parse(pattern, { ...options, currentDate: new Date(at) }).next().getTime();
      } catch (error) {
        return error.message;
      }
    });
  },
  async random({ value }) {
    Math.random = () => value;
    return null;
  },
  async close({ handle: name }) {
    const thing = objects.get(name);
    objects.delete(name);
    for (const held of [...claimed.keys()]) if (held.startsWith(`${name}/`)) claimed.delete(held);
    if (thing) await thing.close(thing instanceof bullmq.Worker);
    return null;
  },
};

async function answer({ number, command, ...given }) {
  try {
    send({ number, answer: toPlain(await COMMANDS[command](given)) });
  } catch (error) {
    send({ number, error: error.message, kind: error.name, code: error.code ?? null });
  }
}

// In the order they were asked, except what waits for somebody else: that may take as long as it likes.
let last = Promise.resolve();
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const request = JSON.parse(line);
  if (request.command === 'finished') answer(request);
  else last = last.then(() => answer(request));
}).on('close', () => process.exit(0));
send({ notification: 'ready', version: require('bullmq/package.json').version });
