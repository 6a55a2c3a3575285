// One event stream, opened again when what it should watch has changed.
export class Stream {
  constructor(tell) {
    this.tell = tell;
    this.source = null;
    this.address = "";
  }

  set(url, jobs) {
    const query = [...new Set(jobs)].sort().map((ref) => `job=${encodeURIComponent(ref)}`).join("&");
    const address = query ? `${url}?${query}` : url;
    if (this.source && this.address === address && this.source.readyState !== 2) return;
    this.close();
    this.address = address;
    const source = this.source = new EventSource(address);
    source.onopen = () => this.tell({ kind: "open" });
    source.onerror = () => this.tell({ kind: "error" });
    source.addEventListener("beat", () => this.tell({ kind: "beat" }));
    source.addEventListener("job", (event) => this.tell({ kind: "job", jobs: JSON.parse(event.data) }));
  }

  close() {
    this.source?.close();
    this.source = null;
    this.address = "";
  }
}
