// What is wrong now in all nodes, and how to connect: the first things of the first screen; title and favicon say the same.

import { get, part, query as asked } from "./api.js";
import { card, failed, fill, front, h, note, ranges, table, tag, whole } from "./dom.js";

const KINDS = { critical: "bad", warning: "busy", note: "faint" };
const EVERY = 5; // rounds, on other screens than the first
const ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M3 22c7 0 7-12 13-12s6 12 13 12M3 22c9 0 7 5 13 5s5-5 13-5" fill="none" stroke="COLOUR" stroke-width="4" stroke-linecap="round"/></svg>';
const COLOURS = { good: "#1b8a46", busy: "#d08700", bad: "#d3261e", faint: "#808b95" };

const known = { answer: null, error: null, round: 0 };
const where = (one) => (one.group !== null ? "#/group/" + part(one.group) + (one.space && one.space !== "consumers" ? asked({ space: one.space }) : "")
  : one.topic !== null ? `#/topic/${part(one.topic)}/partitions` : { TransactionHangs: "#/transactions", JobFailed: "#/jobs", JobSilent: "#/jobs", Down: "#/nodes", NodeSilent: "#/nodes" }[one.about]);

// The same at several nodes is one thing, which names them unless its sentence does.
function merged(answer) {
  const found = new Map();
  for (const one of answer?.problems || []) {
    const key = JSON.stringify({ ...one, node: null }), before = found.get(key);
    if (before) before.nodes.push(one.node); else found.set(key, { ...one, nodes: [one.node] });
  }
  return [...found.values()].map((one) => ({ ...one, at: answer.nodes > 1 && !/\bnode \d/.test(one.sentence) ? ` · node${one.nodes.length > 1 ? "s" : ""} ${ranges(one.nodes)}` : "" }));
}

// Asks the node, in every round of the first screen and in some rounds of others; who may not know it is told so there.
export async function watch(isFirst) {
  if (!isFirst && known.round++ % EVERY) return;
  try { known.answer = await get("/api/problems"); known.error = null; } catch (error) { if (!error.status) throw error; known.error = error; known.answer = null; }
}

// Of the title: how many things are wrong, and where; the icon has the colour of the worst.
export function tell(title, isLost) {
  const wrong = merged(known.answer).filter((one) => one.severity !== "note");
  const kind = isLost ? "bad" : !known.answer ? "faint" : wrong.length ? KINDS[wrong.some((one) => one.severity === "critical") ? "critical" : "warning"] : "good";
  const told = isLost ? "no answer" : wrong.length ? `${wrong.length} wrong` : "";
  const name = [told, title, location.host].filter(Boolean).join(" · ");
  if (document.title !== name) document.title = name;
  const icon = document.querySelector("link[rel=icon]"), href = "data:image/svg+xml," + encodeURIComponent(ICON.replace("COLOUR", COLOURS[kind]));
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

export function problems() {
  const list = h("div", { role: "status" }), lines = h("div", {});
  let before = "", round = 0;
  const element = h("div", {}, card("What is wrong now", list), card("How to connect", lines));

  function draw() {
    const { answer, error } = known;
    const now = JSON.stringify([answer, error?.message]);
    if (now === before) return;
    before = now;
    if (error || !answer) { fill(list, error ? failed(error) : "asking…"); return; }
    const all = merged(answer), wrong = all.filter((one) => one.severity !== "note"), notes = all.filter((one) => one.severity === "note");
    fill(list, wrong.length ? rows(wrong) : h("p", { class: "good" }, "Nothing is wrong."), notes.length ? rows(notes) : null);
  }

  const rows = (all) => h("ul", { class: "problems" }, all.map((one) => h("li", { class: KINDS[one.severity] },
    h("div", {}, tag(KINDS[one.severity], one.severity), " ", where(one) ? h("a", { href: where(one) }, one.sentence) : h("b", {}, one.sentence), one.at, one.more ? h("span", { class: "faint" }, ` and ${whole(one.more)} more`) : null),
    one.remedy ? h("p", { class: "faint" }, one.remedy) : null)));

  async function connect() {
    if (round++ % EVERY) return; // nodes come and go
    const { connect: all } = await get("/api/connect");
    fill(lines, table([
      { title: "Protocol", cell: (one) => front(one.listener.split("-")[0], one.listener.split("-").slice(1).join("-")) },
      { title: "What a client is given", kind: "mono", keep: true, cell: (one) => one.line },
      { title: "", cell: (one) => h("button", { type: "button", class: "plain", "data-key": "copy" + one.listener, "aria-label": `Copy how to connect to ${one.listener}`, onclick: () => copy(one.line) }, "Copy") },
    ], all, { empty: "No listener for clients is open at this node.", caption: "How to connect" }));
  }
  return { element, refresh: async () => { await Promise.all([watch(true), connect()]); draw(); } };
}

// Without HTTPS browsers give a page no clipboard: then the text is chosen in a field, as by hand.
async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {
    const box = h("textarea", { value: text, class: "unseen" }), before = document.activeElement;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    before?.focus();
    if (!done) { note("the browser does not let a page copy", true); return; }
  }
  note("copied: " + text);
}
