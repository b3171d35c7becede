// Who was on which GPU and when. Wheel or + and - zoom, arrows and dragging move.
import { el, svg, plain, size, span, clock, now, colour, tip, room, style } from "./dom.js";
import { state, ask, trouble } from "./app.js";

const LEFT = 62, RIGHT = 10, ROW = 16, GAP = 10, MAX_NAMED = 8;

export function timelineView(root) {
  let spans = [], length = 3600, end = null, timer = 0, isFitted = false;
  const pick = el("select", { "aria-label": "period" }, [["", "all that is recent"], [600, "10 minutes"], [3600, "1 hour"], [6 * 3600, "6 hours"], [86400, "1 day"], [7 * 86400, "1 week"]].map(([value, text]) => el("option", { value }, text)));
  const button = (text, name, move) => el("button", { class: "act", type: "button", "aria-label": name, onclick: move }, text);
  const box = el("div", { class: "chartbox", tabindex: 0, "aria-label": "timeline: plus and minus zoom, arrows move" });
  root.append(el("h1", {}, "Timeline"),
    el("div", { class: "tools" }, pick, button("−", "zoom out", () => zoom(2)), button("+", "zoom in", () => zoom(0.5)), button("‹", "earlier", () => move(-0.3)), button("›", "later", () => move(0.3)), button("Now", "back to now", () => { end = null; draw(); })), box);

  const zoom = (by) => { length = Math.min(30 * 86400, Math.max(20, length * by)); draw(); };
  const move = (by) => { end = Math.min(now(), (end ?? now()) + by * length); if (now() - end < 1) end = null; draw(); };
  pick.addEventListener("change", () => { length = Number(pick.value) || 3600; end = null; isFitted = Boolean(pick.value); load(); });
  box.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8); }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const does = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.3), ArrowRight: () => move(0.3) }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  let dragged = null;
  box.addEventListener("pointerdown", (event) => { dragged = event.clientX; });
  window.addEventListener("pointerup", up);
  function up(event) {
    if (dragged !== null && Math.abs(event.clientX - dragged) > 8) move(((dragged - event.clientX) / box.clientWidth));
    dragged = null;
  }

  // The first look shows all that is recent, not an hour with everything at its edge.
  function fit() {
    if (isFitted || !spans.length) return;
    isFitted = true;
    length = Math.min(length, Math.max(60, (now() - Math.min(...spans.map((one) => one.from))) * 1.1));
  }

  // A GPU of this machine by its number, one of a node by the node's name and its number there.
  const places = (one) => one.gpus.map((gpu) => (one.where ? `${plain(one.where)}:${gpu}` : gpu));
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : 1) : typeof a === "number" ? -1 : 1);

  function lanes(gpu, from, to) {
    const free = [];
    return spans.filter((one) => places(one).includes(gpu) && (one.ended_at ?? to) >= from && one.from <= to).sort((a, b) => a.from - b.from)
      .map((one) => {
        let lane = free.findIndex((at) => at <= one.from);
        if (lane < 0) lane = free.push(0) - 1;
        free[lane] = one.ended_at ?? Infinity;
        return { one, lane };
      });
  }

  function legend(from, to) {
    const seen = [...new Set(spans.filter((one) => (one.ended_at ?? to) >= from && one.from <= to).map((one) => one.label))];
    const more = seen.length > MAX_NAMED ? [el("span", {}, `and ${seen.length - MAX_NAMED} more`)] : [];
    return el("div", { class: "legend" }, seen.slice(0, MAX_NAMED).map((label) => el("span", {}, style(el("i"), { background: colour(label) }), plain(label))), more);
  }

  function draw() {
    const to = end ?? now(), from = to - length, WIDTH = room(), parts = WIDTH < 600 ? 2 : 5;
    const indices = [...new Set([...state.gpus.map((gpu) => gpu.index), ...spans.flatMap(places)])].sort(order);
    if (!indices.length) return box.replaceChildren(el("p", { class: "soft" }, "Nothing has run yet that this page has seen."));
    const x = (at) => LEFT + ((Math.min(to, Math.max(from, at)) - from) / length) * (WIDTH - LEFT - RIGHT);
    let y = 8;
    const shapes = [];
    for (const index of indices) {
      const placed = lanes(index, from, to);
      const tall = Math.max(1, ...placed.map((one) => one.lane + 1)) * ROW;
      shapes.push(svg("rect", { x: LEFT, y, width: WIDTH - LEFT - RIGHT, height: tall, fill: "var(--track)", rx: 4 }), svg("text", { x: 4, y: y + 12 }, typeof index === "number" ? `GPU ${index}` : index.slice(0, 10)));
      for (const { one, lane } of placed) {
        const bar = svg("rect", { x: x(one.from), y: y + lane * ROW + 1, width: Math.max(2, x(one.ended_at ?? to) - x(one.from)), height: ROW - 2, rx: 3, tabindex: 0, fill: colour(one.label), opacity: one.ended_at ? 0.75 : 1 });
        const open = () => (location.hash = one.job ? `#/job/${one.job}` : `#/lease/${one.lease}`);
        bar.addEventListener("click", open);
        bar.addEventListener("keydown", (event) => event.key === "Enter" && open());
        const ended = one.ended_at ? `${span(one.ended_at - one.from)}${one.outcome ? `, ${plain(one.outcome)}` : ""}` : `running for ${span(now() - one.from)}`;
        shapes.push(tip(bar, () => `${plain(one.label)} (${plain(one.user)})\n${clock(one.from)}, ${ended}\npeak ${size(one.peak_bytes)} of ${size(one.reserved_bytes)} reserved`));
      }
      y += tall + GAP;
    }
    for (let part = 0; part <= parts; part++) {
      const at = from + (length * part) / parts;
      shapes.push(svg("text", { x: x(at), y: y + 8, "text-anchor": part === parts ? "end" : part ? "middle" : "start" }, new Date(at * 1000).toLocaleTimeString([], length > 86400 ? { weekday: "short", hour: "2-digit", minute: "2-digit" } : {})));
    }
    box.replaceChildren(svg("svg", { class: "gantt", viewBox: `0 0 ${WIDTH} ${y + 16}`, role: "img", "aria-label": "what ran on which GPU" }, shapes), legend(from, to));
  }

  const load = () => ask(`/api/timeline?since=${Math.floor(now() - Math.max(length, 86400))}`).then((said) => { spans = said.spans; fit(); draw(); }, (error) => box.replaceChildren(trouble(error)));
  load();
  timer = setInterval(() => { if (end === null) load(); }, 2000);
  return { close: () => { clearInterval(timer); window.removeEventListener("pointerup", up); } };
}
