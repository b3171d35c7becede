// One job: its memory against its reservation, its log, its attempts; or one lease of anybody's.
import { el, plain, size, span, clock, now, pill, table, command } from "./dom.js";
import { state, ask, trouble } from "./app.js";
import { acts } from "./now.js";
import { memoryChart, loadChart } from "./draw.js";

const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

function busy(loads) {
  const chart = loads.length ? loadChart(loads) : null;
  return chart ? el("div", {}, el("h2", {}, "How busy its GPUs are"), el("div", { class: "chartbox" }, chart)) : "";
}

export function jobView(root, id) {
  const head = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  const which = el("select", { "aria-label": "which output" }, [["log", "all output"], ["err", "errors only"]].map(([value, text]) => el("option", { value }, text)));
  const log = el("pre", { class: "log", tabindex: 0, "aria-label": "output" });
  const rest = el("div");
  root.append(head, el("h2", {}, "Output"), el("div", { class: "tools" }, which), log, rest);
  let timer = 0, at = 0, isClosed = false, isOver = false;

  async function load() {
    try {
      const job = await ask(`/api/job/${id}`);
      drawHead(job);
      drawRest(job);
      isOver = job.state === "ended";
    } catch (error) { head.replaceChildren(trouble(error)); }
  }

  function drawHead(job) {
    const chart = memoryChart(job.curve, job.reserved_bytes, "memory over time");
    const waits = ["queued", "held"].includes(job.state);
    head.replaceChildren(
      el("h1", {}, `Job ${job.id} `, pill(job.reason || job.state)),
      el("p", {}, el("code", {}, command(job.argv))), acts(job, load),
      waits || (job.state !== "ended" && job.why !== job.state) ? el("p", { class: "empty" }, plain(job.why)) : "",
      el("h2", {}, "Facts"),
      el("div", { class: "card" }, facts([
        ["Name", plain(job.name)], ["Type", plain(job.label)], ["Folder", plain(job.cwd)],
        ["Submitted", clock(job.submitted_at)], ["Started", job.started_at ? `${clock(job.started_at)}, after ${span(job.started_at - job.submitted_at)}` : ""],
        ["Ended", job.ended_at ? clock(job.ended_at) : ""], ["Took", job.ran_s === null ? "" : span(job.ran_s)],
        ["Node", plain(job.where)], ["GPU", job.gpus.join(", ")], ["Memory", job.reserved_bytes === null ? (job.mem_bytes ? size(job.mem_bytes) : "as learned") : `${job.used_bytes ? `${size(job.used_bytes)} used, ` : job.peak_bytes === null ? "" : `peak ${size(job.peak_bytes)}, `}${size(job.reserved_bytes)} reserved`],
        ["Priority", String(job.priority)], ["Status", job.status === null ? (job.signal ? `signal ${job.signal}` : "") : String(job.status)], ["Said", job.text === `exit status ${job.status}` ? "" : plain(job.text)],
      ])),
      chart ? el("div", {}, el("h2", {}, "Memory"), el("div", { class: "chartbox" }, chart)) : "", busy(job.loads));
  }

  function drawRest(job) {
    rest.replaceChildren(
      el("h2", {}, "Attempts"),
      table([
        { name: "Attempt", kind: "num", of: (row) => row.attempt }, { name: "GPU", of: (row) => row.gpus.join(", ") + (row.where ? ` of ${plain(row.where)}` : "") },
        { name: "Began", kind: "when", of: (row) => clock(row.began_at) }, { name: "Took", kind: "num", of: (row) => (row.ran_s === null ? "" : span(row.ran_s)) },
        { name: "Peak / reserved", kind: "num", of: (row) => `${row.peak_bytes === null ? "" : `${size(row.peak_bytes)} / `}${size(row.reserved_bytes)}` }, { name: "Outcome", of: (row) => pill(row.reason || "running") },
      ], job.attempts, { empty: "It has not run yet." }),
      el("h2", {}, "Environment"), el("p", { class: "soft" }, "Names only; values stay in the queue's own files. ", el("code", {}, job.environment.map(plain).join(" ") || "none")));
  }

  async function follow() {
    if (isClosed) return;
    try {
      const said = await ask(`/api/job/${id}/log?name=${which.value}&from=${at}`);
      if (isClosed) return;
      const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
      if (at === 0 && said.from > 0) log.append("… what came before is in `grn logs`\n");
      if (said.text) log.append(said.text);
      at = said.next;
      if (isAtEnd) log.scrollTop = log.scrollHeight;
      if (!at && isOver) log.textContent = "It has printed nothing.";
      if (said.is_over) return load();
    } catch (error) { log.textContent = error.message; }
    timer = setTimeout(follow, 700);
  }

  which.addEventListener("change", () => { at = 0; log.textContent = ""; clearTimeout(timer); follow(); });
  load().then(follow);
  const again = setInterval(() => { if (!isOver) load(); }, 2000);
  return { close: () => { isClosed = true; clearTimeout(timer); clearInterval(again); } };
}

export function leaseView(root, id) {
  const box = el("div", {}, el("p", { class: "soft" }, "Looking…"));
  root.append(box);
  const load = async () => {
    try {
      const row = await ask(`/api/lease/${id}`);
      const own = state.jobs.find((job) => job.lease === id);
      const chart = memoryChart(row.curve, row.reserved_bytes, "memory over time");
      box.replaceChildren(
        el("h1", {}, plain(row.label), " ", pill(row.ended_at ? "ended" : row.state)),
        own ? el("p", {}, el("a", { href: `#/job/${own.id}` }, `Job ${own.id} of your queue`)) : "",
        el("div", { class: "card" }, facts([
          ["Lease", plain(row.id)], ["Type", plain(row.type)], ["User", plain(row.user_name)], ["Process", row.pid === null ? "not visible" : String(row.pid)], ["GPU", row.gpus.join(", ")],
          ["Memory", `${size(row.used_bytes)} used, peak ${size(row.peak_bytes)}, ${size(row.reserved_bytes)} reserved`],
          ["Began", `${clock(row.since_at)}, ${span((row.ended_at || now()) - row.since_at)}${row.ended_at ? "" : " ago"}`], ["Why here", plain(row.why || "")],
        ])),
        el("h2", {}, "Memory"), chart ? el("div", { class: "chartbox" }, chart) : el("p", { class: "empty" }, "The curve begins with the second look."), busy(row.loads));
    } catch (error) { box.replaceChildren(trouble(error)); }
  };
  load();
  const timer = setInterval(load, 2000);
  return { close: () => clearInterval(timer) };
}
