// Elements, tables and words. Everything from the node is put in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const svgTags = new Set(["svg", "path", "rect", "g", "text", "line", "title"]);

export function h(tag, props, ...children) {
  const isSvg = svgTags.has(tag);
  const element = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (!isSvg && name in element && name !== "list" && name !== "form") element[name] = name === "title" ? visible(value) : value;
    else element.setAttribute(name, name === "aria-label" ? visible(value) : value);
  }
  element.append(...kept(children));
  return element;
}

// Names and values are somebody else's: a control, or a mark that turns the direction of text, is shown as what it is.
export const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
const kept = (children) => children.flat().filter((one) => one !== null && one !== undefined && one !== false).map((one) => (typeof one === "string" ? visible(one) : one));

export const tag = (kind, text) => h("span", { class: "tag " + kind }, text);
export const faint = (text) => h("span", { class: "faint" }, text);
export const nothing = () => faint("–");

export const whole = (value) => Number(value).toLocaleString("en-GB");
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

function scaled(value, step, units) {
  let unit = 0;
  let left = Math.abs(value);
  while (left >= step && unit < units.length - 1) { left /= step; unit += 1; }
  if (unit === 0 && left < 0.1) return (value < 0 ? "-" : "") + +left.toPrecision(2) + units[0];
  const digits = unit === 0 ? (Number.isInteger(left) ? 0 : left < 10 ? 2 : 1) : left < 10 ? 2 : left < 100 ? 1 : 0;
  return (value < 0 ? "-" : "") + left.toFixed(digits) + units[unit];
}

export const short = (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]);
export const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);

export function count(value) {
  if (value === null || value === undefined) return nothing();
  return value < 100000 ? whole(value) : h("span", { title: whole(value) }, short(value));
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// All times of the page are in one zone, UTC unless the browser's own was chosen.
export const zone = { local: remembered("zone") === "local" };
export const zoneName = () => (zone.local ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC");
// Of a moment, the numbers of its date and time in that zone as those of UTC.
const inZone = (ms) => new Date(zone.local ? ms - 60000 * new Date(ms).getTimezoneOffset() : ms).toISOString();
export const when = (ms) => (ms === null || ms === undefined || ms < 0 ? nothing() : inZone(ms).replace("T", " ").replace("Z", ""));
export const clock = (ms, digits = 8) => inZone(ms).slice(11, 11 + digits);
// What a field of the kind datetime-local says, in milliseconds, and the other way.
export const fieldTime = (ms) => inZone(ms).slice(0, 19);
export const moment = (text) => new Date(zone.local ? text : text + "Z").getTime();

export function remembered(name) { try { return localStorage.getItem(name); } catch { return null; } }
export function remember(name, value) { try { localStorage.setItem(name, value); } catch { /* it holds until the page is closed */ } }

// Bytes as the node tells them: text as it is, what is no text marked, and how it is written.
export function data(text, base64, most) {
  if (base64 !== undefined) {
    if (base64.length <= 44) return h("span", {}, tag("busy", "hex"), " ", hex(base64));
    return h("span", {}, tag("busy", "base64"), " ", cut(base64, most));
  }
  return text === null || text === undefined ? faint("null") : text === "" ? faint("empty") : cut(text, most);
}
export const hex = (base64) => [...atob(base64)].map((one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
const cut = (text, most) => (text.length > most ? text.slice(0, most) + "…" : text);

const known = ["kafka", "pravega", "ydb", "http", "pipeline"];
export const frontClass = (name) => (known.includes(name) ? name : "other");
export const front = (name, told = "") => h("span", { class: "front " + frontClass(name) }, told ? `${name} ${told}` : name);

export function state(name) {
  const kind = { Stable: "good", running: "good", done: "good", up: "good", Empty: "faint", CompleteCommit: "faint", CompleteAbort: "faint", Dead: "bad", failed: "bad", different: "bad", silent: "busy" }[name] || "busy";
  return tag(kind, name);
}

export const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
export const fact = (name, value) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name));
export const failed = (error) => h("p", { class: "failed" }, error.message);

const reached = (root) => [...root.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")].filter((one) => !one.disabled);
const called = (one) => one.getAttribute("href") || one.dataset.key || one.id || one.getAttribute("aria-label") || one.textContent;

// Fills `element` anew and leaves the keyboard where it was: on what leads to the same place, of several that do on the
// same one of them; where that is gone, on what has come in its place. What a dialog goes back to is found again as well.
export function fill(element, ...children) {
  const box = document.getElementById("dialog"), active = document.activeElement;
  const held = [box.opener, active].find((one) => one && one !== element && element.contains(one));
  const before = held ? reached(element) : [];
  const name = held && called(held), at = before.indexOf(held), nth = before.filter((one) => called(one) === name).indexOf(held);
  element.replaceChildren(...kept(children));
  if (!held) return;
  const now = reached(element), alike = now.filter((one) => called(one) === name);
  let found = alike[Math.min(nth, alike.length - 1)] || now[Math.min(Math.max(at, 0), now.length - 1)];
  if (!found) { element.tabIndex = -1; found = element; }
  if (held === box.opener) box.opener = found; else found.focus({ preventScroll: true });
}

// columns: { title, cell(row), n (a number), kind (class), sort (its name for the node), keep }
// On a phone the columns to keep, and those of buttons, come next to the first one: they are what people look for.
const phone = matchMedia("(max-width: 44rem)");
const nearest = ([first, ...rest]) => { const keep = (one) => one.keep || !one.title; return [first, ...rest.filter(keep), ...rest.filter((one) => !keep(one))]; };
export function table(columns, rows, { sort, descending, onsort, empty = "Nothing here.", caption } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  if (phone.matches) columns = nearest(columns).map((one, at) => (at && one.title && !one.keep && !one.n ? { ...one, kind: `far ${one.kind || ""}` } : one));
  const heads = columns.map((one) => h("th", {
    class: one.n ? "n" : null, scope: "col",
    "aria-sort": one.sort && one.sort === sort ? (descending ? "descending" : "ascending") : null,
  }, one.sort && onsort ? h("button", { type: "button", "data-key": "sort-" + one.sort, onclick: () => onsort(one.sort, one.n) }, one.title) : one.title));
  const body = rows.map((row) => h("tr", {}, columns.map((one) => h("td", { class: [one.n && "n", one.kind].filter(Boolean).join(" ") || null }, one.cell(row)))));
  return h("div", { class: "wide", tabIndex: 0, role: "group", "aria-label": caption || "table", onkeydown: alongRows }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body)));
}

// Arrows go from what has the keyboard in a row to the same in the next one.
function alongRows(event) {
  const step = { ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[event.key], cell = event.target.closest("td");
  if (!step || !cell) return;
  const row = cell.parentNode[step], at = reached(cell).indexOf(event.target);
  event.preventDefault();
  if (row) reached(row.cells[cell.cellIndex])[at]?.focus();
}
// The first thing in the first row of the first table.
export const firstOfRows = (root) => reached(root).find((one) => one.closest("td"));

export function pager(page, state, onskip) {
  const first = state.skip + (page.count ? 1 : 0);
  const last = state.skip + page.count;
  return h("div", { class: "bar end" },
    faint(`${whole(first)}–${whole(last)} of ${whole(page.total)}`),
    h("button", { type: "button", class: "plain", "data-key": "before", disabled: state.skip === 0, onclick: () => onskip(Math.max(0, state.skip - state.limit)) }, "Previous"),
    h("button", { type: "button", class: "plain", "data-key": "next", disabled: page.next === null, onclick: () => onskip(page.next) }, "Next"));
}

export function note(text, bad = false) {
  const one = h("div", { class: "note" + (bad ? " bad" : "") }, text);
  document.getElementById("notes").append(one);
  setTimeout(() => one.remove(), 6000);
}

// Says to those who do not see the page what has changed because of them. Said once: rounds do not repeat it.
export function say(text) { document.getElementById("told").textContent = text; }

export function dialog(title, ...children) {
  const box = document.getElementById("dialog");
  const close = () => box.close();
  box.replaceChildren(h("h2", { id: "dialog-title" }, title), ...kept(children));
  box.onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) box.querySelector("form")?.requestSubmit(); }; // also from a field of several lines
  if (box.open) return close;
  box.opener = document.activeElement;
  // The browser goes back to the element that had the keyboard: a round may have put another one in its place since.
  box.onclose = () => {
    const opener = box.opener;
    box.opener = null;
    if (opener.isConnected) opener.focus(); else if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true });
  };
  box.showModal();
  return close;
}

export const closing = (close) => h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Close"));

// With `name`, it is to be typed first: for what cannot be taken back.
export function confirmed(title, sentence, word, action, name) {
  const typed = name === undefined ? null : h("input", { autocomplete: "off", oninput: () => { button.disabled = typed.value !== name; } });
  const button = h("button", { type: "button", class: "danger", disabled: Boolean(typed), onclick: async () => {
    button.disabled = true;
    try { await action(); close(); } catch (error) { fill(told, failed(error)); button.disabled = false; button.focus(); }
  } }, word);
  const told = h("div", { role: "alert" });
  const close = dialog(title, h("p", {}, sentence), typed && field("Type its name", typed), told,
    h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), button));
}

export const field = (name, input) => h("label", {}, name, input);
export const choice = (values, value, props = {}) => h("select", props, values.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));

// "0–3, 7" of 0, 1, 2, 3, 7
export function ranges(numbers) {
  const parts = [];
  for (const one of numbers) {
    const last = parts[parts.length - 1];
    if (last && one === last[1] + 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}
