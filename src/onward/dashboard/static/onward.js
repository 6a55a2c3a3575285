// Adds to pages that work without it: live updates, keyboard, dialogs, local times, copy buttons.
import { showTimes } from "./times.js";
import { enableCopy } from "./copy.js";
import { enableDialogs } from "./dialogs.js";
import { enableKeyboard } from "./keyboard.js";
import { enableSelection } from "./selection.js";
import { enableLive } from "./live.js";

const note = document.querySelector("[data-note]");
if (note) {
  // A reload must not repeat what was said once.
  const url = new URL(location.href);
  url.searchParams.delete("note");
  history.replaceState(history.state, "", url);
}
showTimes(document);
enableCopy(document);
enableDialogs();
enableKeyboard();
enableSelection();
enableLive();
