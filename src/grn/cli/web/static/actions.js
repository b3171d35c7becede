// What can be done with jobs: buttons of one row, and a bar for several that are selected.
import { el, plain, span, now } from "./dom.js";
import { confirmed, toast } from "./dialog.js";
import { ask } from "./app.js";

const DONE = { cancel: "Cancelled", hold: "Held", release: "Released", priority: "Moved up" };
const WAITS = ["queued", "held", "waiting"];
export const several = (count, word = "job") => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
export const actOn = (ids, verb, body = {}) => ask(`/api/jobs/${verb}`, { method: "POST", body: JSON.stringify({ jobs: ids, ...body }) });
const short = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);
const nameOf = (row) => short(plain(row.title || row.name));

// Cancelling asks first: the list moves under the pointer as jobs come and go.
async function isMeant(row, verb) {
  if (verb !== "cancel") return true;
  const what = row.count > 1 ? `${several(row.count)} of an array` : `Job ${row.id}`;
  const past = row.started_at ? `It has run for ${span(now() - row.started_at)}; its processes are ended.` : "It has not started.";
  return confirmed(`Cancel ${nameOf(row)}?`, `${what}. ${past}`, row.count > 1 ? `Cancel ${several(row.count)}` : "Cancel job", row.started_at ? "Keep running" : "Keep waiting");
}

function tell(row, verb, said) {
  if (verb === "retry") return toast(`${nameOf(row)} submitted again as job ${said.first}. `, { link: `#/job/${said.first}` });
  toast(`${DONE[verb]} ${nameOf(row)} (${row.count > 1 ? several(row.count) : `job ${row.id}`}).`);
}

export function jobActs(row, after = () => {}) {
  const ids = row.ids || String(row.id);
  const button = (text, verb, kind = "", body = {}) => el("button", { class: `act ${kind}`, type: "button", "data-key": `${verb}-${row.id}`, onclick: async (event) => {
    const pressed = event.currentTarget;
    if (!(await isMeant(row, verb))) return;
    pressed.disabled = true;
    try {
      tell(row, verb, await actOn(ids, verb, body));
      after();
    } catch (error) { toast(plain(error.message), { isBad: true }); }
    pressed.disabled = false;
  } }, text);
  const list = [];
  if (["queued", "waiting"].includes(row.state)) list.push(button("Hold", "hold"));
  if (row.state === "held") list.push(button("Release", "release"));
  if (WAITS.includes(row.state)) list.push(button("Move up", "priority", "", { priority: Math.min(1000, row.priority + 10) }));
  if (row.state !== "ended") list.push(button("Cancel", "cancel", "danger"));
  else list.push(button("Run again", "retry"));
  return el("div", { class: "acts" }, list);
}

// Checkboxes in a table, and the bar that acts on what they have chosen.
export function selection(redraw, { verbs = ["cancel", "hold", "release"], after = () => {} } = {}) {
  const picked = new Map(); // by id: how many jobs, and their ids
  const bar = el("div", { class: "tools selected", hidden: true });
  const TITLES = { cancel: "Cancel", hold: "Hold", release: "Release", retry: "Run again" };
  const total = () => [...picked.values()].reduce((sum, row) => sum + (row.count || 1), 0);
  const clear = () => { picked.clear(); draw(); redraw(); };

  async function act(verb) {
    const count = total(), ids = [...picked.values()].map((row) => row.ids || row.id).join(",");
    if (verb === "cancel" && !(await confirmed(`Cancel ${several(count)}?`, "Running jobs are ended, with all their processes.", `Cancel ${several(count)}`))) return;
    try {
      const said = await actOn(ids, verb);
      toast(verb === "retry" ? `${several(count)} submitted again, from job ${said.first} on.` : `${DONE[verb]} ${several(count)}.`);
      clear();
      after();
    } catch (error) { toast(plain(error.message), { isBad: true }); }
  }

  function draw() {
    bar.hidden = !picked.size;
    if (picked.size) bar.replaceChildren(el("b", {}, `${several(total())} selected`), ...verbs.map((verb) => el("button", { class: `act ${verb === "cancel" ? "danger" : ""}`, type: "button", "data-key": `all-${verb}`, onclick: () => act(verb) }, TITLES[verb])), el("button", { class: "act", type: "button", onclick: clear }, "Clear"));
  }

  const box = (row) => {
    const made = el("input", { type: "checkbox", "aria-label": `select ${plain(row.name)}`, "data-key": `pick-${row.id}`, onchange: () => { if (made.checked) picked.set(row.id, row); else picked.delete(row.id); draw(); } });
    made.checked = picked.has(row.id);
    return made;
  };
  // What is not in the list any more cannot be chosen any more.
  const keep = (rows) => {
    const there = new Map(rows.map((row) => [row.id, row]));
    for (const id of picked.keys()) if (there.has(id)) picked.set(id, there.get(id)); else picked.delete(id);
    draw();
  };
  return { bar, box, keep };
}
