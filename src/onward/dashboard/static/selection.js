// Selected rows of a list: counted beside the buttons, and choosing one means "selected".
export function enableSelection() {
  const form = document.querySelector("form[data-list]");
  if (!form) return;
  const label = form.querySelector("[data-selected]");
  const show = () => {
    const count = form.querySelectorAll("input[name=job]:checked").length;
    if (label) label.textContent = count ? `${count} selected` : "Selected";
  };
  form.addEventListener("change", (event) => {
    if (event.target.name === "job") {
      const chosen = form.querySelector("input[name=which][value=selected]");
      if (chosen) chosen.checked = true;
    }
    show();
  });
  show();
}
