// What ran on which GPU and when. Wheel or + and - zoom, arrows and dragging move.
import { el, svg, plain, size, span, clock, now, colour, tip, room, style } from "./dom.js";
import { TIME_STEPS } from "./draw.js";
import { state, ask, trouble } from "./app.js";

const LEFT = 62, RIGHT = 10, ROW = 18, GAP = 12, MAX_NAMED = 8, MAX_LANES = 6, MAX_BARS = 1500;
const THIN = 6, CELL = 5, STRIP = 12; // pixels: a bar that is too short to see; a cell of the density below the lanes
const LETTER = 6.4; // pixels of a character on a bar
const PERIODS = [["", "Everything recent"], [600, "10 minutes"], [3600, "1 hour"], [6 * 3600, "6 hours"], [86400, "1 day"], [7 * 86400, "1 week"]];

// Its end is red: it failed, which a cancelled one or one that gave way did not.
const WELL = ["", "ok", "profiled", "running", "cancelled", "interrupted", "requeued", "yielded", "not-started", "skipped"];
const hasFailed = (one) => !WELL.includes(one.outcome || "");

// Full minutes, hours or days of the local clock, as many as have room.
export function roundTimes(from, to, most) {
  const step = TIME_STEPS.find((one) => (to - from) / one <= most) || TIME_STEPS[TIME_STEPS.length - 1];
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) found.push(at);
  return { step, times: found };
}

function timeText(at, step, length) {
  const date = new Date(at * 1000);
  if (step >= 86400) return date.toLocaleDateString([], { month: "short", day: "numeric" });
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }), hourCycle: "h23" });
  return length > 86400 ? `${date.toLocaleDateString([], { weekday: "short" })} ${time}` : time;
}

// Bars that can be seen get a lane while there is one; all others are counted, cell by cell.
export function placed(spans, x, to) {
  const free = [], bars = [], cells = new Map();
  for (const one of [...spans].sort((a, b) => a.from - b.from)) {
    const left = x(one.from), wide = x(one.ended_at ?? to) - left;
    let lane = wide < THIN ? -1 : free.findIndex((at) => at <= one.from);
    if (lane < 0 && wide >= THIN && free.length < MAX_LANES) lane = free.push(0) - 1;
    if (lane < 0 || bars.length >= MAX_BARS) {
      for (let cell = Math.floor(left / CELL); cell <= Math.max(Math.floor(left / CELL), Math.ceil((left + wide) / CELL) - 1); cell++) cells.set(cell, [...(cells.get(cell) || []), one]);
      continue;
    }
    free[lane] = one.ended_at ?? Infinity;
    bars.push({ one, lane, left, wide });
  }
  return { bars, cells, lanes: Math.max(1, free.length) };
}

export function timelineView(root) {
  let spans = [], length = 3600, end = null, timer = 0, isFitted = false, isPartial = false, pointer = null;
  const own = el("option", { value: "own", hidden: true });
  const pick = el("select", { "aria-label": "period" }, PERIODS.map(([value, text]) => el("option", { value }, text)), own);
  const button = (text, name, move) => el("button", { class: "act", type: "button", "aria-label": name, onclick: move }, text);
  const box = el("div", { class: "chartbox timeline", tabindex: 0, "aria-label": "timeline: plus and minus zoom, arrows move" });
  const note = el("p", { class: "soft" });
  root.append(el("h1", {}, "Timeline"),
    el("div", { class: "tools" }, pick, button("−", "zoom out", () => zoom(2)), button("+", "zoom in", () => zoom(0.5)), button("‹", "earlier", () => move(-0.3)), button("›", "later", () => move(0.3)), button("Now", "back to now", () => { end = null; draw(); })), box, note);

  const until = () => end ?? now();
  // The select tells what is shown, also after a zoom.
  function tellPeriod() {
    const known = PERIODS.find(([value]) => value && Math.abs(value - length) < 1);
    own.textContent = span(length);
    own.hidden = Boolean(known);
    pick.value = known ? String(known[0]) : "own";
  }
  function zoom(by, share = 1) {
    const at = until() - (1 - share) * length;
    length = Math.min(30 * 86400, Math.max(20, length * by));
    end = at + (1 - share) * length;
    if (share === 1 || end >= now()) end = end >= now() - 1 ? null : end;
    isFitted = true;
    tellPeriod();
    if (length > 86400) load(); else draw();
  }
  const move = (by) => { end = Math.min(now(), until() + by * length); if (now() - end < 1) end = null; draw(); };
  const shareAt = (clientX) => { const place = box.getBoundingClientRect(), inner = place.width - LEFT - RIGHT - 24; return Math.min(1, Math.max(0, (clientX - place.left - LEFT - 12) / inner)); };
  pick.addEventListener("change", () => { if (pick.value === "own") return; length = Number(pick.value) || 86400; end = null; isFitted = Boolean(pick.value); load(); });
  box.addEventListener("wheel", (event) => { event.preventDefault(); pointer = [event.clientX, event.clientY]; zoom(event.deltaY > 0 ? 1.25 : 0.8, shareAt(event.clientX)); }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const does = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.3), ArrowRight: () => move(0.3) }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  box.addEventListener("pointermove", (event) => { if (event.isTrusted) pointer = [event.clientX, event.clientY]; });
  box.addEventListener("pointerleave", () => { pointer = null; });
  let dragged = null;
  box.addEventListener("pointerdown", (event) => { dragged = event.clientX; });
  window.addEventListener("pointerup", up);
  function up(event) {
    if (dragged !== null && Math.abs(event.clientX - dragged) > 8) move((dragged - event.clientX) / box.clientWidth);
    dragged = null;
  }

  // The first look shows everything recent, not an hour with everything at its edge.
  function fit() {
    if (isFitted || !spans.length) return;
    isFitted = true;
    length = Math.min(86400, Math.max(60, (now() - Math.min(...spans.map((one) => one.from))) * 1.05));
  }

  // A GPU of this machine by its number, one of a node by the node's name and its number there.
  const places = (one) => one.gpus.map((gpu) => (one.where ? `${plain(one.where)}:${gpu}` : gpu));
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : 1) : typeof a === "number" ? -1 : 1);

  function legend(shown) {
    const seen = [...new Set(shown.map((one) => one.type))];
    const more = seen.length > MAX_NAMED ? [el("span", {}, `and ${seen.length - MAX_NAMED} more`)] : [];
    return el("div", { class: "legend" }, seen.slice(0, MAX_NAMED).map((type) => el("span", {}, style(el("i"), { background: colour(type) }), plain(type))), more, shown.some(hasFailed) ? el("span", {}, style(el("i"), { background: "var(--bad)" }), "red end: failed") : null);
  }

  function barOf({ one, lane, left, wide }, y) {
    const shape = svg("rect", { x: left, y: y + lane * ROW + 1, width: Math.max(2, wide - 1), height: ROW - 2, rx: 3, tabindex: 0, fill: colour(one.type), opacity: one.ended_at ? 0.75 : 1, class: "bar-of-job" });
    const open = () => (location.hash = one.job ? `#/job/${one.job}` : `#/lease/${one.lease}`);
    shape.addEventListener("click", open);
    shape.addEventListener("keydown", (event) => event.key === "Enter" && open());
    const ended = one.ended_at ? `${span(one.ended_at - one.from)}${one.outcome ? `, ${plain(one.outcome)}` : ""}` : `running for ${span(now() - one.from)}`;
    tip(shape, () => `${plain(one.label)} (${plain(one.user)})\n${clock(one.from)}, ${ended}\npeak ${size(one.peak_bytes)} of ${size(one.reserved_bytes)} reserved`);
    const letters = Math.floor((wide - 10) / LETTER), name = plain(one.label);
    const failed = hasFailed(one) ? [svg("rect", { class: "failed-end", x: left + Math.max(2, wide - 1) - 4, y: y + lane * ROW + 1, width: 4, height: ROW - 2, fill: "var(--bad)" })] : [];
    if (letters < 4) return [shape, ...failed];
    return [shape, ...failed, svg("text", { class: "on-bar", x: left + 5, y: y + lane * ROW + 13 }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name)];
  }

  // Short jobs, the stronger the more there were.
  function density(cells, y, from, seconds) {
    const most = Math.max(1, ...[...cells.values()].map((found) => found.length));
    return [...cells].map(([cell, found]) => {
      const at = from + (cell * CELL - LEFT) * seconds, bad = found.filter(hasFailed).length;
      const shape = svg("rect", { x: cell * CELL, y, width: CELL - 0.5, height: STRIP, fill: colour(found[0].type), opacity: 0.3 + 0.7 * (found.length / most), tabindex: 0, class: "density" });
      const only = found.length === 1 ? found[0] : null;
      shape.addEventListener("click", () => { if (only) location.hash = only.job ? `#/job/${only.job}` : `#/lease/${only.lease}`; else zoomTo(found); });
      return tip(shape, () => `${only ? plain(only.label) : `${found.length} jobs, mostly ${plain(found[0].type)}`}\n${clock(at)}${bad ? `, ${bad} failed` : ""}`);
    });
  }
  function zoomTo(found) {
    const first = Math.min(...found.map((one) => one.from)), last = Math.max(...found.map((one) => one.ended_at ?? now()));
    length = Math.max(20, (last - first) * 1.5);
    end = Math.min(now(), last + length / 6);
    tellPeriod();
    draw();
  }

  function draw() {
    const to = until(), from = to - length, WIDTH = room(), inner = WIDTH - LEFT - RIGHT;
    const shown = spans.filter((one) => (one.ended_at ?? to) >= from && one.from <= to);
    const indices = [...new Set([...state.gpus.map((gpu) => gpu.index), ...spans.flatMap(places)])].sort(order);
    if (!indices.length) return box.replaceChildren(el("p", { class: "soft" }, "Nothing has run yet."));
    const x = (at) => LEFT + ((Math.min(to, Math.max(from, at)) - from) / length) * inner;
    const { step, times } = roundTimes(from, to, Math.max(3, inner / (length > 86400 ? 90 : 70)));
    let y = 4;
    const shapes = [], tracks = [];
    for (const index of indices) {
      const { bars, cells, lanes } = placed(shown.filter((one) => places(one).includes(index)), x, to);
      const tall = lanes * ROW + (cells.size ? STRIP + 2 : 0);
      tracks.push(svg("rect", { x: LEFT, y, width: inner, height: tall, fill: "var(--track)", rx: 4 }), svg("text", { x: 4, y: y + 13 }, typeof index === "number" ? `GPU ${index}` : index.slice(0, 10)));
      shapes.push(...bars.flatMap((bar) => barOf(bar, y)), ...density(cells, y + lanes * ROW + 1, from, length / inner));
      y += tall + GAP;
    }
    const grid = times.map((at) => svg("line", { x1: x(at), x2: x(at), y1: 0, y2: y - GAP + 4, stroke: "var(--line)" }));
    const marks = times.filter((at) => x(at) < WIDTH - 24).map((at) => svg("text", { x: x(at), y: 14, "text-anchor": x(at) < LEFT + 20 ? "start" : "middle" }, timeText(at, step, length)));
    const axis = svg("svg", { class: "axis", viewBox: `0 0 ${WIDTH} 20`, role: "img", "aria-label": "times" }, marks);
    box.replaceChildren(axis, svg("svg", { class: "gantt", viewBox: `0 0 ${WIDTH} ${y}`, role: "img", "aria-label": "what ran on which GPU" }, tracks, grid, shapes), legend(shown));
    note.textContent = isPartial ? "The latest 2,000 and the 500 longest of your jobs are shown." : "";
    point();
  }

  // The tip belongs to what is under the pointer now, not to what was there before.
  function point() {
    document.getElementById("tip").hidden = true;
    const under = pointer && document.elementFromPoint(...pointer);
    under?.dispatchEvent(new PointerEvent("pointermove", { clientX: pointer[0], clientY: pointer[1] }));
  }

  const load = () => ask(`/api/timeline?since=${Math.floor(now() - Math.max(length, 86400))}`).then((said) => { [spans, isPartial] = [said.spans, said.is_partial]; fit(); draw(); }, (error) => box.replaceChildren(trouble(error)));
  load();
  timer = setInterval(() => { if (end === null) load(); }, 2000);
  return { close: () => { clearInterval(timer); window.removeEventListener("pointerup", up); } };
}
