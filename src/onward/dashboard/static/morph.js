// Changes one element into another, node by node, so that what is the same stays: focus, scroll, open details, typed
// text, checked boxes.
const KEPT = new Set(["open"]);

function key(node) {
  return node.nodeType === 1 ? node.id || "" : "";
}

function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);
}

function attributes(target, source) {
  const keepsOpen = target.nodeName === "DETAILS";
  for (const { name, value } of [...source.attributes]) {
    if (keepsOpen && KEPT.has(name)) continue;
    if (target.getAttribute(name) !== value) target.setAttribute(name, value);
  }
  for (const { name } of [...target.attributes]) {
    if (source.hasAttribute(name) || (keepsOpen && KEPT.has(name))) continue;
    if (name === "class" || name === "hidden" && "copy" in target.dataset || name === "style") continue;
    target.removeAttribute(name);
  }
}

function isField(node) {
  return node.nodeName === "INPUT" || node.nodeName === "TEXTAREA" || node.nodeName === "SELECT";
}

export function morph(target, source) {
  const marked = target.classList?.contains("at");
  attributes(target, source);
  if (marked) target.classList.add("at");
  if (isField(target)) return;
  if (target.nodeName === "TIME" && target.getAttribute("datetime") === source.getAttribute("datetime")) return;
  const keyed = new Map();
  for (const child of target.children) if (child.id) keyed.set(child.id, child);
  let place = target.firstChild;
  for (const wanted of [...source.childNodes]) {
    const known = key(wanted) ? keyed.get(wanted.id) : null;
    if (known && known.nodeName === wanted.nodeName) {
      if (known === place) place = place.nextSibling;
      else move(target, known, place);
      morph(known, wanted);
    } else if (place && isAlike(place, wanted) && !key(wanted)) {
      if (place.nodeType === 1) morph(place, wanted);
      else if (place.nodeValue !== wanted.nodeValue) place.nodeValue = wanted.nodeValue;
      place = place.nextSibling;
    } else {
      target.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    if (!holdsPerson(place)) place.remove();
    place = next;
  }
}

function holdsPerson(node) {
  // What a person types into stays until it is left. A focused link or button of a vanished row may go.
  const active = document.activeElement;
  return active && isField(active) && active.type !== "checkbox" && node.nodeType === 1 && node.contains(active);
}

function move(parent, node, before) {
  // Moving a node drops its focus: give it back.
  const active = document.activeElement;
  const had = node.contains(active);
  parent.insertBefore(node, before);
  if (had) active.focus({ preventScroll: true });
}
