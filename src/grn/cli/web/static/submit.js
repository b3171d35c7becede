// The form that submits one command to the user's queue.
import { el, plain } from "./dom.js";
import { toast } from "./dialog.js";
import { ask } from "./app.js";

const FIELDS = [
  ["command", "Command", { required: true, placeholder: "python train.py --lr 1e-3" }],
  ["name", "Name", { placeholder: "optional" }],
  ["cwd", "Folder", { placeholder: "where grn web was started" }],
  ["gpus", "GPUs", { type: "number", min: 1, value: 1 }],
  ["mem", "Memory", { placeholder: "learned; or 6GiB" }],
  ["time_limit", "Time limit", { placeholder: "none; or 3h" }],
  ["priority", "Priority", { type: "number", value: 0 }],
  ["retry", "Retries", { type: "number", min: 0, value: 0 }],
];

export function submitForm() {
  const inputs = new Map(FIELDS.map(([name, , attributes]) => [name, el("input", { name, type: "text", autocomplete: "off", spellcheck: "false", ...attributes })]));
  const hold = el("input", { type: "checkbox", name: "hold" }), said = el("p", { class: "trouble", role: "alert", hidden: true });
  const close = () => { box.close(); box.remove(); };
  const send = async (event) => {
    event.preventDefault();
    const body = { hold: hold.checked };
    for (const [name, input] of inputs) if (input.value !== "") body[name] = input.type === "number" ? Number(input.value) : input.value;
    try {
      const answer = await ask("/api/submit", { method: "POST", body: JSON.stringify(body) });
      close();
      toast(`Submitted as job ${answer.first}. `, { link: `#/job/${answer.first}` });
    } catch (error) { said.textContent = plain(error.message); said.hidden = false; }
  };
  const box = el("dialog", { class: "ask wide", "aria-labelledby": "submit-title", oncancel: (event) => { event.preventDefault(); close(); } },
    el("div", {}, el("h2", { id: "submit-title" }, "Submit a job"), el("p", { class: "soft" }, "The command is run by the shell, with the environment of ", el("code", {}, "grn web"), "."), said,
      el("form", { onsubmit: send },
        FIELDS.map(([name, title]) => el("label", { class: `field ${name}` }, el("span", {}, title), inputs.get(name))),
        el("label", { class: "check" }, hold, " Hold it until it is released"),
        el("div", { class: "acts" }, el("button", { class: "act", type: "button", onclick: close }, "Close"), el("button", { class: "act primary", type: "submit" }, "Submit")))));
  document.body.append(box);
  box.showModal();
  inputs.get("command").focus();
}
