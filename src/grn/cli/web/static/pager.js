// The pages of a long list that the server cuts: where one is, and the way to the others.
import { el } from "./dom.js";

const SIZE = 200;
const number = (value) => value.toLocaleString("en");

export function pager(load) {
  let skip = 0, total = 0;
  const count = el("p", { class: "soft count-line" });
  const go = (to) => { skip = Math.max(0, Math.min(to, Math.floor(Math.max(0, total - 1) / SIZE) * SIZE)); load(); };
  const button = (text, name, to) => el("button", { class: "act", type: "button", "aria-label": name, onclick: () => go(to()) }, text);
  const first = button("«", "first page", () => 0), last = button("»", "last page", () => total);
  const back = button("‹", "page before", () => skip - SIZE), on = button("›", "next page", () => skip + SIZE);
  const bar = el("div", { class: "tools pager" }, count, first, back, on, last);

  // Tell how many there are; false when the page is beyond them, and was turned back.
  function tell(all) {
    total = all;
    const isBeyond = skip > 0 && skip >= total;
    if (isBeyond) skip = Math.floor(Math.max(0, total - 1) / SIZE) * SIZE;
    const upTo = Math.min(total, skip + SIZE), isOne = total <= SIZE;
    count.textContent = !total ? "" : isOne ? `${number(total)} job${total === 1 ? "" : "s"}.` : `${number(skip + 1)} to ${number(upTo)} of ${number(total)} jobs`;
    for (const one of [first, back, on, last]) one.hidden = isOne;
    first.disabled = back.disabled = skip === 0;
    on.disabled = last.disabled = upTo >= total;
    return !isBeyond;
  }

  return { bar, size: SIZE, get skip() { return skip; }, begin: () => { skip = 0; }, tell };
}
