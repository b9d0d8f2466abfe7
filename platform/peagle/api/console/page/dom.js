// Elements and numbers. Text is set only as text, so no output of a server or a model becomes markup.

/** Make an element. `attributes` named like properties of the DOM are set as such, others as attributes. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set an element's text only if it differs, so that screen readers announce only changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an element's children, but keep equal ones, with a selection or a screen reader's position in them. */
export function renew(parent, ...children) {
  if (parent.children.length !== children.length) return parent.replaceChildren(...children);
  for (const [index, child] of children.entries()) {
    const old = parent.children[index];
    if (old.isEqualNode(child)) continue;
    if (child.localName === "tr") renew(old, ...child.children);
    else old.replaceWith(child);
  }
}

export const byId = (id) => document.getElementById(id);

export const NONE = "–";

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function fixed(value, digits = 0) {
  return known(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : NONE;
}

export const percent = (ratio) => (known(ratio) ? `${fixed(100 * ratio)}\u00a0%` : NONE);

/** Three significant digits are more than a histogram's buckets tell. */
export function milliseconds(seconds) {
  if (!known(seconds)) return NONE;
  const ms = 1000 * seconds;
  return fixed(ms, ms < 10 ? 1 : 0);
}
