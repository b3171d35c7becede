// What was learned of job types: what the next run needs, what sharing costs, and a way to forget.
import { el, plain, prose, size, span, table, style } from "./dom.js";
import { confirmed, toast } from "./dialog.js";
import { ask, trouble } from "./app.js";
import { peaksChart, runTone } from "./draw.js";

export function profilesView(root) {
  const box = el("div", {}, el("p", { class: "soft" }, "Loading…"));
  root.append(el("h1", {}, "Profiles"), box);
  const load = () => ask("/api/profiles").then(({ profiles }) => {
    if (!profiles.length) return box.replaceChildren(el("p", { class: "empty" }, "Nothing is learned yet. The first run of a job type is measured."));
    box.replaceChildren(el("div", { class: "cards" }, profiles.map((row) => card(row, load))));
  }, (error) => box.replaceChildren(trouble(error)));
  load();
}

function forgetButton(row, load) {
  return el("button", { class: "act", type: "button", onclick: async () => {
    if (!(await confirmed(`Forget ${plain(row.label)}?`, "Its next run is measured again, with all the free memory of a GPU.", "Forget", "Keep"))) return;
    try {
      await ask("/api/forget", { method: "POST", body: JSON.stringify({ type: row.type }) });
      toast(`Forgot ${plain(row.label)}.`);
      load();
    } catch (error) { toast(plain(error.message), { isBad: true }); }
  } }, "Forget");
}

// Only the kinds of bars that are there are explained.
function legend(runs) {
  const kinds = [["var(--accent)", "Counts for the estimate"], ["var(--bad)", "Failed or cut short, not counted"], ["var(--stranger)", "Out of date"]];
  const there = new Set(runs.map(runTone));
  return el("div", { class: "legend" }, kinds.filter(([tone]) => there.has(tone)).map(([tone, text]) => el("span", {}, style(el("i"), { background: tone }), text)));
}

const lastPart = (path) => plain(path).split("/").pop();

function sharing(row) {
  const parts = [];
  if (row.load) parts.push(el("p", { class: "small" }, `Keeps a GPU ${Math.max(1, Math.round(100 * row.load))} % busy${row.load_cap ? `; shared up to ${Math.round(100 * row.load_cap)} %` : ""}.`));
  const beside = Object.entries(row.slower_beside || {}).sort((a, b) => b[1] - a[1]);
  if (beside.length) parts.push(el("p", { class: "small" }, "Sharing costs: ", beside.slice(0, 5).map(([type, times], at) => el("span", { title: plain(type) }, `${at ? ", " : ""}${(+times.toFixed(2))} times as long beside ${lastPart(type)}`)), "."));
  return parts;
}

// What the next run is believed to need of the machine beside its GPUs.
function onHost(row) {
  const parts = [];
  const most = row.peak_cpus ?? row.cpus;
  if (row.ram_bytes != null) parts.push(`${size(row.ram_bytes)} of memory`);
  if (row.cpus != null) parts.push(most < 0.1 ? "under 0.1 cores" : `usually ${+row.cpus.toFixed(1)} cores, ${+most.toFixed(1)} at most`);
  return parts.length ? el("p", { class: "small", title: plain(row.ram_because || "") }, `On the host: ${parts.join("; ")}.`) : "";
}

function card(row, load) {
  const names = [...new Set(row.history.flatMap((run) => Object.keys(run.args)))];
  const details = names.length ? el("details", {}, el("summary", {}, "Arguments and peaks"), table([
    ...names.map((name) => ({ name: plain(name), of: (run) => plain(run.args[name] ?? "") })),
    { name: "Peak", kind: "num", of: (run) => size(run.peak_bytes) }, { name: "Took", kind: "num", of: (run) => span(run.duration_s) }, { name: "Outcome", of: (run) => plain(run.outcome) },
  ], row.history, { stack: false })) : null;
  const runs = `${row.runs} run${row.runs === 1 ? "" : "s"}${row.usual_duration_s === null ? "" : row.usual_duration_s < 0.1 ? ", under 0.1 s each" : `, usually ${span(row.usual_duration_s)}`}`;
  return el("section", { class: "card", "aria-label": plain(row.label) },
    el("div", { class: "top" }, el("b", {}, plain(row.label)), el("small", {}, plain(row.model))),
    el("p", {}, row.estimate_bytes === null ? "The need of the next run is not known yet. " : el("b", {}, `The next run needs ${size(row.estimate_bytes)}. `), el("span", { class: "soft" }, prose(row.because), ".")),
    onHost(row),
    peaksChart(row.history, row.estimate_bytes), legend(row.history), sharing(row),
    el("div", { class: "top" }, el("small", {}, runs), forgetButton(row, load)), details);
}
