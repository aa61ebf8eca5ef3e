// Make elements, and format numbers, times and names. Strings only become text nodes, never markup; the page's
// Content-Security-Policy enforces this.

const COUNT = new Intl.NumberFormat("en");
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

// Characters that are invisible or misleading: control characters, spaces except U+0020, ignorable and bidirectional
// characters, unassigned code points, and the empty Braille pattern.
const UNSEEN = /(?! )[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

// Make an element. Attributes that are null or false are omitted, `on` has listeners, `style` has properties.
export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listen] of Object.entries(value)) node.addEventListener(event, listen);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...withoutEmpty(children));
  return node;
}

// Omit null, undefined and false, so that a caller can write `condition && element`.
const withoutEmpty = (children) => children.flat(2).filter((child) => child !== null && child !== undefined && child !== false);

// Replace the children of a container; keep the focus and the horizontal scroll positions.
export function replaceContent(container, ...children) {
  const key = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = new Map([...container.querySelectorAll(".scroll")].map((node) => [node.dataset.key, node.scrollLeft]));
  container.replaceChildren(...withoutEmpty(children));
  for (const node of container.querySelectorAll(".scroll")) node.scrollLeft = scrolled.get(node.dataset.key) ?? 0;
  if (key === undefined) return;
  for (const node of container.querySelectorAll("[data-key]")) {
    if (node.dataset.key === key) return node.focus({ preventScroll: true });
  }
}

// Show a name chosen by a user: invisible characters are escaped, and its text direction is isolated.
export function nameElement(text) {
  return el("bdi", { class: "name" }, escapeInvisible(text));
}

export function escapeInvisible(text) {
  if (text === "") return "(empty)";
  return text.replace(UNSEEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`)
    .replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length));
}

export const count = (number) => COUNT.format(number);

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < 4) { number /= 1024; unit += 1; }
  return `${unit ? number.toFixed(number < 10 ? 1 : 0) : number} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// A value that is not known; the tooltip has the reason.
export function unknown(why) {
  return el("span", { class: "unknown", title: why || null }, "not known");
}

export function ago(ms, iso) {
  if (!iso) return unknown("No time was stored.");
  return el("time", { datetime: iso, title: iso, "data-ms": ms }, since(ms));
}

export function since(ms) {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  const [unit, size] = UNITS.find(([, size]) => seconds >= size) ?? ["second", 1];
  return seconds === 0 ? "just now" : AGO.format(-Math.floor(seconds / size), unit);
}

// A duration in its largest unit.
export function duration(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

// A link within the page. `view` holds the parameters of the query string.
export function link(view, attributes, ...children) {
  return el("a", { href: address(view), ...attributes }, ...children);
}

export function address(view) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, value);
  }
  return query.size ? `/?${query}` : "/";
}

// Links to other parts of a list or window. An item is a text, or [label, value of `parameter`, whether it exists].
export function pagerLinks(name, view, items, parameter) {
  return el("nav", { class: "pager", "aria-label": name }, items.map((item) => {
    if (!Array.isArray(item)) return el("span", {}, item);
    const [label, value, exists] = item;
    return exists
      ? link({ ...view, [parameter]: value }, { class: "button", "data-key": label }, label)
      : el("span", { class: "button off", role: "link", "aria-disabled": "true" }, label);
  }));
}
