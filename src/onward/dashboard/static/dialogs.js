// Confirmation dialogs. The question is the server's own page for browsers without JavaScript, shown in a dialog.
let open = null;

export function showDialog(content, className = "") {
  open?.close();
  const dialog = document.createElement("dialog");
  dialog.className = className;
  dialog.append(content);
  const heading = dialog.querySelector("h2");
  if (heading) {
    heading.id ||= "dialog-heading";
    dialog.setAttribute("aria-labelledby", heading.id);
  }
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    open = null;
    before?.focus?.();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  open = dialog;
  return dialog;
}

export const isDialogOpen = () => open !== null;

async function ask(form, submitter) {
  const fields = new URLSearchParams(new FormData(form, submitter));
  let answer;
  try {
    answer = await fetch(form.action, { method: "POST", body: fields, headers: { Accept: "text/html" } });
  } catch {
    submit(form, submitter);
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const question = page.querySelector("[data-confirmation]");
  if (question) {
    const dialog = showDialog(document.importNode(question, true));
    const keep = dialog.querySelector("[data-confirm-no]");
    keep.addEventListener("click", (event) => { event.preventDefault(); dialog.close(); });
    keep.focus();
  } else if (answer.redirected) {
    location.assign(answer.url);
  } else {
    showAnswer(page);
  }
}

function showAnswer(page) {
  // An error of the form: the page that the server would have shown.
  document.getElementById("main").replaceWith(document.importNode(page.getElementById("main"), true));
  document.title = page.title;
  delete document.body.dataset.live;
  document.getElementById("main").focus();
}

function submit(form, submitter) {
  form.removeAttribute("data-confirm");
  if (submitter) form.requestSubmit(submitter);
  else form.submit();
}

export function enableDialogs() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!("confirm" in form.dataset) || event.defaultPrevented) return;
    event.preventDefault();
    ask(form, event.submitter);
  });
}
