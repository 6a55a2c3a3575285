// Enqueues a job, waits for its result and reads it, by a client whose types come from the server's OpenAPI document.
// A field that the document does not have, or has with another type, does not compile.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

declare const process: { argv: string[]; exitCode?: number };
declare const console: { log(text: string): void; error(text: string): void };

type Job = components["schemas"]["Job"];

async function main(baseUrl: string, token: string): Promise<void> {
  const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

  const enqueued = await client.POST("/api/v1/jobs", {
    body: { type: "add", payload: { a: 20, b: 22 } },
    params: { header: { "Idempotency-Key": "from-typescript" } },
  });
  if (enqueued.data === undefined) throw new Error(`not enqueued: ${JSON.stringify(enqueued.error)}`);
  const id: string = enqueued.data.id;

  const ticked = await client.POST("/api/v1/tick");
  if (ticked.data === undefined) throw new Error(`no tick: ${JSON.stringify(ticked.error)}`);

  const waited = await client.GET("/api/v1/jobs/{id}/result", {
    params: { path: { id }, query: { timeout: 30 } },
  });
  if (waited.data === undefined) throw new Error(`no result: ${JSON.stringify(waited.error)}`);
  const isFinished: boolean = waited.data.is_finished;

  const read = await client.GET("/api/v1/jobs/{id}", { params: { path: { id } } });
  if (read.data === undefined) throw new Error(`not read: ${JSON.stringify(read.error)}`);
  const job: Job = read.data;

  const page = await client.GET("/api/v1/jobs", { params: { query: { status: ["completed"], limit: 10 } } });
  const ids: string[] = (page.data?.items ?? []).map((each: Job) => each.id);

  const unknown = await client.GET("/api/v1/jobs/{id}", { params: { path: { id: "nope" } } });
  const problem: components["schemas"]["Problem"] | undefined = unknown.error;

  console.log(
    JSON.stringify({
      status: enqueued.data.enqueue_status,
      isFinished,
      result: waited.data.result,
      job: { id: job.id, status: job.status, attempts: job.attempts },
      listed: ids.includes(id),
      problem: problem?.type,
    }),
  );
}

main(process.argv[2] ?? "", process.argv[3] ?? "").catch((error: unknown) => {
  console.error(String(error));
  process.exitCode = 1;
});
