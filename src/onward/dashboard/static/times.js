// Times: relative ones grow older by themselves, exact ones are shown in the reader's zone.
const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

function whole(seconds) {
  for (const [unit, size] of UNITS) {
    if (seconds >= 2 * size || (unit === "min" && seconds >= size)) return `${Math.floor(seconds / size)}\u00a0${unit}`;
  }
  return `${Math.floor(seconds)}\u00a0s`;
}

export function relative(at, now = Date.now()) {
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${whole(seconds)}\u00a0ago` : `in\u00a0${whole(-seconds)}`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

export function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(element.dateTime);
    if (Number.isNaN(at)) continue;
    let text = null;
    if ("relative" in element.dataset) text = relative(at);
    else if ("clock" in element.dataset) text = clock.format(at);
    else if ("exact" in element.dataset) text = full.format(at);
    if (text !== null && element.textContent !== text) element.textContent = text;
  }
}

setInterval(() => { if (!document.hidden) showTimes(document); }, 1000);
