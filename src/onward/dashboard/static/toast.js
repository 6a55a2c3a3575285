// Short messages, read out by screen readers.
export function toast(text) {
  const line = document.createElement("p");
  line.textContent = text;
  document.getElementById("toasts")?.append(line);
  setTimeout(() => line.remove(), 3000);
}
