/** Elements, and how numbers are written. */

export const $ = (id) => document.getElementById(id);

/** A new element. Children that are no elements become text, never markup. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Set text only where it changes, so that selections and live regions stay undisturbed. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const grouped = new Intl.NumberFormat("en");
export const count = (number) => grouped.format(number);
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
export const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "0 %");

export function seconds(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return value < 0.1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}
