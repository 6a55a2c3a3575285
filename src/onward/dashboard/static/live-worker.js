// The shared worker: the one stream of a browser. Classic script, so that every browser with shared workers runs it.
"use strict";
const tabs = new Map();
const FORGET = 30000;
let source = null;
let address = "";

function broadcast(message) {
  for (const [port, tab] of tabs) if (tab.isVisible) port.postMessage(message);
}

function update() {
  const now = Date.now();
  for (const [port, tab] of tabs) if (now - tab.heard > FORGET) tabs.delete(port);
  const visible = [...tabs.values()].filter((tab) => tab.isVisible);
  if (!visible.length) {
    if (source) source.close();
    source = null;
    address = "";
    return;
  }
  const jobs = [...new Set(visible.flatMap((tab) => tab.jobs))].sort().slice(0, 50);
  const query = jobs.map((ref) => `job=${encodeURIComponent(ref)}`).join("&");
  const wanted = query ? `${visible[0].url}?${query}` : visible[0].url;
  if (source && source.readyState !== 2 && wanted === address) return;
  if (source) source.close();
  address = wanted;
  source = new EventSource(wanted);
  source.onopen = () => broadcast({ kind: "open" });
  source.onerror = () => broadcast({ kind: "error" });
  source.addEventListener("beat", () => broadcast({ kind: "beat" }));
  source.addEventListener("job", (event) => broadcast({ kind: "job", jobs: JSON.parse(event.data) }));
}

self.onconnect = (event) => {
  const port = event.ports[0];
  tabs.set(port, { isVisible: false, url: "", jobs: [], heard: Date.now() });
  port.onmessage = ({ data }) => {
    const tab = tabs.get(port) || { isVisible: false, url: "", jobs: [] };
    tab.heard = Date.now();
    if (data.kind === "watch") tab.jobs = data.jobs;
    else { tab.isVisible = data.kind === "show"; tab.url = data.url || tab.url; tab.jobs = data.jobs || []; }
    tabs.set(port, tab);
    update();
    if (source && source.readyState === 1 && data.kind === "show") port.postMessage({ kind: "open" });
  };
  port.start();
};
setInterval(update, 5000);
