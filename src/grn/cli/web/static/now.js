// What is so now: GPUs with who is on them, what runs, what waits and why.
import { el, svg, plain, size, span, now, since, tick, pill, table, tip, colour, command, shortName, style } from "./dom.js";
import { confirmed, toast } from "./dialog.js";
import { state, act, trouble } from "./app.js";

export function nowView(root) {
  const box = el("div");
  root.append(box);
  let drawn = "";
  const update = () => {
    if (!state.isKnown) return;
    const picture = JSON.stringify([state.gpus, state.leases, state.waiting, state.jobs, state.nodes, state.trouble]);
    if (picture === drawn) return tick(box);
    drawn = picture;
    draw(box);
  };
  if (!state.isKnown) box.append(el("p", { class: "soft" }, "Looking…"));
  update();
  const timer = setInterval(() => tick(box), 1000);
  return { update, close: () => clearInterval(timer) };
}

function draw(box) {
  const focused = document.activeElement?.dataset?.key;
  const parts = [];
  if (state.trouble) parts.push(trouble(state.trouble));
  parts.push(el("h1", {}, "GPUs"));
  if (state.gpus.length) parts.push(el("div", { class: "cards" }, state.gpus.map((gpu) => card(gpu, state.leases))));
  for (const node of state.nodes) parts.push(...nodeCards(node));
  if (state.gpus.length || state.nodes.some((node) => node.gpus.length)) parts.push(legend());
  else if (!state.nodes.length) parts.push(el("p", { class: "empty" }, "No negotiator runs here. Start one with ", el("code", {}, "grn start"), ", or without a GPU ", el("code", {}, "grn start --virtual 2x2GiB"), "."));
  parts.push(title("Running", state.leases.length), leases());
  parts.push(title("Waiting for a GPU", state.waiting_count || 0), waiting());
  parts.push(title("My queue", (state.counts.running || 0) + (state.counts.queued || 0)), jobs());
  box.replaceChildren(...parts);
  if (focused) box.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

const title = (text, count) => el("h2", {}, `${text} `, el("span", { class: "count" }, String(count)));

// A node of a site: its GPUs as of this machine, or why it cannot be used.
function nodeCards(node) {
  const name = node.node === "-" ? node.site : `${node.node} (${node.site})`;
  const heard = node.state !== "up" && node.heard_at ? el("span", {}, ", last heard of ", el("span", { "data-since": node.heard_at }, span(now() - node.heard_at)), " ago") : "";
  const said = node.gpus.length ? (node.jobs ? `${node.jobs} of your jobs` : "") : plain([node.state, node.trouble].filter(Boolean).join(": "));
  const head = el("h2", {}, `${plain(name)} `, el("span", { class: "count" }, said, heard));
  return [head, el("div", { class: "cards" }, node.gpus.map((gpu) => card(gpu, node.leases, node.node)))];
}

function card(gpu, leases, node = "") {
  const here = leases.filter((lease) => lease.gpus.includes(gpu.index));
  const title = node ? `GPU ${gpu.index} of ${plain(node)}` : `GPU ${gpu.index}`;
  const link = (lease) => (node ? ownJob(node, lease) : `#/lease/${lease.id}`);
  const isWell = gpu.health === "ok";
  const load = gpu.load_pct === null ? "" : `${Math.round(gpu.load_pct)} % busy`;
  const free = isWell ? `${size(Math.max(0, gpu.free_bytes))} free of ${size(gpu.total_bytes)}` : gpu.health === "prohibited" ? "its compute mode lets no job start" : `the driver does not answer (${plain(gpu.health)})`;
  return el("section", { class: `card${isWell ? "" : " lost"}`, "aria-label": title },
    el("div", { class: "top" }, el("b", {}, `GPU ${gpu.index}`), el("small", {}, plain(gpu.model))),
    el("div", { class: "bar" }, bar(gpu, here, node)),
    el("div", { class: "top" }, el("small", {}, free), el("small", {}, load)),
    el("div", { class: "legend" }, here.map((lease) => el("span", {}, style(el("i"), { background: colour(lease.label) }), link(lease) ? el("a", { href: link(lease) }, plain(lease.label)) : plain(lease.label)))));
}

// The page of the job that has a lease on a node; leases of others there have none.
function ownJob(node, lease) {
  const own = state.jobs.find((job) => job.where === node && job.lease?.endsWith(`/${lease.id}`));
  return own ? `#/job/${own.id}` : "";
}

// Full colour: used. Striped: reserved and not used. Grey: others. Lines: the guard, never promised.
function bar(gpu, leases, node = "") {
  const total = gpu.total_bytes || 1;
  const root = svg("svg", { viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": `${size(gpu.used_bytes)} used of ${size(total)}` });
  const defs = svg("defs");
  root.append(defs);
  let at = 0;
  const put = (bytes, fill, text, opacity = 1) => {
    const width = Math.min(1000 - at, (Math.max(0, bytes) / total) * 1000);
    if (width < 0.5) return;
    root.append(tip(svg("rect", { x: at, y: 0, width, height: 22, fill, opacity }), () => text));
    at += width;
  };
  for (const lease of leases) {
    const used = Math.max(0, lease.used_bytes || 0);
    const tone = colour(lease.label);
    const stripes = `stripes-${node}-${gpu.index}-${lease.id}`;
    defs.append(svg("pattern", { id: stripes, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 8, height: 8, fill: tone, opacity: 0.22 }), svg("rect", { width: 3, height: 8, fill: tone, opacity: 0.55 })));
    const text = `${plain(lease.label)}${lease.user_name ? ` (${plain(lease.user_name)})` : ""}\n${size(lease.used_bytes)} used, ${size(lease.reserved_bytes)} reserved`;
    put(used, tone, text);
    put(lease.reserved_bytes - used, `url(#${stripes})`, text);
  }
  put(gpu.strangers_bytes + gpu.unexplained_bytes, "var(--stranger)", `${size(gpu.strangers_bytes + gpu.unexplained_bytes)} used by processes without a lease`);
  const dots = `dots-${node}-${gpu.index}`;
  defs.append(svg("pattern", { id: dots, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("rect", { width: 6, height: 2, fill: "var(--soft)", opacity: 0.7 })));
  const guard = (gpu.guard_bytes / total) * 1000;
  if (guard >= 0.5) root.append(tip(svg("rect", { x: 1000 - guard, y: 0, width: guard, height: 22, fill: `url(#${dots})` }), () => `${size(gpu.guard_bytes)} guard: never promised`));
  return root;
}

function legend() {
  return el("p", { class: "soft" }, "Full colour is used, stripes are reserved, grey is used by others, lines are the guard that is never promised.");
}

function leases() {
  return table([
    { name: "Job", kind: "name", of: (row) => el("a", { href: `#/lease/${row.id}`, "data-key": row.id }, plain(row.label)) },
    { name: "User", of: (row) => plain(row.user_name) },
    { name: "GPU", of: (row) => row.gpus.join(", ") },
    { name: "Used / reserved", kind: "num", of: (row) => `${size(row.used_bytes)} / ${size(row.reserved_bytes)}` },
    { name: "For", kind: "num", of: (row) => since(row.since_at) },
    { name: "State", of: (row) => pill(row.first_run ? "first run" : row.state) },
  ], state.leases, { empty: "Nothing runs." });
}

function waiting() {
  return table([
    { name: "Turn", kind: "num", of: (row) => row.place },
    { name: "Job", kind: "name", of: (row) => plain(row.label) },
    { name: "User", of: (row) => plain(row.user_name) },
    { name: "For", kind: "num", of: (row) => since(row.since_at) },
    { name: "Why", kind: "why", of: (row) => plain(row.why) },
  ], state.waiting, { empty: "Nobody waits." });
}

function jobs() {
  return table([
    { name: "Id", kind: "num", of: (row) => el("a", { href: `#/job/${row.id}`, "data-key": `job-${row.id}` }, row.id) },
    { name: "Command", kind: "name", of: (row) => el("a", { href: `#/job/${row.id}` }, row.name ? `${plain(row.name)}: ` : "", command(row.argv)) },
    { name: "State", of: (row) => pill(row.state) },
    ...(hasNodes() ? [{ name: "Where", of: (row) => (["queued", "held"].includes(row.state) ? "" : plain(row.where || "local")) }] : []),
    { name: "Why", kind: "why", of: (row) => (row.why === row.state ? "" : plain(row.why)) },
    { name: "", of: (row) => acts(row) },
  ], state.jobs, { empty: "Your queue is empty. `grn submit -- CMD` puts a command into it." });
}

const hasNodes = () => state.nodes.length > 0 || state.jobs.some((row) => row.where);

// Cancelling asks first: the list moves under the pointer as jobs come and go.
async function isMeant(row, verb) {
  if (verb !== "cancel") return true;
  const past = row.started_at ? `It has run for ${span(now() - row.started_at)}; its processes are ended.` : `It has waited for ${span(now() - row.submitted_at)} and has not started.`;
  return confirmed(`Cancel ${shortName(row)}?`, `Job ${row.id}. ${past}`, "Cancel job", row.started_at ? "Keep running" : "Keep waiting");
}

const DONE = { cancel: "Cancelled", hold: "Held", release: "Released", priority: "Moved up" };

function tell(row, verb, said) {
  if (verb === "retry") return toast(`${shortName(row)} submitted again as job ${said.first}. `, { link: `#/job/${said.first}` });
  toast(`${DONE[verb]} ${shortName(row)} (job ${row.id}).`);
}

export function acts(row, after = () => {}) {
  const button = (text, verb, kind = "", body = {}) => el("button", { class: `act ${kind}`, type: "button", "data-key": `${verb}-${row.id}`, onclick: async (event) => {
    const pressed = event.currentTarget;
    if (!(await isMeant(row, verb))) return;
    pressed.disabled = true;
    try {
      tell(row, verb, await act(row.id, verb, body));
      after();
    } catch (error) {
      toast(plain(error.message), { isBad: true });
    }
    pressed.disabled = false;
  } }, text);
  const list = [];
  if (row.state === "queued") list.push(button("Hold", "hold"));
  if (row.state === "held") list.push(button("Release", "release"));
  if (["queued", "held"].includes(row.state)) list.push(button("Move up", "priority", "", { priority: Math.min(1000, row.priority + 10) }));
  if (row.state !== "ended") list.push(button("Cancel", "cancel", "danger"));
  else list.push(button("Run again", "retry"));
  return el("div", { class: "acts" }, list);
}
