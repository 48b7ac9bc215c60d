// The few things every view does to the document.

/** The element with this id; the page's own markup guarantees it. */
export const byId = (id) => document.getElementById(id);

/** `el("p", { class: "hint", text: "…" }, child, …)`; text is always text, never markup. */
export function el(name, { text, class: className, on = {}, ...attributes } = {}, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(key, value);
  }
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Shows another icon of the sprite inside a button. */
export function setIcon(button, name) {
  button.querySelector("use").setAttribute("href", `#i-${name}`);
}

/** Says a sentence to those who hear the page. */
export function say(sentence) {
  const region = byId("say");
  region.textContent = "";
  // A fresh task, so that the same sentence twice is said twice.
  setTimeout(() => { region.textContent = sentence; }, 30);
}

/** Whether keys typed now are meant for a field rather than for the page. */
export function isTyping(target) {
  if (!(target instanceof Element)) return false;
  if (target.isContentEditable) return true;
  if (target instanceof HTMLInputElement) return !["range", "radio", "checkbox", "button", "submit"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}
