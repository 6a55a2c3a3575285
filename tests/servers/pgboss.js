// A real pg-boss on a string: each line that comes in is [verb, ...arguments], each line that goes out its answer.
//
//   node pgboss.js plans SCHEMA          write the SQL that makes the schema, and end
//   node pgboss.js serve URL SCHEMA OPTIONS
'use strict'
const readline = require('node:readline')

async function load () {
  const module = await import(require.resolve('pg-boss'))
  const found = module.PgBoss || module.default?.PgBoss || module.default
  return { PgBoss: found, plans: module.getConstructionPlans || found.getConstructionPlans }
}

function say (word) { process.stdout.write(JSON.stringify(word === undefined ? null : word) + '\n') }

async function serve (url, schema, options) {
  const { PgBoss } = await load()
  const boss = new PgBoss({ connectionString: url, schema, ...options })
  boss.on('error', error => process.stderr.write(`error: ${error.message}\n`))
  await boss.start()
  say('ready')
  const seen = {}
  const ours = {
    // Work on a queue; how each job ends is asked of its data: {"fail": "why"} throws.
    async work_on (queue, options = {}) {
      seen[queue] = []
      await boss.work(queue, { pollingIntervalSeconds: 0.5, ...options }, async jobs => {
        const done = []
        for (const job of [].concat(jobs)) {
          seen[queue].push({ id: job.id, data: job.data })
          if (job.data?.fail) throw new Error(job.data.fail)
          if (job.data?.seconds) await new Promise(resolve => setTimeout(resolve, 1000 * job.data.seconds))
          done.push({ by: 'node', got: job.data })
        }
        return done.length === 1 ? done[0] : done
      })
    },
    seen: queue => seen[queue] || [],
    // Make many jobs and drain them, and say how many seconds each took.
    async bench_insert (queue, count, batch) {
      const jobs = Array.from({ length: batch }, (_, n) => ({ name: queue, data: { to: 'user@example.com', n } }))
      const start = process.hrtime.bigint()
      for (let done = 0; done < count; done += batch) {
        if (boss.insert.length > 1) await boss.insert(queue, jobs); else await boss.insert(jobs)
      }
      return Number(process.hrtime.bigint() - start) / 1e9
    },
    async bench_drain (queue, count, options) {
      let done = 0
      let over
      const finished = new Promise(resolve => { over = resolve })
      const start = process.hrtime.bigint()
      await boss.work(queue, { pollingIntervalSeconds: 0.5, ...options }, async jobs => {
        done += [].concat(jobs).length
        if (done >= count) over()
      })
      await finished
      // The last batches are completed after their handler was called.
      const left = `SELECT 1 FROM ${schema}.job WHERE name = $1 AND state = 'active' LIMIT 1`
      while ((await boss.getDb().executeSql(left, [queue])).rows.length) await new Promise(resolve => setImmediate(resolve))
      const seconds = Number(process.hrtime.bigint() - start) / 1e9
      await boss.offWork(queue)
      return seconds
    },
    async bench_fetch (queue, count, batch) {
      const start = process.hrtime.bigint()
      for (let done = 0; done < count;) {
        const jobs = await boss.fetch(queue, { batchSize: batch })
        if (!jobs?.length) break
        await boss.complete(queue, jobs.map(job => job.id))
        done += jobs.length
      }
      return Number(process.hrtime.bigint() - start) / 1e9
    },
    async stop () {
      await boss.stop({ graceful: false, close: true })
      setImmediate(() => process.exit(0))
    }
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...given] = JSON.parse(line)
    try {
      say({ answer: await (ours[verb] ? ours[verb](...given) : boss[verb](...given)) })
    } catch (error) {
      say({ error: error.message })
    }
  }
}

const [command, ...given] = process.argv.slice(2)
if (command === 'plans') load().then(({ plans }) => process.stdout.write(plans(given[0])))
else serve(given[0], given[1], JSON.parse(given[2] || '{}'))
