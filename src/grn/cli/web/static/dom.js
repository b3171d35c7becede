// Small tools to build the page. Text is only ever set as text.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat());
  return made;
}

// Controls, marks of direction and characters without width are spelled out: they could hide or
// turn around what stands beside them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;
export const plain = (text) =>
  String(text ?? "").replace(HIDDEN, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));

// As model/units.py spells them: what would be 1024 of one unit is 1 of the next.
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "?";
  if (!bytes) return "0";
  let value = bytes;
  for (const name of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    const number = value.toFixed(name === "GiB" || name === "TiB" ? 1 : 0);
    if (Math.abs(number) < 1024 || name === "TiB") return `${number} ${name}`;
    value /= 1024;
  }
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const s = Math.round(seconds), minutes = Math.floor(s / 60), hours = Math.floor(s / 3600);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${minutes} min ${s % 60} s`;
  return s < 86400 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const clock = (at) => new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
// Relative times, with the date on hover; `tick` keeps them true.
const agoText = (at) => { const past = now() - at; return past < 5 ? "just now" : `${coarse(past)} ago`; };
const coarse = (s) => (s < 60 ? `${Math.round(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`);
export const ago = (at) => el("time", { title: clock(at), "data-ago": at }, agoText(at));
export const since = (at) => el("span", { title: `since ${clock(at)}`, "data-since": at }, span(now() - at));
export function tick(box = document) {
  for (const cell of box.querySelectorAll("[data-since]")) cell.textContent = span(now() - Number(cell.dataset.since));
  for (const cell of box.querySelectorAll("[data-ago]")) cell.textContent = agoText(Number(cell.dataset.ago));
  for (const cell of box.querySelectorAll("[data-soon]")) cell.textContent = soonText(cell.dataset.soon.split(" ").map(Number));
}
// When something is expected, of a range in seconds since 1970: "in 3 min". As model/units.py names it.
const soonText = ([low, high]) => { const left = (Math.max(0, low - now()) + Math.max(0, high - now())) / 2; return left < 5 ? "soon" : `in ${coarse(left)}`; };
export const soon = (range) => el("time", { title: `between ${clock(range[0])} and ${clock(range[1])}`, "data-soon": range.join(" ") }, soonText(range));
export const now = () => Date.now() / 1000;
export const command = (argv) => plain(argv[0] === "/bin/sh" && argv[1] === "-c" && argv.length === 3 ? argv[2] : argv.join(" "));
// A sentence with `code` in it; a capital where it begins, unless with a program (`python: …`).
export function prose(text) {
  const parts = plain(text).replace(/^[a-z](?=[a-z]* \S|eld: )/, (first) => first.toUpperCase()).split("`");
  return parts.map((part, place) => (place % 2 && place < parts.length - 1 ? el("code", {}, part) : part));
}

// A job as people call it: its name, or the beginning of its command.
export function shortName(row) {
  const text = plain(row.title || row.name) || command(row.argv);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

// The second line of a job in a table: its sweep or batch, and its command.
export function jobCommand(row) {
  if (!row.command && !row.group) return null;
  return el("div", { class: "soft small command-line", title: plain(row.command) }, row.group ? el("span", { class: "tag" }, plain(row.group)) : null, plain(row.command));
}

export function pill(state, text = state) {
  return el("span", { class: `pill ${String(state).replace(/[^a-z-]/g, "")}` }, plain(text));
}

// A column with `sort` has a button in its head; `sorted` says by which and in which direction.
export function table(columns, rows, { stack = true, kind = "", empty = "", sorted = {}, onsort = null } = {}) {
  if (!rows.length) return el("p", { class: "empty" }, prose(empty));
  const arrow = (column) => (sorted.by !== column.sort ? "" : sorted.isAscending ? " ▲" : " ▼");
  const name = (column) => (column.sort && onsort ? el("button", { type: "button", "data-key": `sort-${column.sort}`, onclick: () => onsort(column.sort) }, column.name, arrow(column)) : column.name);
  const order = (column) => (column.sort && sorted.by === column.sort ? (sorted.isAscending ? "ascending" : "descending") : undefined);
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.kind, "aria-sort": order(column), "aria-label": column.title }, name(column))));
  const body = rows.map((row) =>
    el("tr", {}, columns.map((column) => el("td", { class: column.kind, "data-name": column.name }, column.of(row)))));
  return el("div", { class: "scroll" }, el("table", { class: `${stack ? "stack" : ""} ${kind}` }, el("thead", {}, head), el("tbody", {}, body)));
}

// A tip beside the pointer, or below an element that has the keyboard's focus.
export function tip(node, text) {
  const box = document.getElementById("tip");
  const show = (x, y) => {
    box.textContent = text();
    box.hidden = false;
    box.style.left = `${Math.min(x + 14, window.innerWidth - box.offsetWidth - 8)}px`;
    box.style.top = `${Math.min(y + 16, window.innerHeight - box.offsetHeight - 8)}px`;
  };
  node.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => (box.hidden = true));
  node.addEventListener("focus", () => {
    const place = node.getBoundingClientRect();
    show(place.left, place.bottom);
  });
  node.addEventListener("blur", () => (box.hidden = true));
  return node;
}

export const COLOURS = ["#2f6fde", "#26a17b", "#e08a1e", "#9a5bd4", "#d4517a", "#2aa5b8", "#8a8f2a", "#8d6248"];
const given = new Map(); // the same text has the same colour on all views; the least used one is next
export function colour(text) {
  if (!given.has(text)) {
    let sum = 0;
    for (const char of String(text)) sum = (sum * 31 + char.codePointAt(0)) >>> 0;
    const uses = (one) => [...given.values()].filter((other) => other === one).length;
    const from = COLOURS.map((_, at) => COLOURS[(sum + at) % COLOURS.length]);
    given.set(text, from.reduce((best, one) => (uses(one) < uses(best) ? one : best)));
  }
  return given.get(text);
}

// How wide a drawing may be, so that its text is as large as all other text.
export const room = () => Math.max(280, Math.min(1270, document.querySelector("main").clientWidth - 64));

export const style = (node, properties) => {
  for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value);
  return node;
};
