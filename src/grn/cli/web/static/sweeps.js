// Sweeps: which there are, and one of them as `grn sweep plot` draws it.
import { el, plain, ago, table, pill } from "./dom.js";
import { ask, trouble } from "./app.js";
import { sweepPage } from "./sweep-page.js";

export function sweepsView(root) {
  const box = el("div", {}, el("p", { class: "soft" }, "Loading…"));
  root.append(el("h1", {}, "Sweeps"), box);
  ask("/api/sweeps").then(({ sweeps }) => box.replaceChildren(table([
    { name: "Sweep", kind: "name", of: (row) => el("a", { href: `#/sweep/${encodeURIComponent(row.name)}` }, plain(row.name)) },
    { name: "Command", kind: "name", of: (row) => el("code", {}, plain(row.command)) },
    { name: "Runs", of: (row) => Object.entries(row.counts).map(([state, count]) => `${count} ${state}`).join(", ") },
    { name: "Started", kind: "when", of: (row) => ago(row.created_at) },
  ], sweeps, { empty: "No sweep here yet. `grn sweep \"python train.py --lr {lr}\" -p lr 0.1 0.01` makes one; `grn web --sweeps DIR` looks elsewhere." })), (error) => box.replaceChildren(trouble(error)));
}

// The drawing comes as HTML from the code of `grn sweep plot`, which escapes every text. It has a
// style sheet of its own, so it lives in a shadow root; scripts in it would not be run.
function drawing(host) {
  const shadow = host.attachShadow({ mode: "open" });
  const content = el("main");
  shadow.append(el("link", { rel: "stylesheet", href: "sweep-page.css" }), content);
  sweepPage(shadow, content);
  return (html) => content.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
}

export function sweepView(root, name) {
  const tools = el("div", { class: "tools" }), rest = el("div", {}, el("p", { class: "soft" }, "Loading…")), host = el("div", { class: "sweep" });
  root.append(tools, host, rest);
  const draw = drawing(host);
  let metric = "", drawn = "";
  const load = () => ask(`/api/sweep?name=${encodeURIComponent(name)}&metric=${encodeURIComponent(metric)}`).then(show, (error) => rest.replaceChildren(trouble(error)));
  function show(sweep) {
    const picture = JSON.stringify(sweep);
    if (picture === drawn) return;
    drawn = picture;
    metric = sweep.metric;
    const pick = el("select", { "aria-label": "metric", onchange: (event) => { metric = event.target.value; load(); } }, sweep.metrics.map((one) => el("option", { selected: one === metric }, one)));
    tools.replaceChildren(el("a", { href: "#/sweeps" }, "All sweeps"), ...(sweep.metrics.length > 1 ? [el("label", {}, "Metric ", pick)] : []));
    draw(sweep.html);
    rest.replaceChildren(...(sweep.html ? [] : [
      el("h1", {}, plain(sweep.name)), el("p", {}, el("code", {}, plain(sweep.command))),
      table([{ name: "Run", kind: "name", of: (row) => plain(row.run) }, { name: "State", of: (row) => pill(row.state) }], sweep.runs.slice(0, 500), { empty: "No run has ended yet." })]));
  }
  load();
  const timer = setInterval(() => { if (!tools.contains(document.activeElement)) load(); }, 4000);
  return { close: () => clearInterval(timer) };
}
