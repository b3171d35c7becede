// Jobs of one's queue that have ended: filtered and sorted by the queue, which knows all of them.
import { el, plain, prose, size, span, ago, tick, pill, table, jobCommand } from "./dom.js";
import { actOn, selection, several } from "./actions.js";
import { confirmed, toast } from "./dialog.js";
import { pager } from "./pager.js";
import { ask, trouble } from "./app.js";


export function historyView(root, wanted) {
  const filter = el("input", { type: "search", size: 34, value: wanted || null, placeholder: "Filter by name, command or outcome", "aria-label": "filter" });
  const box = el("div", {}, el("p", { class: "soft" }, "Loading…"));
  const failed = el("button", { class: "act", type: "button", onclick: retryFailed }, "Run all failed again");
  const turn = pager(() => load());
  const chosen = selection(() => draw(), { verbs: ["retry"], after: () => load() });
  root.append(el("h1", {}, "History"), el("div", { class: "tools" }, filter, failed), chosen.bar, box, turn.bar);
  let said = null, sort = "ended", isAscending = false, timer = 0, asked = 0;
  const words = () => encodeURIComponent(filter.value.trim());

  async function load() {
    const mine = ++asked;
    try {
      const answer = await ask(`/api/history?most=${turn.size}&skip=${turn.skip}&sort=${sort}&ascending=${isAscending ? 1 : 0}&match=${words()}`);
      if (mine !== asked) return;
      said = answer;
      if (turn.tell(said.total)) draw(); else load();
    } catch (error) { if (mine === asked) box.replaceChildren(trouble(error)); }
  }

  async function retryFailed() {
    try {
      const found = await ask(`/api/failed?match=${words()}`);
      if (!found.count) return toast("No failed job is left to run again.");
      const which = filter.value.trim() ? ` that match "${plain(filter.value.trim())}"` : "";
      if (!(await confirmed(`Run ${several(found.count, "failed job")} again?`, `All failed jobs${which}, except those already run again.`, `Run ${several(found.count)} again`, "Close", "primary"))) return;
      const answer = await actOn(found.jobs, "retry");
      toast(`${several(found.count)} submitted again, from job ${answer.first} on.`);
    } catch (error) { toast(plain(error.message), { isBad: true }); }
  }

  function draw() {
    if (!said) return;
    chosen.keep(said.jobs);
    const link = (row, ...inner) => el("a", { href: `#/job/${row.id}` }, inner);
    const why = (row) => (row.text ? el("div", { class: "small why", title: plain(row.text) }, prose(row.text)) : null);
    const focused = document.activeElement?.dataset?.key;
    box.replaceChildren(table([
      { name: "", title: "Select", kind: "pick", of: (row) => chosen.box(row) },
      { name: "Job", sort: "name", kind: "name", of: (row) => el("div", {}, link(row, plain(row.name)), jobCommand(row), why(row)) },
      { name: "Id", sort: "id", kind: "id", of: (row) => link(row, row.id) },
      { name: "Outcome", sort: "reason", kind: "state", of: (row) => pill(row.reason) },
      { name: "Ended", sort: "ended", kind: "when", of: (row) => ago(row.ended_at) },
      { name: "Took", sort: "ran", kind: "num", of: (row) => (row.ran_s === null ? "" : span(row.ran_s)) },
      { name: "Peak", sort: "peak", kind: "num", of: (row) => (row.peak_bytes === null ? "" : size(row.peak_bytes)) },
      { name: "GPU", sort: "gpu", kind: "gpu", of: (row) => row.gpus.join(", ") },
      ...(said.jobs.some((row) => row.where) ? [{ name: "Where", kind: "where", of: (row) => plain(row.where || "local") }] : []),
      { name: "User", kind: "user", of: (row) => plain(row.user) },
    ], said.jobs, { kind: "jobs", empty: filter.value.trim() ? "No job matches." : "Nothing has ended yet. `grn submit -- CMD` runs a command.", sorted: { by: sort, isAscending },
      onsort: (by) => { isAscending = by === sort ? !isAscending : by === "name"; sort = by; turn.begin(); load(); } }));
    if (focused) box.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  filter.addEventListener("input", () => { turn.begin(); clearTimeout(timer); timer = setTimeout(load, 150); });
  load();
  const clock = setInterval(() => tick(box), 5000);
  return { close: () => { clearInterval(clock); clearTimeout(timer); } };
}
