// One job: its memory against its reservation, its log, its attempts; or one lease of anybody's.
import { el, plain, prose, size, span, clock, now, ago, since, soon, tick, pill, table, command, shortName } from "./dom.js";
import { logPane } from "./log.js";
import { toast } from "./dialog.js";
import { state, ask, trouble } from "./app.js";
import { jobActs } from "./actions.js";
import { memoryChart, loadChart } from "./draw.js";

const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

function busy(loads) {
  const chart = loads.length ? loadChart(loads) : null;
  return chart ? el("div", {}, el("h2", {}, "GPU load"), el("div", { class: "chartbox" }, chart)) : "";
}

function copied(text) {
  return el("button", { class: "act", type: "button", onclick: () => navigator.clipboard.writeText(text).then(() => toast("Command copied."), () => toast("The browser does not allow copying.", { isBad: true })) }, "Copy");
}

function memory(job) {
  if (job.reserved_bytes === null) return job.mem_bytes ? size(job.mem_bytes) : "as learned";
  const used = job.used_bytes ? `${size(job.used_bytes)} used, ` : job.peak_bytes === null ? "" : `peak ${size(job.peak_bytes)}, `;
  return `${used}${size(job.reserved_bytes)} reserved`;
}

// The line below the title: where, since when, how long, how much.
function summary(job) {
  const parts = [`Job ${job.id}`];
  if (job.array_index) parts.push(el("a", { href: `#/array/${job.id}` }, "all jobs of its array"));
  if (job.gpus.length) parts.push(`GPU ${job.gpus.join(", ")}${job.where ? ` of ${plain(job.where)}` : ""}`);
  if (job.ended_at) parts.push(el("span", {}, "ended ", ago(job.ended_at)), ...(job.ran_s === null ? [] : [`took ${span(job.ran_s)}`]));
  else if (job.started_at) parts.push(el("span", {}, "running for ", since(job.started_at)));
  else parts.push(el("span", {}, "waiting for ", since(job.submitted_at)));
  const expected = state.jobs.find((row) => row.job === job.id && row.count === 1)?.expected_at;
  if (expected) parts.push(el("span", {}, job.started_at ? "ends " : "starts ", soon(expected)));
  return el("p", { class: "soft" }, parts.flatMap((part, place) => (place ? [" · ", part] : [part])));
}

export function jobView(root, id) {
  const head = el("div", {}, el("p", { class: "soft" }, "Loading…"));
  const rest = el("div");
  let isOver = false;

  async function load() {
    try {
      const job = await ask(`/api/job/${id}`);
      drawHead(job);
      drawRest(job);
      isOver = job.state === "ended";
    } catch (error) { head.replaceChildren(trouble(error)); }
  }

  function drawHead(job) {
    const waits = ["queued", "held"].includes(job.state), name = shortName(job);
    document.title = `${name} · grn`;
    head.replaceChildren(
      el("h1", {}, `${name} `, pill(job.reason || job.state)), summary(job),
      el("p", { class: "command" }, el("code", {}, command(job.argv)), " ", copied(command(job.argv))), jobActs(job, load),
      waits || (job.state !== "ended" && job.why !== job.state) ? el("p", { class: "empty" }, prose(job.why)) : "");
  }

  function drawRest(job) {
    const chart = memoryChart(job.curve, job.reserved_bytes, "memory over time");
    rest.replaceChildren(
      chart ? el("div", {}, el("h2", {}, "Memory"), el("div", { class: "chartbox" }, chart)) : "", busy(job.loads),
      el("h2", {}, "Details"),
      el("div", { class: "card" }, facts([
        ["Name", plain(job.name)], ["Type", plain(job.label)], ["Folder", plain(job.cwd)],
        ["Submitted", clock(job.submitted_at)], ["Started", job.started_at ? `${clock(job.started_at)}, after ${span(job.started_at - job.submitted_at)}` : ""],
        ["Ended", job.ended_at ? clock(job.ended_at) : ""], ["Node", plain(job.where)], ["GPU", job.gpus.join(", ")], ["Memory", memory(job)],
        ["Priority", String(job.priority)], ["Exit status", job.status === null ? (job.signal ? `signal ${job.signal}` : "") : String(job.status)], ["Reason", !job.text || job.text === `exit status ${job.status}` ? "" : prose(job.text)],
      ])),
      el("h2", {}, "Attempts"),
      table([
        { name: "Attempt", of: (row) => row.attempt }, { name: "GPU", of: (row) => row.gpus.join(", ") + (row.where ? ` of ${plain(row.where)}` : "") },
        { name: "Started", kind: "when", of: (row) => ago(row.began_at) }, { name: "Took", kind: "num", of: (row) => (row.ran_s === null ? "" : span(row.ran_s)) },
        { name: "Peak / reserved", kind: "num", of: (row) => `${row.peak_bytes === null ? "–" : size(row.peak_bytes)} / ${size(row.reserved_bytes)}` }, { name: "Outcome", of: (row) => pill(row.reason || "running") },
      ], job.attempts, { empty: "Not started yet." }),
      el("h2", {}, "Environment"),
      el("details", {}, el("summary", {}, `${job.environment.length} variable${job.environment.length === 1 ? "" : "s"}`), el("p", { class: "soft" }, "Names only; the values stay in the queue's own files. ", el("code", {}, job.environment.map(plain).join(" ") || "none"))));
  }

  const log = logPane(id, load);
  root.append(head, el("h2", {}, "Output"), log.box, rest);
  load();
  const again = setInterval(() => { if (!isOver && !head.contains(document.activeElement)) load(); }, 2000);
  const clockTimer = setInterval(() => tick(root), 1000);
  return { close: () => { log.close(); clearInterval(again); clearInterval(clockTimer); } };
}

export function leaseView(root, id) {
  const box = el("div", {}, el("p", { class: "soft" }, "Loading…"));
  root.append(box);
  const load = async () => {
    try {
      const row = await ask(`/api/lease/${id}`);
      const own = state.jobs.find((job) => job.job && job.lease === id);
      const chart = memoryChart(row.curve, row.reserved_bytes, "memory over time");
      box.replaceChildren(
        el("h1", {}, plain(row.label), " ", pill(row.ended_at ? "ended" : row.idle_since_at ? "idle" : row.state)),
        own ? el("p", {}, el("a", { href: `#/job/${own.job}` }, `Job ${own.job} of your queue`)) : "",
        el("div", { class: "card" }, facts([
          ["Lease", plain(row.id)], ["Type", plain(row.type)], ["User", plain(row.user_name)], ["Process", row.pid === null ? "not visible" : String(row.pid)], ["GPU", row.gpus.join(", ")],
          ["Memory", `${size(row.used_bytes)} used, peak ${size(row.peak_bytes)}, ${size(row.reserved_bytes)} reserved`],
          ["Began", `${clock(row.since_at)}, ${span((row.ended_at || now()) - row.since_at)}${row.ended_at ? "" : " ago"}`], ["Placement", prose(row.why || "")],
          ...(row.idle_since_at && !row.ended_at ? [["Idle", `used less than 5 % of its GPU for ${span(now() - row.idle_since_at)}`]] : []),
        ])),
        el("h2", {}, "Memory"), chart ? el("div", { class: "chartbox" }, chart) : el("p", { class: "empty" }, "No samples yet."), busy(row.loads));
    } catch (error) { box.replaceChildren(trouble(error)); }
  };
  load();
  const timer = setInterval(load, 2000);
  return { close: () => clearInterval(timer) };
}
