// One array: counts of its jobs by state, and pages of them, filtered by the queue.
import { el, plain, prose, size, span, since, ago, tick, pill, table } from "./dom.js";
import { actOn, jobActs, selection, several } from "./actions.js";
import { confirmed, toast } from "./dialog.js";
import { pager } from "./pager.js";
import { ask, trouble } from "./app.js";

const ORDER = ["running", "stopping", "queued", "held", "ok"];
const VERBS = { cancel: ["Cancel", "Cancelled"], hold: ["Hold", "Held"], release: ["Release", "Released"], retry: ["Run failed again", "Submitted again:"] };
const AGAIN_MS = 2000, SHARE = 10; // a slow answer is asked for less often

export function arrayView(root, id) {
  const head = el("div", {}, el("p", { class: "soft" }, "Loading…")), chips = el("div", { class: "tools chips", role: "group", "aria-label": "states" });
  const filter = el("input", { type: "search", size: 30, placeholder: "Filter by number, [42], or outcome", "aria-label": "filter jobs of the array" });
  const box = el("div"), turn = pager(() => load());
  const chosen = selection(() => draw(), { verbs: ["cancel", "hold", "release"], after: () => load() });
  const acts = el("div", { class: "acts" }, Object.keys(VERBS).map((verb) => el("button", { class: `act ${verb === "cancel" ? "danger" : ""}`, type: "button", "data-key": `array-${verb}`, onclick: () => act(verb) }, VERBS[verb][0])));
  root.append(head, chips, el("div", { class: "tools" }, filter, acts), chosen.bar, box, turn.bar);
  let said = null, state = "", timer = 0, asked = 0, isClosed = false;
  const query = () => `match=${encodeURIComponent(filter.value.trim())}&state=${state}`;

  async function load() {
    const mine = ++asked, began = performance.now();
    clearTimeout(timer);
    try {
      const answer = await ask(`/api/array/${id}?${query()}&skip=${turn.skip}&most=${turn.size}`);
      if (mine !== asked) return;
      said = answer;
      if (turn.tell(said.total)) draw(); else load();
    } catch (error) { if (mine === asked) head.replaceChildren(trouble(error)); }
    if (mine === asked && !isClosed) timer = setTimeout(load, Math.max(AGAIN_MS, SHARE * (performance.now() - began)));
  }

  // All jobs that match, not only those of this page.
  async function act(verb) {
    try {
      const found = await ask(`/api/array/${id}/ids?for=${verb}&${query()}`);
      if (!found.count) return toast("No job of this array is left for that.");
      const which = filter.value.trim() || state ? "Those that match, on all pages." : "All for which it is possible.";
      if (!(await confirmed(`${VERBS[verb][0]}: ${several(found.count)}?`, which, `${VERBS[verb][0]} ${several(found.count)}`, "Close", verb === "cancel" ? "danger" : "primary"))) return;
      await actOn(found.jobs, verb);
      toast(`${VERBS[verb][1]} ${several(found.count)}.`);
      load();
    } catch (error) { toast(plain(error.message), { isBad: true }); }
  }

  function drawHead() {
    document.title = `${plain(said.name)} · grn`;
    head.replaceChildren(el("h1", {}, plain(said.name), " ", el("span", { class: "soft" }, `array of ${several(said.count)}, ids ${said.first}–${said.first + said.count - 1}`)), el("p", { class: "command" }, el("code", {}, plain(said.command))));
    const place = (one) => (ORDER.includes(one) ? ORDER.indexOf(one) : ORDER.length);
    const states = Object.keys(said.states).sort((a, b) => place(a) - place(b) || a.localeCompare(b));
    const chip = (name, text) => el("button", { class: "act chip", type: "button", "data-key": `state-${name}`, "aria-pressed": String(state === name), onclick: () => { state = state === name ? "" : name; turn.begin(); load(); } }, text);
    const focused = document.activeElement?.dataset?.key;
    chips.replaceChildren(...states.map((name) => chip(name, [pill(name), ` ${said.states[name].toLocaleString("en")}`])));
    if (focused) chips.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function draw() {
    if (!said) return;
    drawHead();
    const alive = said.jobs.filter((row) => row.state !== "ended").map((row) => ({ ...row, ids: String(row.id), count: 1 }));
    chosen.keep(alive);
    const focused = document.activeElement?.dataset?.key;
    let before = "";
    const why = (row) => { const isSame = row.why === before; before = row.why; return row.why && !isSame ? el("div", { class: `small why ${row.state}`, title: plain(row.why) }, prose(row.why)) : null; };
    const memory = (row) => (row.reserved_bytes !== null ? `${size(row.used_bytes)} / ${size(row.reserved_bytes)}` : row.peak_bytes === null ? "" : size(row.peak_bytes));
    const time = (row) => (row.ended_at ? el("div", {}, row.ran_s === null ? "" : span(row.ran_s), el("div", { class: "soft small" }, ago(row.ended_at))) : since(row.started_at || row.submitted_at));
    box.replaceChildren(table([
      { name: "", title: "Select", kind: "pick", of: (row) => (row.state === "ended" ? "" : chosen.box({ ...row, ids: String(row.id), count: 1 })) },
      { name: "Job", kind: "name", of: (row) => el("div", {}, el("a", { href: `#/job/${row.id}`, "data-key": `job-${row.id}` }, plain(row.name)), why(row)) },
      { name: "Id", kind: "id", of: (row) => String(row.id) },
      { name: "State", kind: "state", of: (row) => pill(row.reason || row.state) },
      { name: "GPU", kind: "gpu", of: (row) => row.gpus.join(", ") + (row.where ? ` of ${plain(row.where)}` : "") },
      { name: "Memory", kind: "num", of: memory },
      { name: "Time", kind: "num", of: time },
      { name: "", title: "Actions", kind: "end", of: (row) => jobActs({ ...row, state: row.state === "ended" ? "ended" : row.state }, load) },
    ], said.jobs, { kind: "jobs", empty: "No job of the array matches." }));
    if (focused) box.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  filter.addEventListener("input", () => { turn.begin(); clearTimeout(timer); timer = setTimeout(load, 150); });
  load();
  const clock = setInterval(() => tick(root), 1000);
  return { close: () => { isClosed = true; clearTimeout(timer); clearInterval(clock); } };
}
