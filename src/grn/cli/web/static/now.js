// The machine now: a headline, GPUs with the jobs on them, and one table of all jobs.
import { el, svg, plain, prose, size, span, now, since, soon, tick, pill, table, tip, jobCommand, COLOURS, style } from "./dom.js";
import { jobActs, selection } from "./actions.js";
import { submitForm } from "./submit.js";
import { sparkline } from "./draw.js";
import { state, ask, trouble } from "./app.js";

const MAX_ROWS = 200, MAX_EXPANDED = 5000;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export function nowView(root) {
  const head = el("div"), list = el("div"), count = el("p", { class: "soft count-line" });
  const filter = el("input", { type: "search", size: 30, placeholder: "Filter by name, id, state, user", "aria-label": "filter jobs" });
  const chosen = selection(() => drawList(true));
  const submit = el("button", { class: "act primary", type: "button", onclick: submitForm }, "Submit a job");
  const more = el("button", { class: "act", type: "button", onclick: () => { most = MAX_EXPANDED; load(); } }, "Show more");
  root.append(head, el("div", { class: "tools spread" }, el("h2", {}, "Jobs"), filter, submit), chosen.bar, list, el("div", { class: "tools" }, count, more));
  let drawnHead = "", drawnList = "", most = MAX_ROWS, found = null, timer = 0;

  const isAsked = () => filter.value.trim() !== "" || most > MAX_ROWS;
  const jobs = () => (isAsked() ? found : state);

  async function load() {
    clearTimeout(timer);
    if (!isAsked()) { found = null; return drawList(); }
    const words = filter.value.trim();
    try { found = await ask(`/api/jobs?match=${encodeURIComponent(words)}&most=${most}`); }
    catch (error) { return list.replaceChildren(trouble(error)); }
    if (words === filter.value.trim()) drawList();
  }

  function drawList(isForced = false) {
    const said = jobs();
    if (!said || !state.isKnown) return;
    const picture = JSON.stringify([said.jobs, said.running, said.waiting, state.nodes.length]);
    if (picture === drawnList && !isForced) return tick(list);
    drawnList = picture;
    const focused = document.activeElement?.dataset?.key;
    chosen.keep(said.jobs);
    const isEmpty = filter.value.trim() ? "No job matches." : "No job runs or waits. Submit one here, or with `grn submit -- CMD`.";
    list.replaceChildren(jobTable(said.jobs, chosen, isEmpty));
    const total = said.running + said.waiting;
    count.textContent = said.shown < total ? `${said.shown.toLocaleString("en")} of ${plural(total, "job")} shown.` : total ? plural(total, "job") + "." : "";
    more.hidden = said.shown >= total || most > MAX_ROWS;
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function update() {
    if (!state.isKnown) return;
    const picture = JSON.stringify([state.gpus, state.host, state.leases, state.nodes, state.trouble, state.queue_trouble, state.loads, state.running, state.waiting, state.next_start_at, state.is_drained, state.bookings]);
    if (picture !== drawnHead) { drawnHead = picture; head.replaceChildren(...machine()); }
    if (!isAsked()) drawList();
    else if (!timer) timer = setTimeout(() => { timer = 0; load(); }, 1000);
  }
  if (!state.isKnown) head.append(el("p", { class: "soft" }, "Loading…"));
  filter.addEventListener("input", () => { most = MAX_ROWS; clearTimeout(timer); timer = setTimeout(() => { timer = 0; load(); }, 150); });
  update();
  const clock = setInterval(() => tick(root), 1000);
  return { update, close: () => { clearInterval(clock); clearTimeout(timer); } };
}

// --- the machine ----------------------------------------------------------------------------

function machine() {
  const parts = [];
  const hasGpus = state.gpus.length || state.nodes.length; // without any, a card below says what to start
  if (state.trouble && (hasGpus || !state.is_lost)) parts.push(trouble(state.trouble));
  if (state.queue_trouble && state.counts.queued) parts.push(trouble(state.queue_trouble));
  parts.push(headline());
  const gpus = state.gpus;
  tones(state.leases);
  if (gpus.length) parts.push(el("div", { class: cards(gpus) }, gpus.map((gpu) => card(gpu, state.leases))));
  for (const node of state.nodes) parts.push(...nodeCards(node));
  if (gpus.length || state.nodes.some((node) => node.gpus.length)) parts.push(legend());
  else if (!state.nodes.length) parts.push(el("p", { class: "empty" }, "No negotiator answers. Start one with ", el("code", {}, "grn start"), ", or without a GPU ", el("code", {}, "grn start --virtual 2x2GiB"), "."));
  return parts;
}

// The sums that answer "is there room, and when": before any table.
function headline() {
  const all = [...state.gpus, ...state.nodes.flatMap((node) => node.gpus)];
  const free = all.reduce((sum, gpu) => sum + Math.max(0, gpu.free_bytes || 0), 0);
  const total = all.reduce((sum, gpu) => sum + gpu.total_bytes, 0);
  const figure = (value, name, kind = "") => el("div", { class: `figure ${kind}` }, el("b", {}, value), el("span", {}, name));
  const parts = [figure(state.running.toLocaleString("en"), "running", state.running ? "good" : ""), figure(state.waiting.toLocaleString("en"), "waiting", state.waiting ? "warn" : "")];
  if (total) parts.push(figure(size(free), `free of ${size(total)}`));
  if (state.host) parts.push(figure(size(state.host.free_bytes), `RAM free of ${size(state.host.ram_bytes)}`), figure((+state.host.free_cpus.toFixed(1)).toLocaleString("en"), `cores free of ${+state.host.cpus.toFixed(1)}`));
  if (state.next_start_at) parts.push(figure(soon(state.next_start_at), "next start"));
  if (state.is_drained) parts.push(figure("Paused", "the queue starts nothing", "warn"));
  const lines = state.loads.map((one) => { const chart = sparkline(one); return chart && el("div", { class: "spark" }, chart, el("small", {}, `GPU ${one.gpu}`)); });
  return el("div", { class: "headline", role: "group", "aria-label": "summary" }, parts, el("div", { class: "sparks" }, lines));
}

// Four GPUs are two and two or one row, never three and an orphan.
const cards = (gpus) => `cards gpus ${gpus.length % 3 && gpus.length % 4 === 0 ? "by-four" : gpus.length % 3 === 0 ? "by-three" : "by-two"}`;

// A node of a site: its GPUs as of this machine, or why it cannot be used.
function nodeCards(node) {
  tones(node.leases, node.node);
  const name = node.node === "-" ? node.site : `${node.node} (${node.site})`;
  const heard = node.state !== "up" && node.heard_at ? el("span", {}, ", last heard of ", el("span", { "data-since": node.heard_at }, span(now() - node.heard_at)), " ago") : "";
  const said = node.gpus.length ? (node.jobs ? `${node.jobs} of your jobs` : "") : plain([node.state, node.trouble].filter(Boolean).join(": "));
  const head = el("h2", {}, `${plain(name)} `, el("span", { class: "count" }, said, heard));
  return [head, el("div", { class: cards(node.gpus) }, node.gpus.map((gpu) => card(gpu, node.leases, node.node)))];
}

// What the driver tells; a virtual GPU has no temperature.
export function readings(gpu) {
  const known = (value, unit) => (value === null || value === undefined ? [] : [`${Math.round(value)} ${unit}`]);
  return [...known(gpu.temperature_c, "°C"), ...known(gpu.power_w, "W"), ...known(gpu.clock_mhz, "MHz"), ...known(gpu.load_pct, "% busy")].join(" · ");
}

// Who has booked a GPU now, or next within a day.
function booked(gpu) {
  const one = state.bookings.find((row) => row.gpus.includes(gpu.index) && row.from_at < now() + 86400);
  if (!one) return null;
  const hour = (at) => new Date(at * 1000).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const when = one.state === "active" ? `until ${hour(one.until_at)}` : `from ${hour(one.from_at)} to ${hour(one.until_at)}`;
  return el("small", {}, el("a", { href: "#/bookings" }, `Booked for ${plain(one.user_name)} ${when}`));
}

function card(gpu, leases, node = "") {
  const here = leases.filter((lease) => lease.gpus.includes(gpu.index));
  const title = node ? `GPU ${gpu.index} of ${plain(node)}` : `GPU ${gpu.index}`;
  const isWell = gpu.health === "ok";
  const free = isWell ? `${size(Math.max(0, gpu.free_bytes))} free of ${size(gpu.total_bytes)}` : gpu.health === "prohibited" ? "Its compute mode lets no job start" : `The driver does not answer (${plain(gpu.health)})`;
  return el("section", { class: `card${isWell ? "" : " lost"}`, "aria-label": title },
    el("div", { class: "top" }, el("b", {}, `GPU ${gpu.index}`), el("small", {}, plain(gpu.model))),
    el("div", { class: "bar" }, bar(gpu, here, node)),
    el("div", { class: "top" }, el("small", {}, free), el("small", {}, readings(gpu))),
    el("div", { class: "legend" }, here.slice(0, 8).map((lease) => el("span", {}, style(el("i"), { background: colour(leaseKey(lease, node)) }), leaseLink(lease, node))), here.length > 8 ? el("span", {}, `and ${here.length - 8} more`) : null),
    node ? null : booked(gpu),
    (gpu.idle_strangers || []).slice(0, 4).map((one) => el("small", { class: "soft" }, `Process ${one.pid}${one.user_name ? ` of ${plain(one.user_name)}` : ""}, without a lease, holds ${size(one.used_bytes)} and is idle`, one.idle_since_at ? [" for ", since(one.idle_since_at)] : "")));
}

// Jobs on one GPU have different colours, and keep them while they run.
const toned = new Map();
export function tones(leases, node = "") {
  for (const key of toned.keys()) if (key.startsWith(`${node}/`) && !leases.some((lease) => leaseKey(lease, node) === key)) toned.delete(key);
  for (const lease of leases) {
    if (toned.has(leaseKey(lease, node))) continue;
    const beside = leases.filter((one) => one.gpus.some((gpu) => lease.gpus.includes(gpu))).map((one) => toned.get(leaseKey(one, node)));
    const uses = COLOURS.map((tone) => [beside.filter((one) => one === tone).length, [...toned.values()].filter((one) => one === tone).length]);
    const best = uses.reduce((least, one, at) => (one[0] < uses[least][0] || (one[0] === uses[least][0] && one[1] < uses[least][1]) ? at : least), 0);
    toned.set(leaseKey(lease, node), COLOURS[best]);
  }
  return leases.map((lease) => toned.get(leaseKey(lease, node)));
}
const colour = (key) => toned.get(key);

const leaseKey = (lease, node) => `${node}/${lease.id}`;
const leaseName = (lease, own) => plain(own?.name || lease.name || lease.label);

function ownJob(lease, node) {
  return state.jobs.find((job) => job.job && (node ? job.where === node && job.lease?.endsWith(`/${lease.id}`) : job.lease === lease.id));
}

function leaseLink(lease, node) {
  const own = ownJob(lease, node), href = own ? `#/job/${own.job}` : node ? "" : `#/lease/${lease.id}`;
  return href ? el("a", { href }, leaseName(lease, own)) : leaseName(lease, own);
}

// Full colour: used. Striped: reserved and not used. Grey: others. Lines: the guard, never promised.
function bar(gpu, leases, node = "") {
  const total = gpu.total_bytes || 1;
  const root = svg("svg", { viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": `${size(gpu.used_bytes)} used of ${size(total)}` });
  const defs = svg("defs");
  root.append(defs);
  let at = 0;
  const put = (bytes, fill, text, gap = 0) => {
    const width = Math.min(1000 - at, (Math.max(0, bytes) / total) * 1000);
    if (width < 0.5) return;
    root.append(tip(svg("rect", { x: at, y: 0, width: Math.max(0.5, width - gap), height: 22, fill }), () => text));
    at += width;
  };
  for (const lease of leases) {
    const used = Math.max(0, lease.used_bytes || 0), tone = colour(leaseKey(lease, node)), stripes = `stripes-${node}-${gpu.index}-${lease.id}`;
    defs.append(svg("pattern", { id: stripes, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 8, height: 8, fill: tone, opacity: 0.22 }), svg("rect", { width: 3, height: 8, fill: tone, opacity: 0.55 })));
    const text = `${leaseName(lease, ownJob(lease, node))}${lease.user_name ? ` (${plain(lease.user_name)})` : ""}\n${size(lease.used_bytes)} used, ${size(lease.reserved_bytes)} reserved`;
    const rest = lease.reserved_bytes - used;
    put(used, tone, text, rest > 0 ? 0 : 4);
    put(rest, `url(#${stripes})`, text, 4);
  }
  const others = gpu.strangers_bytes + gpu.unexplained_bytes;
  put(others, "var(--stranger)", `${size(others)} used by processes without a lease`);
  const lines = `lines-${node}-${gpu.index}`;
  defs.append(svg("pattern", { id: lines, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("rect", { width: 6, height: 2, fill: "var(--soft)", opacity: 0.7 })));
  const guard = (gpu.guard_bytes / total) * 1000;
  if (guard >= 0.5) root.append(tip(svg("rect", { x: 1000 - guard, y: 0, width: guard, height: 22, fill: `url(#${lines})` }), () => `${size(gpu.guard_bytes)} kept free as a safety margin`));
  return root;
}

function legend() {
  const entry = (kind, text) => el("span", {}, el("i", { class: `swatch ${kind}` }), text);
  return el("div", { class: "legend key", "aria-label": "legend" }, entry("used", "Used"), entry("reserved", "Reserved"), entry("others", "Other processes"), entry("guard", "Safety margin"), entry("none", "Free"));
}

// --- the jobs -------------------------------------------------------------------------------

function jobTable(jobs, chosen, empty) {
  const hasNodes = state.nodes.length > 0 || jobs.some((row) => row.where), hasUsers = new Set(jobs.map((row) => row.user)).size > 1;
  const href = (row) => (row.count > 1 ? `#/array/${row.job}` : row.job ? `#/job/${row.job}` : row.lease ? `#/lease/${row.lease}` : "");
  const isWaiting = (row) => ["queued", "held", "waiting"].includes(row.state);
  let before = "";
  const why = (row) => { const isSame = row.why === before; before = row.why; return row.why && !isSame ? el("div", { class: `small why ${row.state}`, title: plain(row.why) }, prose(row.why)) : null; };
  return table([
    { name: "", title: "Select", kind: "pick", of: (row) => (row.ids ? chosen.box(row) : "") },
    { name: "Job", kind: "name", of: (row) => el("div", {}, el("a", { href: href(row), "data-key": `job-${row.id}` }, plain(row.name)), jobCommand(row), why(row)) },
    { name: "Id", kind: "id", of: (row) => plain(row.id) },
    ...(hasUsers ? [{ name: "User", kind: "user", of: (row) => plain(row.user) }] : []),
    { name: "State", kind: "state", of: (row) => row.idle_since_at ? el("div", {}, pill("idle"), el("div", { class: "soft small" }, "for ", since(row.idle_since_at))) : pill(row.state, row.count > 1 ? `${row.count.toLocaleString("en")} ${row.state}` : row.state) },
    ...(hasNodes ? [{ name: "Where", kind: "where", of: (row) => (isWaiting(row) ? "" : plain(row.where || "local")) }] : []),
    { name: "GPU", kind: "gpu", of: (row) => row.gpus.join(", ") },
    { name: "Memory", kind: "mem", of: (row) => memory(row) },
    { name: "Time", kind: "num", of: (row) => el("div", {}, since(row.since_at), row.expected_at ? el("div", { class: "soft small" }, isWaiting(row) ? "starts " : "ends ", soon(row.expected_at)) : null) },
    { name: "", title: "Actions", kind: "end", of: (row) => (row.ids ? jobActs(row) : "") },
  ], jobs, { empty, kind: "jobs" });
}

function memory(row) {
  if (row.reserved_bytes === null) return row.mem_bytes ? el("span", { class: "soft" }, `${size(row.mem_bytes)} asked`) : "";
  const share = row.used_bytes === null ? 0 : Math.min(100, (100 * row.used_bytes) / (row.reserved_bytes || 1));
  return el("div", { class: "memory", title: `${size(row.used_bytes)} used of ${size(row.reserved_bytes)} reserved` },
    el("span", { class: row.used_bytes > row.reserved_bytes ? "meter over" : "meter" }, style(el("i"), { width: `${share}%` })), el("small", {}, `${size(row.used_bytes)} / ${size(row.reserved_bytes)}`));
}
