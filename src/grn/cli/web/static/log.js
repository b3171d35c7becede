// The output of a job as a terminal would show it: colours, carriage returns, follow, wrap, search.
import { el, style } from "./dom.js";
import { ask, askBlob } from "./app.js";
import { several } from "./actions.js";

const MAX_LINES = 5000, POLL_MS = 700;
const SHADES = [0, 95, 135, 175, 215, 255];

function tone(number) {
  if (number < 16) return `var(--ansi-${number})`;
  if (number > 231) { const grey = 8 + (number - 232) * 10; return `rgb(${grey},${grey},${grey})`; }
  const at = number - 16;
  return `rgb(${SHADES[Math.floor(at / 36)]},${SHADES[Math.floor(at / 6) % 6]},${SHADES[at % 6]})`;
}

// One piece of a line; `sgr` is as model/ansi.py writes it.
function piece([text, sgr]) {
  if (!sgr) return text;
  const numbers = sgr.split(";").map(Number), flags = new Set();
  let fore = "", back = "";
  while (numbers.length) {
    const one = numbers.shift();
    if (one === 38 || one === 48) {
      const found = tone(numbers.splice(0, 2)[1]);
      if (one === 38) fore = found; else back = found;
    } else flags.add(one);
  }
  if (flags.has(7)) [fore, back] = [back || "var(--card)", fore || "var(--ink)"];
  const names = [[1, "bold"], [2, "dim"], [3, "italic"], [4, "underline"]].filter(([flag]) => flags.has(flag)).map(([, name]) => name);
  const made = el("span", { class: names.join(" ") || undefined }, text);
  return style(made, { ...(fore && { color: fore }), ...(back && { background: back }) });
}

export function logPane(id, whenOver) {
  const which = el("select", { "aria-label": "stream" }, [["log", "Output"], ["err", "Standard error"]].map(([value, text]) => el("option", { value }, text)));
  const follow = el("input", { type: "checkbox", checked: true }), wrap = el("input", { type: "checkbox", checked: true });
  const find = el("input", { type: "search", size: 14, placeholder: "Search", "aria-label": "search in the output" });
  const found = el("span", { class: "soft" });
  const log = el("pre", { class: "log", tabindex: 0, "aria-label": "output" });
  const download = el("button", { class: "act", type: "button", onclick: save }, "Download");
  const box = el("div", {}, el("div", { class: "tools" }, which, el("label", {}, follow, " Follow"), el("label", {}, wrap, " Wrap"), find, found, download), log);
  let at = 0, sgr = "", timer = 0, isClosed = false, last = null, hit = -1;

  const reset = () => { at = 0; sgr = ""; last = null; log.replaceChildren(); };

  function show(said) {
    if (at === 0 && said.from > 0) log.append(el("div", { class: "soft" }, "… earlier output: Download, or `grn logs`"));
    last?.remove();
    const lines = said.lines.map((pieces) => el("div", {}, pieces.map(piece), "\n"));
    last = lines[lines.length - 1];
    log.append(...lines);
    while (log.children.length > MAX_LINES) log.firstChild.remove();
    [at, sgr] = [said.next, said.style];
    if (find.value) mark();
    if (follow.checked) log.scrollTop = log.scrollHeight;
    log.classList.toggle("none", !log.textContent.trim());
    log.dataset.none = said.is_over ? "The job has printed nothing." : "No output yet.";
  }

  async function poll() {
    if (isClosed) return;
    try {
      const said = await ask(`/api/job/${id}/log?name=${which.value}&from=${at}&style=${encodeURIComponent(sgr)}`);
      if (isClosed) return;
      show(said);
      if (said.is_over) return whenOver();
    } catch (error) { log.textContent = error.message; }
    timer = setTimeout(poll, POLL_MS);
  }

  function mark() {
    const word = find.value.toLowerCase(), hits = [];
    for (const line of log.children) {
      const isHit = Boolean(word) && line.textContent.toLowerCase().includes(word);
      line.classList.toggle("hit", isHit);
      line.classList.remove("current");
      if (isHit) hits.push(line);
    }
    hit = Math.min(hit, hits.length - 1);
    hits.forEach((line, place) => line.classList.toggle("current", place === hit));
    found.textContent = !word ? "" : hits.length ? `${hit + 1} of ${several(hits.length, "line")}` : "Not found";
    return hits;
  }

  function next(step) {
    const hits = mark();
    if (!hits.length) return;
    follow.checked = false;
    hit = (hit + step + hits.length) % hits.length;
    mark();
    hits[hit].scrollIntoView({ block: "nearest" });
  }

  async function save() {
    const link = el("a", { href: URL.createObjectURL(await askBlob(`/api/job/${id}/output?name=${which.value}`)), download: `job-${id}.${which.value}` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  find.addEventListener("input", () => { hit = -1; next(1); });
  find.addEventListener("keydown", (event) => event.key === "Enter" && next(event.shiftKey ? -1 : 1));
  wrap.addEventListener("change", () => log.classList.toggle("wide", !wrap.checked));
  follow.addEventListener("change", () => { if (follow.checked) log.scrollTop = log.scrollHeight; });
  log.addEventListener("wheel", (event) => { if (event.deltaY < 0) follow.checked = false; }, { passive: true });
  which.addEventListener("change", () => { reset(); clearTimeout(timer); poll(); });
  poll();
  return { box, close: () => { isClosed = true; clearTimeout(timer); } };
}
