// What was learned of job types.
import { el, plain, size, span, table } from "./dom.js";
import { ask, trouble } from "./app.js";
import { peaksChart } from "./draw.js";

export function profilesView(root) {
  const box = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  root.append(el("h1", {}, "Profiles"), box);
  ask("/api/profiles").then(({ profiles }) => {
    if (!profiles.length) return box.replaceChildren(el("p", { class: "empty" }, "Nothing was learned yet: the first run of a job type is measured."));
    box.replaceChildren(el("div", { class: "cards" }, profiles.map(card)));
  }, (error) => box.replaceChildren(trouble(error)));
}

function card(row) {
  const chart = peaksChart(row.history, row.estimate_bytes);
  const names = [...new Set(row.history.flatMap((run) => Object.keys(run.args)))];
  const details = names.length ? el("details", {}, el("summary", {}, "Arguments and peaks"), table([
    ...names.map((name) => ({ name: plain(name), of: (run) => plain(run.args[name] ?? "") })),
    { name: "Peak", kind: "num", of: (run) => size(run.peak_bytes) }, { name: "Took", kind: "num", of: (run) => span(run.duration_s) }, { name: "Outcome", of: (run) => plain(run.outcome) },
  ], row.history, { stack: false })) : null;
  return el("section", { class: "card", "aria-label": plain(row.label) },
    el("div", { class: "top" }, el("b", {}, plain(row.label)), el("small", {}, plain(row.model))),
    el("p", {}, row.estimate_bytes === null ? "Not known yet. " : `The next run is believed to need ${size(row.estimate_bytes)}. `, el("span", { class: "soft" }, plain(row.because))),
    chart, el("small", {}, `${row.runs} run${row.runs === 1 ? "" : "s"}${row.usual_duration_s === null ? "" : `, usually ${span(row.usual_duration_s)}`}`), details);
}
