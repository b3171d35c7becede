// The page: a session, a stream of pictures of the machine, and one view at a time.
import { el, prose } from "./dom.js";
import { nowView } from "./now.js";
import { timelineView } from "./timeline.js";
import { bookingsView } from "./bookings.js";
import { jobView, leaseView } from "./job.js";
import { arrayView } from "./array.js";
import { historyView } from "./history.js";
import { profilesView } from "./profiles.js";
import { sweepsView, sweepView } from "./sweeps.js";

const VIEWS = { now: nowView, timeline: timelineView, bookings: bookingsView, history: historyView, profiles: profilesView, sweeps: sweepsView, sweep: sweepView, job: jobView, array: arrayView, lease: leaseView };

export const state = { gpus: [], leases: [], loads: [], jobs: [], nodes: [], bookings: [], counts: {}, running: 0, waiting: 0, shown: 0, trouble: "", isKnown: false };
const TAB_MS = 400;
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

// A new tab takes over the session of another tab of this page; only pages of this very server hear it.
const tabs = new BroadcastChannel("grn-session");
tabs.onmessage = ({ data }) => { if (data.ask && session) tabs.postMessage({ session }); };
const fromOtherTab = () => new Promise((found) => {
  const heard = ({ data }) => data.session && found(data.session);
  tabs.addEventListener("message", heard);
  tabs.postMessage({ ask: true });
  setTimeout(() => { tabs.removeEventListener("message", heard); found(""); }, TAB_MS);
});

async function openSession() {
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (!link) {
    if (!session) session = await fromOtherTab();
    if (session) sessionStorage.setItem("grn-session", session);
    return;
  }
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
            pulse(state.trouble ? (state.is_lost ? "No negotiator answers" : "The negotiator reports a problem") : "Live", Boolean(state.trouble));
            view?.update?.();
          }
      }
    } catch {
      /* the server is away: tried again below */
    }
    pulse("The page's server does not answer. Is grn web still running?", true);
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

function pulse(text, isBad = false) {
  const box = document.getElementById("pulse");
  if (box.textContent === text) return;
  box.textContent = text;
  box.className = isBad ? "bad" : "good";
}

// --- views --------------------------------------------------------------------------------

export function trouble(error) {
  return el("p", { class: "trouble", role: "alert" }, prose(error.message || error));
}

function lock() {
  pulse("Locked", true);
  view?.close?.();
  view = null;
  document.getElementById("view").replaceChildren(
    el("h1", {}, "This page is locked"),
    el("p", { class: "empty" }, "Open the link that ", el("code", {}, "grn web"), " prints in your terminal. That link opens once; ", el("code", {}, "grn web --link"), " prints one that opens any number of tabs."));
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
