// The page: a session, a stream of pictures of the machine, and one view at a time.
import { el, plain } from "./dom.js";
import { nowView } from "./now.js";
import { timelineView } from "./timeline.js";
import { jobView, leaseView } from "./job.js";
import { historyView } from "./history.js";
import { profilesView } from "./profiles.js";
import { sweepsView, sweepView } from "./sweeps.js";

const VIEWS = { now: nowView, timeline: timelineView, history: historyView, profiles: profilesView, sweeps: sweepsView, sweep: sweepView, job: jobView, lease: leaseView };

export const state = { gpus: [], leases: [], waiting: [], jobs: [], nodes: [], counts: {}, trouble: "", isKnown: false };
let session = sessionStorage.getItem("grn-session") || "";
let view = null;

// --- asking -------------------------------------------------------------------------------

async function fetched(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { authorization: `Bearer ${session}` } });
  if (answer.status === 401) {
    session = "";
    sessionStorage.removeItem("grn-session");
    lock();
  }
  if (!answer.ok) throw new Error((await answer.json()).error || `status ${answer.status}`);
  return answer;
}

export const ask = async (path, options) => (await fetched(path, options)).json();
export const askBlob = async (path) => (await fetched(path)).blob();

export const act = (job, verb, body = {}) => ask(`/api/job/${job}/${verb}`, { method: "POST", body: JSON.stringify(body) });

async function openSession() {
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (!link) return;
  history.replaceState(null, "", "#/now");
  const answer = await fetch("/api/session", { method: "POST", body: JSON.stringify({ link }) });
  if (answer.ok) {
    session = (await answer.json()).session;
    sessionStorage.setItem("grn-session", session);
  }
}

// --- the stream ---------------------------------------------------------------------------

async function listen() {
  let pause = 500;
  while (session) {
    try {
      const answer = await fetch("/api/stream", { headers: { authorization: `Bearer ${session}` } });
      if (answer.status === 401) return lock();
      if (!answer.ok) throw new Error();
      pause = 500;
      pulse("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts)
          if (part.startsWith("data: ")) {
            Object.assign(state, JSON.parse(part.slice(6)), { isKnown: true });
            view?.update?.();
          }
      }
    } catch {
      /* the server is away: tried again below */
    }
    pulse("the page's server does not answer; is `grn web` still running?", true);
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

function pulse(text, isBad = false) {
  const box = document.getElementById("pulse");
  box.textContent = text;
  box.className = isBad ? "bad" : "";
}

// --- views --------------------------------------------------------------------------------

export function trouble(error) {
  return el("p", { class: "trouble", role: "alert" }, plain(error.message || error));
}

function lock() {
  pulse("locked", true);
  view?.close?.();
  view = null;
  document.getElementById("view").replaceChildren(
    el("h1", {}, "This page is locked"),
    el("p", { class: "empty" }, "Open the link that ", el("code", {}, "grn web"), " prints in your terminal. Each link opens once; press Enter there for another."));
}

function show() {
  if (!session) return lock();
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [name, argument] = path.split("/");
  const make = VIEWS[name] || nowView;
  view?.close?.();
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.getAttribute("href") === `#/${name || "now"}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `grn · ${name || "now"}`;
  const root = document.getElementById("view");
  root.replaceChildren();
  document.getElementById("tip").hidden = true;
  view = make(root, argument === undefined ? "" : decodeURIComponent(argument), new URLSearchParams(query)) || null;
}

window.addEventListener("hashchange", show);
await openSession();
show();
if (session) listen();
