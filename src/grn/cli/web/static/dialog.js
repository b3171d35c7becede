// A question before something that cannot be undone, and a short message after each action.
import { el } from "./dom.js";

const TOAST_MS = 6000;

// Ask in a dialog; true when the user chose `verb`. Escape and a click beside it mean no.
export function confirmed(question, detail, verb, refuse = "Keep", kind = "danger") {
  return new Promise((answer) => {
    const close = (value) => { box.close(); box.remove(); answer(value); };
    const no = el("button", { class: "act", type: "button", onclick: () => close(false) }, refuse);
    const yes = el("button", { class: `act ${kind}`, type: "button", onclick: () => close(true) }, verb);
    const box = el("dialog", { class: "ask", "aria-labelledby": "ask-title", oncancel: (event) => { event.preventDefault(); close(false); }, onclick: (event) => event.target === box && close(false) },
      el("div", {}, el("h2", { id: "ask-title" }, question), el("p", { class: "soft" }, detail), el("div", { class: "acts" }, no, yes)));
    document.body.append(box);
    box.showModal();
    no.focus();
  });
}

export function toast(text, { isBad = false, link = "" } = {}) {
  const box = document.getElementById("toasts");
  const line = el("p", { class: isBad ? "bad" : undefined }, text, link ? el("a", { href: link }, "Open") : null);
  box.append(line);
  while (box.children.length > 3) box.firstChild.remove();
  setTimeout(() => line.remove(), isBad ? 2 * TOAST_MS : TOAST_MS);
}
