// Bookings: who has which GPU when, a week at a time.
import { el, svg, plain, clock, now, colour, tip, room, style, table, pill, span } from "./dom.js";
import { confirmed, toast } from "./dialog.js";
import { state, ask, trouble } from "./app.js";

const LEFT = 62, RIGHT = 10, ROW = 26, GAP = 10, TOP = 6;
const DAYS = 7, WEEKS = 3; // GPUs are booked two weeks ahead, and for one week
const LETTER = 6.4; // pixels of a character on a bar
const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

// Midnights by the local clock: a day may have 23 or 25 hours.
export function midnights(from, days) {
  const first = new Date(from * 1000);
  return Array.from({ length: days + 1 }, (_, day) => new Date(first.getFullYear(), first.getMonth(), first.getDate() + day).getTime() / 1000);
}

const time = (at) => new Date(at * 1000).toLocaleTimeString([], CLOCK);
const day = (at) => new Date(at * 1000).toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });

export function bookingsView(root) {
  let found = [], week = 0, drawn = "";
  const act = (text, does) => el("button", { class: "act", type: "button", onclick: does }, text);
  const go = (to) => { week = Math.min(WEEKS - 1, Math.max(0, to)); draw(true); };
  const title = el("b", {}), box = el("div", { class: "chartbox" }), list = el("div");
  root.append(el("h1", {}, "Bookings"), el("div", { class: "tools" }, act("‹", () => go(week - 1)), act("This week", () => go(0)), act("›", () => go(week + 1)), title), box, el("h2", {}, "All bookings"), list);

  function draw(isForced = false) {
    if (!state.isKnown) return;
    if (state.is_lost) { drawn = ""; return box.replaceChildren(trouble(state.trouble)); }
    found = state.bookings;
    const picture = JSON.stringify([found, state.gpus.map((gpu) => gpu.index), Math.floor(now() / 60)]);
    if (picture === drawn && !isForced) return;
    drawn = picture;
    const days = midnights(now() + week * DAYS * 86400, DAYS);
    title.textContent = `${day(days[0])} to ${day(days[DAYS - 1])}`;
    box.replaceChildren(chart(days), legend(days));
    list.replaceChildren(bookingTable());
  }

  function chart(days) {
    const WIDTH = room(), inner = WIDTH - LEFT - RIGHT, wide = inner / DAYS;
    // Each day is as wide as the others, whatever its hours.
    const x = (at) => {
      const place = days.findIndex((from, index) => index < DAYS && at < days[index + 1]);
      if (place < 0) return LEFT + inner;
      return LEFT + Math.max(0, place + (at - days[place]) / (days[place + 1] - days[place])) * wide;
    };
    const gpus = [...new Set([...state.gpus.map((gpu) => gpu.index), ...found.flatMap((one) => one.gpus)])].sort((a, b) => a - b);
    const tall = TOP + gpus.length * (ROW + GAP);
    const tracks = gpus.flatMap((gpu, place) => [svg("rect", { x: LEFT, y: TOP + place * (ROW + GAP), width: inner, height: ROW, fill: "var(--track)", rx: 4 }), svg("text", { x: 4, y: TOP + place * (ROW + GAP) + 17 }, `GPU ${gpu}`)]);
    const grid = days.slice(1, DAYS).map((at) => svg("line", { x1: x(at), x2: x(at), y1: 0, y2: tall - GAP + 4, stroke: "var(--line)" }));
    const bars = shownIn(days).flatMap((one) => one.gpus.flatMap((gpu) => barOf(one, x, TOP + gpus.indexOf(gpu) * (ROW + GAP))));
    const at = now(), isHere = at >= days[0] && at < days[DAYS];
    const line = isHere ? [svg("line", { x1: x(at), x2: x(at), y1: 0, y2: tall - GAP + 4, stroke: "var(--bad)", "stroke-width": 2 })] : [];
    const marks = days.slice(0, DAYS).map((from, place) => svg("text", { x: LEFT + (place + 0.5) * wide, y: 14, "text-anchor": "middle" }, wide > 60 ? day(from) : String(new Date(from * 1000).getDate())));
    return el("div", {}, svg("svg", { class: "axis", viewBox: `0 0 ${WIDTH} 20`, role: "img", "aria-label": "days" }, marks), svg("svg", { class: "gantt week", viewBox: `0 0 ${WIDTH} ${tall}`, role: "img", "aria-label": "which GPU is booked when" }, tracks, grid, bars, line));
  }

  const shownIn = (days) => found.filter((one) => one.until_at > days[0] && one.from_at < days[DAYS]);
  const spanText = (one) => `${clock(one.from_at)} to ${clock(one.until_at)}`;

  function barOf(one, x, y) {
    const left = x(one.from_at), wide = Math.max(3, x(one.until_at) - left - 1), name = plain(one.user_name);
    const shape = svg("rect", { x: left, y: y + 2, width: wide, height: ROW - 4, rx: 4, tabindex: 0, fill: colour(one.user_name), opacity: one.state === "active" ? 1 : 0.75 });
    tip(shape, () => `${name}: booking ${one.id}\n${spanText(one)}${one.state === "active" ? (one.used ? "" : "\nnot used yet") : "\nits GPUs may change until it begins"}`);
    const text = wide > 12 * LETTER + name.length * LETTER ? `${name} ${time(one.from_at)}–${time(one.until_at)}` : name;
    return wide - 8 < text.length * LETTER ? [shape] : [shape, svg("text", { class: "on-bar", x: left + 5, y: y + 17 }, text)];
  }

  function legend(days) {
    const users = [...new Set(shownIn(days).map((one) => one.user_name))];
    if (!users.length) return el("p", { class: "soft" }, "Nothing is booked in this week.");
    return el("div", { class: "legend" }, users.map((user) => el("span", {}, style(el("i"), { background: colour(user) }), plain(user))));
  }

  function bookingTable() {
    return table([
      { name: "Id", of: (one) => String(one.id) },
      { name: "User", of: (one) => plain(one.user_name) },
      { name: "GPUs", of: (one) => `${one.gpus_asked} (${one.gpus.join(", ")})` },
      { name: "Begins", kind: "when", of: (one) => clock(one.from_at) },
      { name: "Ends", kind: "when", of: (one) => clock(one.until_at) },
      { name: "Lasts", kind: "num", of: (one) => span(one.until_at - one.from_at) },
      { name: "State", of: (one) => (one.state === "active" ? pill("running", one.used ? "active" : "active, unused") : pill("queued", "ahead")) },
      { name: "", title: "Actions", kind: "end", of: (one) => (one.user === state.uid ? act("Remove", () => remove(one)) : "") },
    ], found, { empty: "Nothing is booked. Book GPUs with `grn book -g 2 --from 'tomorrow 9:00' --for 4h`." });
  }

  async function remove(one) {
    if (!(await confirmed(`Remove booking ${one.id}?`, `${one.gpus_asked} GPU${one.gpus_asked === 1 ? "" : "s"}, ${spanText(one)}.`, "Remove", "Keep"))) return;
    try {
      await ask("/api/unbook", { method: "POST", body: JSON.stringify({ booking: one.id }) });
      toast(`Removed booking ${one.id}.`);
    } catch (error) { toast(plain(error.message), { isBad: true }); }
  }

  draw();
  return { update: () => draw(), close: () => {} };
}
