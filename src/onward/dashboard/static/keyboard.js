// Keys: / j k x Enter ? g+letter t, and Ctrl-K for the palette. None fires inside a field.
import { isDialogOpen, showDialog } from "./dialogs.js";

const KEYS = [
  ["/", "Search"], ["j k", "Next and previous row"], ["x", "Select the row"], ["Enter", "Open the row"],
  ["Ctrl K", "Go to a page, or do something"], ["t", "Change the theme"], ["?", "This help"], ["Esc", "Close; leave a field"],
];
let waitsForLetter = 0;
let current = null;

const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.id && row.id === current);
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
  for (const row of all) row.classList.toggle("at", row === next);
  current = next.id;
  const target = next.querySelector("[data-open]");
  target?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const row = () => (current ? document.getElementById(current) : null);

function help() {
  const content = document.createElement("div");
  content.className = "help";
  const heading = document.createElement("h2");
  heading.textContent = "Keys";
  const list = document.createElement("dl");
  const entries = [...document.querySelectorAll("[data-go]")].map((link) => [`g ${link.dataset.go}`, link.querySelector("span").textContent]);
  for (const [keys, meaning] of [...KEYS, ...entries]) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ")) {
      const part = document.createElement("kbd");
      part.textContent = key;
      term.append(part, " ");
    }
    const text = document.createElement("dd");
    text.textContent = meaning;
    list.append(term, text);
  }
  const close = document.createElement("button");
  close.className = "btn";
  close.textContent = "Close";
  content.append(heading, list, close);
  const dialog = showDialog(content);
  close.addEventListener("click", () => dialog.close());
}

function choices() {
  const found = [...document.querySelectorAll("[data-go]")].map((link) => ({ text: `Go to ${link.querySelector("span").textContent}`, hint: `g ${link.dataset.go}`, act: () => link.click() }));
  for (const button of document.querySelectorAll(".bar .actions .btn, .bar > .btn")) {
    found.push({ text: button.textContent.trim(), hint: "on this page", act: () => button.click() });
  }
  for (const theme of document.querySelectorAll(".themes button")) {
    found.push({ text: `Theme: ${theme.textContent}`, hint: "", act: () => theme.click() });
  }
  found.push({ text: "Keys", hint: "?", act: help });
  return found;
}

function palette() {
  const content = document.createElement("div");
  const input = document.createElement("input");
  input.placeholder = "Go to a page, run an action, or search jobs";
  input.setAttribute("aria-label", "Command");
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "true");
  input.setAttribute("aria-controls", "palette-list");
  input.autocomplete = "off";
  const list = document.createElement("ul");
  list.id = "palette-list";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Commands");
  content.append(input, list);
  const dialog = showDialog(content, "palette");
  dialog.setAttribute("aria-label", "Command palette");
  const all = choices();
  let shown = [];
  let at = 0;
  const mark = () => [...list.children].forEach((line, index) => {
    line.setAttribute("aria-selected", String(index === at));
    if (index === at) { line.scrollIntoView({ block: "nearest" }); input.setAttribute("aria-activedescendant", line.id); }
  });
  const fill = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = all.filter((one) => words.every((word) => one.text.toLowerCase().includes(word)));
    if (input.value.trim()) {
      const text = input.value.trim();
      shown.push({ text: `Search jobs: ${text}`, hint: "", act: () => location.assign(`${document.body.dataset.root}/jobs?q=${encodeURIComponent(text)}`) });
    }
    at = 0;
    list.replaceChildren(...shown.map((one, index) => {
      const line = document.createElement("li");
      line.id = `palette-${index}`;
      line.setAttribute("role", "option");
      const text = document.createElement("span");
      text.textContent = one.text;
      const hint = document.createElement("span");
      hint.className = "faint";
      hint.textContent = one.hint;
      line.append(text, hint);
      line.addEventListener("click", () => { dialog.close(); one.act(); });
      return line;
    }));
    mark();
  };
  input.addEventListener("input", fill);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = Math.max(0, Math.min(shown.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      mark();
    } else if (event.key === "Enter" && shown[at]) {
      event.preventDefault();
      dialog.close();
      shown[at].act();
    }
  });
  fill();
  input.focus();
}

function nextTheme() {
  const buttons = [...document.querySelectorAll(".themes button")];
  const at = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
  buttons[(at + 1) % buttons.length]?.click();
}

export function enableKeyboard() {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (!isDialogOpen()) palette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isDialogOpen()) return;
    const field = event.target.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const letter = event.key;
    if (waitsForLetter && Date.now() - waitsForLetter < 1500) {
      waitsForLetter = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(letter)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const keys = {
      "/": () => { const search = document.querySelector("[data-search]"); if (search) { search.focus(); search.select(); } },
      "j": () => move(1),
      "k": () => move(-1),
      "x": () => row()?.querySelector("input[type=checkbox]")?.click(),
      "?": help,
      "t": nextTheme,
      "g": () => { waitsForLetter = Date.now(); },
    };
    if (keys[letter]) { event.preventDefault(); keys[letter](); }
  });
}
