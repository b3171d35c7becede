// Sweeps: which there are, and the runs of one, as a table and as pictures.
import { el, plain, clock, table, pill } from "./dom.js";
import { ask, trouble } from "./app.js";
import { dots } from "./draw.js";

export function sweepsView(root) {
  const box = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  root.append(el("h1", {}, "Sweeps"), box);
  ask("/api/sweeps").then(({ sweeps }) => box.replaceChildren(table([
    { name: "Sweep", kind: "name", of: (row) => el("a", { href: `#/sweep/${encodeURIComponent(row.name)}` }, plain(row.name)) },
    { name: "Command", kind: "name", of: (row) => el("code", {}, plain(row.command)) },
    { name: "Runs", of: (row) => Object.entries(row.counts).map(([state, count]) => `${count} ${state}`).join(", ") },
    { name: "Begun", of: (row) => clock(row.created_at) },
  ], sweeps, { empty: "No sweep here yet. `grn sweep \"python train.py --lr {lr}\" -p lr 0.1 0.01` makes one; `grn web --sweeps DIR` looks elsewhere." })), (error) => box.replaceChildren(trouble(error)));
}

export function sweepView(root, name) {
  const box = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  root.append(box);
  let metric = "";
  const load = () => ask(`/api/sweep?name=${encodeURIComponent(name)}`).then(draw, (error) => box.replaceChildren(trouble(error)));
  function draw(sweep) {
    metric = sweep.metrics.includes(metric) ? metric : sweep.metric;
    const isLarge = metric === sweep.metric ? sweep.is_maximized : false;
    const worth = (row) => (typeof row[metric] === "number" ? row[metric] : isLarge ? -Infinity : Infinity);
    const rows = metric ? [...sweep.rows].sort((a, b) => (isLarge ? worth(b) - worth(a) : worth(a) - worth(b))) : sweep.rows;
    const pick = el("select", { "aria-label": "metric", onchange: (event) => { metric = event.target.value; draw(sweep); } }, sweep.metrics.map((one) => el("option", { selected: one === metric }, one)));
    const charts = metric ? sweep.parameters.map((one) => [one, dots(rows, one, metric)]).filter(([, chart]) => chart) : [];
    box.replaceChildren(
      el("h1", {}, plain(sweep.name)), el("p", {}, el("code", {}, plain(sweep.command))),
      sweep.metrics.length ? el("div", { class: "tools" }, "Metric ", pick) : "",
      charts.length ? el("div", { class: "cards" }, charts.map(([one, chart]) => el("div", { class: "chartbox" }, el("b", {}, plain(one)), chart))) : "",
      el("h2", {}, "Runs ", el("span", { class: "count" }, String(rows.length))),
      table([
        { name: "Run", kind: "name", of: (row) => plain(row.run) }, { name: "State", of: (row) => pill(row.state) },
        ...sweep.parameters.map((one) => ({ name: plain(one), of: (row) => plain(row[one] ?? "") })),
        ...sweep.metrics.map((one) => ({ name: plain(one), kind: "num", of: (row) => plain(typeof row[one] === "number" ? +row[one].toPrecision(6) : row[one] ?? "") })),
      ], rows.slice(0, 500), { stack: false, empty: "No run has ended yet." }));
  }
  load();
  const timer = setInterval(() => { if (!box.contains(document.activeElement)) load(); }, 4000);
  return { close: () => clearInterval(timer) };
}
