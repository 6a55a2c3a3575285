// Copy buttons; also on plain http, where the browser has no clipboard API.
import { toast } from "./toast.js";

export function enableCopy(root) {
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("refused");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await copy(button.dataset.copy);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying");
  }
});
