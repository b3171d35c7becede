// Charts as SVG: lines, dots, axes with round numbers.
import { svg, size, span, plain, tip, colour, room } from "./dom.js";

export function ticks(low, high, count = 5) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw) || raw;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return found;
}

export const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 14 * 86400];

// Whole seconds, minutes, hours or days since a start, as many as have room.
export function timeTicks(length, most) {
  const step = TIME_STEPS.find((one) => length / one <= most) || TIME_STEPS[TIME_STEPS.length - 1];
  return Array.from({ length: Math.floor(length / step + 1e-6) + 1 }, (_, at) => at * step);
}

// A mark of an axis: "1 h 30 min", and no "0 s" after full minutes.
export function roundSpan(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let left = Math.round(seconds);
  const parts = units.flatMap(([size, name]) => { const count = Math.floor(left / size); left -= count * size; return count ? [`${count} ${name}`] : []; });
  return parts.join(" ") || "0";
}

// Marks for sizes: 1, 2 or 4 of something that has a name.
function sizeTicks(most) {
  const step = 2 ** Math.ceil(Math.log2(most / 4));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

const axisText = (x, y, text, anchor = "end") => svg("text", { x, y, "text-anchor": anchor }, text);

// Memory over time against its reservation; load as a thin line below.
export function memoryChart(points, reserved, title) {
  const [width, height, left, right, top, bottom] = [room(), 220, 60, 12, 20, 24];
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  if (points.length < 2) return null;
  const from = points[0][0], to = points[points.length - 1][0] || from + 1;
  const most = Math.max(reserved || 0, ...points.map((one) => one[1] || 0)) * 1.08 || 1;
  const x = (at) => left + ((at - from) / (to - from || 1)) * (width - left - right);
  const y = (bytes) => height - bottom - (bytes / most) * (height - top - bottom);
  for (const mark of sizeTicks(most)) {
    const at = y(mark);
    root.append(svg("line", { x1: left, x2: width - right, y1: at, y2: at, stroke: "var(--line)" }));
    root.append(axisText(left - 6, at + 4, size(mark)));
  }
  for (const mark of timeTicks(to - from, Math.min(8, width / 110))) {
    const at = x(from + mark);
    root.append(axisText(at, height - 8, roundSpan(mark), at > width - right - 30 ? "end" : "middle"));
  }
  const known = points.filter((one) => one[1] !== null);
  if (known.length) {
    const line = known.map((one) => `${x(one[0]).toFixed(1)},${y(one[1]).toFixed(1)}`);
    const ends = `${x(known[known.length - 1][0]).toFixed(1)},${y(0)} ${x(known[0][0]).toFixed(1)},${y(0)}`;
    root.append(svg("polygon", { points: `${line.join(" ")} ${ends}`, fill: "var(--accent)", opacity: 0.16 }));
    root.append(svg("polyline", { points: line.join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }));
  }
  if (reserved) {
    root.append(svg("line", { x1: left, x2: width - right, y1: y(reserved), y2: y(reserved), stroke: "var(--warn)", "stroke-width": 1.5, "stroke-dasharray": "6 4" }));
    root.append(axisText(width - right, y(reserved) - 5, `reserved ${size(reserved)}`));
  }
  return root;
}

// The recent load of each GPU, one line for each.
export function loadChart(loads) {
  const [width, height, left, right, top, bottom] = [room(), 120, 60, 12, 10, 22];
  const long = Math.max(0, ...loads.map((one) => one.load_pct.length));
  if (long < 2) return null;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "how busy its GPUs were" });
  const y = (percent) => height - bottom - (percent / 100) * (height - top - bottom);
  for (const mark of [0, 50, 100]) {
    root.append(svg("line", { x1: left, x2: width - right, y1: y(mark), y2: y(mark), stroke: "var(--line)" }));
    root.append(axisText(left - 6, y(mark) + 4, `${mark} %`));
  }
  const step = loads[0].step_s;
  const x = (place) => left + (place / (long - 1)) * (width - left - right);
  for (const mark of timeTicks((long - 1) * step, Math.min(4, width / 110)).slice(1)) {
    const at = x(long - 1 - mark / step);
    root.append(axisText(at, height - 6, `${roundSpan(mark)} ago`, at < left + 30 ? "start" : "middle"));
  }
  root.append(axisText(width - right, height - 6, "now"));
  for (const one of loads) {
    const first = long - one.load_pct.length;
    const points = one.load_pct.map((load, place) => (load === null ? null : `${x(first + place).toFixed(1)},${y(load).toFixed(1)}`)).filter(Boolean);
    root.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: colour(`GPU ${one.gpu}`), "stroke-width": 1.8 }));
  }
  return root;
}

// Which runs tell what the next one needs, and which failed or are out of date.
export const runTone = (run) => (run.outdated ? "var(--stranger)" : run.counts ? "var(--accent)" : "var(--bad)");

// One bar for each run: its peak, beside what was reserved for it; the estimate as a line.
export function peaksChart(runs, estimate) {
  const [width, height, left, right, top, bottom] = [360, 170, 62, 8, 16, 8];
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "memory peaks of past runs" });
  const most = Math.max(estimate || 0, ...runs.map((run) => Math.max(run.peak_bytes, 0))) * 1.1 || 1;
  const y = (bytes) => height - bottom - (bytes / most) * (height - top - bottom);
  for (const mark of sizeTicks(most)) {
    const at = y(mark);
    root.append(svg("line", { x1: left, x2: width - right, y1: at, y2: at, stroke: "var(--line)" }));
    root.append(axisText(left - 6, at + 4, size(mark)));
  }
  const wide = Math.min(26, (width - left - right) / Math.max(runs.length, 1));
  runs.forEach((run, place) => {
    const bar = svg("rect", { x: left + place * wide + 2, y: y(run.peak_bytes), width: Math.max(2, wide - 4), height: Math.max(1, height - bottom - y(run.peak_bytes)), rx: 3, tabindex: 0, fill: runTone(run) });
    root.append(tip(bar, () => `${plain(run.outcome)}: ${size(run.peak_bytes)} in ${span(run.duration_s)}\n${Object.entries(run.args).map(([name, value]) => `${plain(name)}=${plain(value)}`).join(" ")}`));
  });
  if (estimate) {
    root.append(svg("line", { x1: left, x2: width - right, y1: y(estimate), y2: y(estimate), stroke: "var(--good)", "stroke-width": 1.5, "stroke-dasharray": "6 4" }));
    root.append(axisText(width - right, y(estimate) - 5, `next run ${size(estimate)}`));
  }
  return root;
}

// The load of one GPU in the last two minutes, without axes; a gap where it is unknown.
export function sparkline(load) {
  const [width, height] = [92, 26], values = load.load_pct.slice(-60), step = width / 59;
  if (values.length < 2) return null;
  const first = 60 - values.length;
  const root = svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `load of GPU ${load.gpu}` });
  let line = [];
  const close = () => { if (line.length > 1) root.append(svg("polyline", { points: line.join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.5 })); line = []; };
  values.forEach((value, place) => { if (value === null) close(); else line.push(`${((first + place) * step).toFixed(1)},${(height - 2 - (value / 100) * (height - 4)).toFixed(1)}`); });
  close();
  const last = values[values.length - 1];
  return tip(root, () => `GPU ${load.gpu}: ${last === null ? "load unknown" : `${Math.round(last)} % busy`}`);
}
