// Live updates. One stream serves all visible tabs of the browser: a shared worker has it, and tells the tabs when
// something is new. A tab then asks for its own page and changes only what differs. Hidden tabs ask nothing.
import { morph } from "./morph.js";
import { showTimes } from "./times.js";
import { enableCopy } from "./copy.js";

const LEAST = 900;
let port = null;
let asking = false;
let again = false;
let last = 0;
let timer = 0;
let lostAt = 0;

function watched() {
  return (document.body.dataset.watch || "").split("\n").filter(Boolean);
}

function state(name, text) {
  const sign = document.querySelector("[data-live-state]");
  if (!sign) return;
  sign.hidden = false;
  sign.dataset.state = name;
  if (sign.firstElementChild.textContent !== text) sign.firstElementChild.textContent = text;
}

function say(message) {
  port?.postMessage(message);
}

function isBusy() {
  // A selection that a person is making, or has made to copy it, stays.
  const selection = getSelection();
  return selection && !selection.isCollapsed && document.getElementById("main")?.contains(selection.anchorNode);
}

export async function refresh() {
  clearTimeout(timer);
  if (document.hidden || !document.body.dataset.live) return;
  const early = last + LEAST - Date.now();
  if (asking || early > 0 || isBusy() || document.querySelector("dialog[open]")) {
    again = true;
    timer = setTimeout(refresh, Math.max(early, 250));
    return;
  }
  asking = true;
  again = false;
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "X-Onward-Live": "1", Accept: "text/html" } });
    if (answer.status === 401) { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.status >= 500) lose(page);
    else if (answer.ok) show(page);
    else if (answer.status === 404) state("idle", "Gone");
  } catch {
    lose(null);
  } finally {
    asking = false;
    if (again) timer = setTimeout(refresh, LEAST);
  }
}

function show(page) {
  if (document.querySelector("[data-error]")) { location.reload(); return; }
  if (isBusy()) { again = true; return; }
  delete document.body.dataset.stale;
  lostAt = 0;
  state("live", "Live");
  for (const region of document.querySelectorAll("[data-update][id]")) {
    const fresh = page.getElementById(region.id);
    if (fresh) morph(region, fresh);
  }
  if (document.body.dataset.watch !== page.body.dataset.watch) {
    document.body.dataset.watch = page.body.dataset.watch || "";
    say({ kind: "watch", jobs: watched() });
  }
  showTimes(document);
  enableCopy(document);
  if (document.querySelector("[data-busy]")) timer = setTimeout(refresh, 1500);
}

function lose(page) {
  lostAt ||= Date.now();
  document.body.dataset.stale = "";
  const seconds = Math.round((Date.now() - lostAt) / 1000);
  state("lost", `Lost ${seconds} s ago`);
  const place = document.getElementById("lost");
  const what = page ? "The store does not answer." : "The server does not answer.";
  if (place) {
    const line = document.createElement("div");
    line.className = "notice bad";
    line.setAttribute("role", "alert");
    const bold = document.createElement("b");
    bold.textContent = what;
    line.append(bold, ` What is below is ${seconds < 2 ? "a moment" : `${seconds} s`} old. This page tries again by itself.`);
    if (place.textContent !== line.textContent) place.replaceChildren(line);
  }
  timer = setTimeout(refresh, 2000);
}

function onMessage(message) {
  if (message.kind === "beat") refresh();
  else if (message.kind === "job" && message.jobs.some((ref) => watched().includes(ref))) refresh();
  else if (message.kind === "open") { if (!lostAt) state("live", "Live"); else refresh(); }
  else if (message.kind === "error") refresh();
}

function byWorker(url) {
  const worker = new SharedWorker(document.body.dataset.worker, { name: "onward-live" });
  port = worker.port;
  port.onmessage = (event) => onMessage(event.data);
  port.start();
  const tell = () => say({ kind: document.hidden ? "hide" : "show", url, jobs: watched() });
  document.addEventListener("visibilitychange", () => { tell(); if (!document.hidden) refresh(); });
  addEventListener("pagehide", () => say({ kind: "hide", url, jobs: [] }));
  addEventListener("pageshow", (event) => { tell(); if (event.persisted) refresh(); });
  setInterval(tell, 10000);
  tell();
}

async function byStream(url) {
  // Browsers without shared workers: each visible tab has a stream of its own.
  const { Stream } = await import("./stream.js");
  const stream = new Stream(onMessage);
  port = { postMessage: (message) => { if (message.kind === "watch") stream.set(url, message.jobs); } };
  const tell = () => (document.hidden ? stream.close() : stream.set(url, watched()));
  document.addEventListener("visibilitychange", () => { tell(); if (!document.hidden) refresh(); });
  addEventListener("pagehide", () => stream.close());
  tell();
}

export function enableLive() {
  const path = document.body.dataset.live;
  if (!path) return;
  state("idle", "Connecting");
  const url = new URL(path, location.href).href;
  try {
    byWorker(url);
  } catch {
    byStream(url);
  }
  if (document.querySelector("[data-error='503']") || document.querySelector("[data-busy]")) timer = setTimeout(refresh, 1500);
}
