// Jobs of one's queue that have ended.
import { el, plain, size, span, clock, pill, table, command } from "./dom.js";
import { ask, trouble } from "./app.js";

export function historyView(root) {
  const filter = el("input", { type: "search", size: 26, placeholder: "filter by command or outcome", "aria-label": "filter" });
  const more = el("select", { "aria-label": "how many" }, [200, 1000, 10000].map((count) => el("option", { value: count }, `last ${count}`)));
  const box = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  root.append(el("h1", {}, "History"), el("div", { class: "tools" }, filter, more), box);
  let jobs = [];
  const draw = () => {
    const word = filter.value.toLowerCase();
    const found = jobs.filter((row) => !word || `${row.id} ${row.name} ${command(row.argv)} ${row.reason} ${row.where}`.toLowerCase().includes(word));
    box.replaceChildren(table([
      { name: "Id", kind: "num", of: (row) => el("a", { href: `#/job/${row.id}` }, row.id) },
      { name: "Command", kind: "name", of: (row) => el("a", { href: `#/job/${row.id}` }, row.name ? `${plain(row.name)}: ` : "", command(row.argv)) },
      { name: "Ended", kind: "when", of: (row) => clock(row.ended_at) },
      { name: "Took", kind: "num", of: (row) => (row.ran_s === null ? "" : span(row.ran_s)) },
      { name: "Peak", kind: "num", of: (row) => (row.peak_bytes === null ? "" : size(row.peak_bytes)) },
      ...(jobs.some((row) => row.where) ? [{ name: "Where", of: (row) => plain(row.where || "local") }] : []),
      { name: "Outcome", of: (row) => pill(row.reason) },
      { name: "", kind: "why", of: (row) => plain(row.text) },
    ], found.slice(0, 500), { empty: jobs.length ? "No job matches." : "Nothing has ended yet. `grn submit -- CMD` runs a command." }));
    if (found.length > 500) box.append(el("p", { class: "soft" }, `500 of ${found.length} shown: filter to find others.`));
  };
  const load = () => ask(`/api/history?most=${more.value}`).then((said) => { jobs = said.jobs; draw(); }, (error) => box.replaceChildren(trouble(error)));
  filter.addEventListener("input", draw);
  more.addEventListener("change", load);
  load();
}
