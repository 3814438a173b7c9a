// The frame: which screen is shown, when it is asked anew, keys, dark and light.

import { ask, contact, get, me } from "./api.js";
import { clock, dialog, failed, fill, firstOfRows, h, remember, remembered, visible, zone, zoneName } from "./dom.js";
import { overview } from "./overview.js";
import { tell, watch } from "./problems.js";
import { topics } from "./topics.js";
import { topic } from "./topic.js";
import { groups } from "./groups.js";
import { group } from "./group.js";
import { transactions, jobs, nodes } from "./running.js";
import { connections } from "./clients.js";
import { access } from "./access.js";

const PERIOD_MS = 3000;
const SCREENS = { "": overview, topics, topic, groups, group, connections, transactions, jobs, access, nodes };
const NAV = [["", "Overview", "o"], ["topics", "Topics", "t"], ["groups", "Groups", "g"], ["connections", "Connections", "c"], ["transactions", "Transactions", "x"],
  ["jobs", "Jobs", "j"], ["access", "Access", "a"], ["nodes", "Nodes", "n"]];
const ABOVE = { topic: "topics", group: "groups" };

const main = document.getElementById("main");
let shown = null; // { element, refresh, close }
let place = "";
let timer = 0;
let round = 0;
let title = "";

// #/topic/orders/records?partition=1 is the screen "topic" with ["orders", "records"] and { partition: "1" }
function address() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((one) => { try { return decodeURIComponent(one); } catch { return one; } });
  return { screen: parts[0], parts: parts.slice(1), query: Object.fromEntries(new URLSearchParams(values || "")) };
}

// Changes what the address says behind the "?", without another entry in the history of the browser.
function settle(values) {
  const [path] = location.hash.split("?");
  const told = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)).toString();
  history.replaceState(null, "", (path || "#/") + (told ? "?" + told : ""));
}

async function open() {
  const { screen, parts, query } = address();
  const make = SCREENS[screen] || overview;
  const now = [screen, ...parts].join("/");
  if (shown) shown.close?.();
  if (now !== place) document.getElementById("dialog").close(); // it was about another screen
  for (const one of document.querySelectorAll("#nav a")) {
    const chosen = one.dataset.screen === (ABOVE[screen] || screen);
    if (chosen) one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current");
  }
  const element = h("div", {});
  main.replaceChildren(element);
  if (now !== place && place !== "") { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  place = now;
  shown = make({ element, parts, query, settle, refresh: again });
  title = [parts[0] && visible(parts[0]), NAV.find(([name]) => name === (ABOVE[screen] || screen))?.[1]].filter(Boolean).join(" · ");
  tell(title, contact.lost);
  await refresh();
}

// At once, as after something was changed.
function again() {
  clearTimeout(timer);
  return refresh();
}

const isReading = () => { const chosen = getSelection(); return chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode); };

async function refresh() {
  const mine = ++round;
  const one = shown;
  clearTimeout(timer);
  try {
    if (!document.hidden && !isReading()) {
      if (!me) await ask().then(who);
      await Promise.all([one.refresh(), status(), one.isFirst || watch(false)]);
    } else await watch(false); // title and icon tell what is wrong of a page in the background as well
    one.problem?.replaceChildren();
  } catch (error) {
    if (one === shown && error.status !== 0 && error.name !== "AbortError") tellProblem(one, error);
  }
  lost();
  tell(title, contact.lost);
  if (mine === round) timer = setTimeout(refresh, PERIOD_MS);
}

// Said once, not in every round.
function tellProblem(one, error) {
  one.problem ||= one.element.appendChild(h("div", { role: "alert" }));
  if (one.problem.textContent !== error.message) fill(one.problem, failed(error));
}

// What stands on the page is old as long as the node says nothing.
function lost() {
  const bar = document.getElementById("lost");
  document.body.classList.toggle("old", contact.lost);
  if (contact.lost && bar.hidden) fill(bar, `No answer since ${clock(contact.at)} ${zoneName()}. What is shown is from then. `, h("button", { type: "button", class: "plain", onclick: again }, "Try again"));
  bar.hidden = !contact.lost;
}

function who() {
  const name = me.user ?? (me.logins ? "not logged in" : "no logins");
  fill(document.getElementById("who"), h("span", { title: me.restricted ? `On the node: ${me.node.join(", ") || "nothing"}. Topics and groups as rules say.` : "May do everything." }, name, me.restricted ? ` · ${me.node.length ? "may " + me.node.join(", ") : "no rights on the node"}` : " · may do everything"));
}

async function status() {
  const told = document.getElementById("status");
  const say = (kind, text) => { told.className = kind; if (told.textContent !== text) fill(told, text); };
  try {
    const ready = await get("/readyz").catch((error) => { if (error.status === 503) return { phase: "not ready" }; throw error; });
    say(ready.phase === "serving" ? "" : "busy", ready.phase);
  } catch (error) {
    say("bad", error.message);
  }
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("theme"));
}

const preferred = matchMedia("(prefers-color-scheme: dark)");
theme(remembered("theme") || (preferred.matches ? "dark" : "light"));
preferred.addEventListener("change", () => { if (!remembered("theme")) theme(preferred.matches ? "dark" : "light"); });

function turn() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", next);
  theme(next);
}

// Who speaks to the machine, or hits keys by accident, does without keys of one letter.
const letters = () => remembered("letters") !== "off";

function help() {
  const keys = [["/", "search"], ...NAV.map(([, name, key]) => [`g ${key}`, name]), ["1 … 6", "parts of a topic"], ["l", "list: then arrows go from row to row"], ["d", "dark or light"], ["r", "ask again"], ["?", "this"]];
  const close = dialog("Keys", h("dl", {}, keys.flatMap(([key, what]) => [h("dt", {}, key.split(" ").flatMap((one) => [h("kbd", {}, one), " "])), h("dd", {}, what)])),
    h("label", { class: "line" }, h("input", { type: "checkbox", checked: letters(), onchange: (event) => remember("letters", event.target.checked ? "on" : "off") }), " Use these keys"),
    h("div", { class: "bar end" }, h("a", { href: "/api/openapi.json" }, "JSON interface (OpenAPI)"), h("button", { type: "button", class: "plain", onclick: () => close() }, "Close")));
}

let before = "";
addEventListener("keydown", (event) => {
  if (!letters() || event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName) || document.querySelector("dialog[open]")) return;
  const key = event.key;
  if (before === "g") {
    const found = NAV.find(([, , one]) => one === key);
    before = "";
    if (found) { location.hash = "#/" + found[0]; return; }
  }
  before = key;
  if (key === "/") { const search = main.querySelector("input[type=search]"); if (search) { event.preventDefault(); search.focus(); search.select(); } }
  else if (/^[1-9]$/.test(key)) main.querySelectorAll(".tabs a")[key - 1]?.click();
  else if (key === "l") firstOfRows(main)?.focus();
  else if (key === "d") turn();
  else if (key === "r") again();
  else if (key === "?") help();
});

document.getElementById("nav").replaceChildren(...NAV.map(([name, title]) => h("a", { href: "#/" + name, "data-screen": name }, title)));
document.getElementById("theme").addEventListener("click", turn);
const zoneButton = document.getElementById("zone");
const showZone = () => { zoneButton.textContent = zoneName(); zoneButton.setAttribute("aria-label", `Times are in ${zoneName()}: change`); };
zoneButton.addEventListener("click", () => { zone.local = !zone.local; remember("zone", zone.local ? "local" : "utc"); showZone(); open(); });
showZone();
document.getElementById("help-button").addEventListener("click", help);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
addEventListener("hashchange", open);
open();
