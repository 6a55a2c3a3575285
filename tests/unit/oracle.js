// Reads [[type, org, payload], ...] and writes the dedupe key of each, as a Node producer would make it (H4).
const canonical = (value) => {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${members.join(",")}}`;
};

const jobs = JSON.parse(require("fs").readFileSync(0, "utf8"));
const keys = jobs.map(([type, org, payload]) => `${type}::${org ?? "global"}::${canonical(payload)}`);
process.stdout.write(JSON.stringify(keys));
