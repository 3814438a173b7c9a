// One topic: what flows through it, its partitions and how they descend, its records, its configuration.

import { get, part, query as asked, send } from "./api.js";
import { Chart, colourAt, lineage } from "./charts.js";
import { topicClients } from "./clients.js";
import { bytes, card, closing, count, dialog, duration, fact, failed, fill, front, h, note, nothing, pager, state as stateOf, table, tag, whole } from "./dom.js";
import { groupLink, lagCell, seconds, trendCell } from "./groups.js";
import { span, spanChoice } from "./overview.js";
import { records } from "./records.js";
import { config } from "./topic_forms.js";
import { listState, users } from "./topics.js";

const TABS = [["", "Flow"], ["clients", "Writers and readers"], ["partitions", "Partitions"], ["records", "Records"], ["groups", "Groups"], ["config", "Configuration"]];

export function topic(screen) {
  const [name, tab = ""] = screen.parts;
  const path = "/api/topics/" + part(name);
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, TABS.map(([key, title]) => h("a", { href: `#/topic/${part(name)}${key && "/" + key}`, "aria-current": key === tab ? "page" : null }, title)));
  const inner = h("div", {});
  screen.element.append(h("h1", {}, name), tabs, inner);
  const make = { "": flow, clients: topicClients, partitions, records, groups, config }[tab] || flow;
  return make({ ...screen, element: inner, name, path });
}

const ways = (history, way) => Object.entries(history.fronts).map(([front, one]) => ({ label: front, points: one[way], colour: ["kafka", "pravega", "ydb", "http", "pipeline"].includes(front) ? front : "other" }));

function flow({ element, path, refresh }) {
  const facts = h("div", { class: "facts" }), names = h("p", { class: "faint" }), now = h("p", {});
  const charts = [["Records written", "records_in", "rate"], ["Records read", "records_out", "rate"], ["Bytes written", "bytes_in", "byterate"], ["Bytes read", "bytes_out", "byterate"]]
    .map(([title, way, unit]) => [new Chart(title, unit), way, title]);
  element.append(names, facts, now, spanChoice(refresh), h("div", { class: "grid" }, charts.map(([chart, , title]) => card(title + ", by protocol", chart.element))));
  let round = 0, drawn = "";
  async function look() {
    const one = await get(path + "?limit=500");
    const sum = (key) => one.partitions.reduce((all, each) => all + each[key], 0);
    const held = one.partitions.reduce((all, each) => all + each.end_offset - each.last_stable_offset, 0);
    fill(names, Object.entries(one.names).map(([protocol, other]) => `${protocol}: ${other}`).join(" · "));
    const oldest = Math.min(...one.partitions.map((each) => each.oldest_ms ?? Infinity));
    fill(facts, fact(one.partition_count > one.partitions.length ? `records, of ${one.partitions.length} partitions` : "records", count(sum("end_offset") - sum("start_offset"))), fact("size", bytes(sum("bytes"))), fact("partitions", whole(one.partition_count)),
      fact("oldest kept", oldest === Infinity ? "–" : duration(Math.max(0, Date.now() - oldest) / 1000)), fact("kept for", keeps(one.effective_config)),
      held ? fact("records behind an open transaction", whole(held)) : null, one.importing ? fact("filled by the migration", one.importing) : null);
    fill(now, "Written by ", users(one.rates, "in"), " read by ", users(one.rates, "out"));
    if (round++ % 5 === 0 || drawn !== span.value) {
      drawn = span.value;
      const history = await get(`${path}/history?span=${span.value}`);
      for (const [chart, way] of charts) chart.draw(history, ways(history, way));
    }
  }
  return { element, refresh: look, close: () => charts.forEach(([chart]) => chart.close()) };
}

function keeps(config) {
  if (!String(config["cleanup.policy"]).includes("delete")) return String(config["cleanup.policy"]);
  const ms = Number(config["retention.ms"]), size = Number(config["retention.bytes"]);
  return [ms < 0 ? "ever" : duration(ms / 1000), size >= 0 ? bytes(size) : ""].filter(Boolean).join(", ");
}

function partitions({ element, path, name, query, settle, refresh }) {
  const state = { skip: Number(query.skip) || 0, limit: 100 };
  const tree = h("div", {}), list = h("div", {});
  element.append(tree, card("Partitions", list));
  async function look() {
    const one = await get(path + asked({ limit: state.limit, skip: state.skip }));
    const all = one.partition_count <= 500 && one.partition_count > one.partitions.length ? await get(path + "?limit=500") : one;
    const splits = all.partitions.some((each) => each.parents.length || each.keys[0] !== 0 || each.keys[1] !== 1);
    fill(tree, splits ? card("How they descend: keys over epochs", h("div", { class: "wide", tabIndex: 0, role: "group", "aria-label": "lineage" }, lineage(all.partitions, all.epoch))) : null);
    const keepMs = Number(one.effective_config["retention.ms"]), deletes = String(one.effective_config["cleanup.policy"]).includes("delete");
    fill(list, table([
      { title: "Partition", n: true, cell: (each) => whole(each.partition) },
      { title: "State", cell: (each) => (each.active ? tag("good", "active") : tag("faint", "sealed")) },
      { title: "Keys", cell: (each) => `${+each.keys[0].toFixed(4)} – ${+each.keys[1].toFixed(4)}` },
      { title: "From, to", cell: (each) => [each.parents.length ? "← " + each.parents.join(", ") : "", each.children.length ? "→ " + each.children.join(", ") : ""].filter(Boolean).join(" ") || nothing() },
      { title: "First offset", n: true, keep: true, cell: (each) => count(each.start_offset) },
      { title: "Next offset", n: true, keep: true, cell: (each) => count(each.end_offset) },
      { title: "Size", n: true, cell: (each) => bytes(each.bytes) },
      { title: "Oldest", n: true, cell: (each) => (each.oldest_ms === null ? nothing() : duration(Math.max(0, Date.now() - each.oldest_ms) / 1000)) },
      { title: "Retention ahead", cell: (each) => ahead(each, keepMs, deletes) },
      { title: "Transactions", cell: (each) => (each.end_offset > each.last_stable_offset ? h("button", { type: "button", class: "plain", "data-key": "hold" + each.partition, onclick: () => open(path, name, each.partition, refresh) }, `${whole(each.end_offset - each.last_stable_offset)} held back`) : nothing()) },
    ], one.partitions, { caption: "Partitions" }), pager({ count: one.partitions.length, total: one.total, next: one.next }, state, (skip) => { state.skip = skip; settle({ skip: skip || "" }); refresh(); }));
  }
  return { element, refresh: look };
}

function ahead(each, keepMs, deletes) {
  if (!deletes || keepMs < 0 || each.retained_from_ms === null || each.end_offset === each.start_offset) return nothing();
  const left = each.retained_from_ms + keepMs - Date.now();
  return h("span", {}, h("meter", { min: 0, max: 1, value: Math.min(1, Math.max(0, 1 - left / keepMs)), "aria-label": "share of its time that is over" }), left > 0 ? ` in ${duration(left / 1000)}` : " due");
}

export function coordinator(one) {
  if (!one.coordinated) return h("span", { class: "bad" }, "nobody coordinates it: hanging");
  return one.transaction ? one.transaction.transactional_id : h("span", { class: "faint" }, "not told");
}

export async function open(path, name, partition, refresh) {
  const box = h("div", {}, "asking…");
  const close = dialog(`Open transactions of ${name}, partition ${partition}`, box, closing(() => close()));
  const where = `${path}/partitions/${partition}/transactions`;
  async function look() {
    try {
      const told = await get(where);
      fill(box, h("p", {}, `Readers of committed data stay at ${whole(told.last_stable_offset)} of ${whole(told.end_offset)}.`), table([
        { title: "Producer", n: true, cell: (one) => String(one.producer_id) },
        { title: "From offset", n: true, cell: (one) => whole(one.first_offset) },
        { title: "Transactional id", cell: coordinator },
        { title: "", cell: (one) => (one.coordinated ? nothing() : h("button", { type: "button", class: "danger", onclick: async () => {
          try { await send("POST", `${where}/${one.producer_id}/end`, { commit: false }); note("ended: what it wrote is never shown"); refresh(); await look(); } catch (error) { fill(box, failed(error)); }
        } }, "Abort it")) },
      ], told.transactions, { empty: "None is open any more." }));
    } catch (error) { fill(box, failed(error)); }
  }
  await look();
}

// Who reads it, and how far behind each is, in this topic alone.
function groups({ element, path, query, settle, refresh }) {
  const { state, search, onsort, pages, wanted } = listState(query, settle, refresh, "name");
  const list = h("div", {}), behind = new Chart("Lag of groups, in records", "records"), late = new Chart("Lag of groups, in seconds", "seconds");
  element.append(spanChoice(refresh), h("div", { class: "grid" }, card("Lag in records, of those furthest behind", behind.element), card("Lag in seconds", late.element)), card("Groups", h("div", { class: "bar" }, search), list));
  let round = 0, drawn = "";
  async function look() {
    const page = await get(`${path}/groups` + asked(wanted()));
    fill(list, table([
      { title: "Group", sort: "name", kind: "name", cell: groupLink }, { title: "State", cell: (one) => stateOf(one.state) },
      { title: "Protocol", cell: (one) => (one.fronts.length ? h("span", {}, one.fronts.map((name) => front(name))) : nothing()) },
      { title: "Members", n: true, cell: (one) => whole(one.members) }, { title: "Partitions", n: true, cell: (one) => whole(one.partitions) },
      { title: "Lag", sort: "lag", n: true, keep: true, cell: (one) => lagCell({ ...one, lag_seconds: undefined }) },
      { title: "Behind", sort: "seconds", n: true, keep: true, cell: (one) => seconds(one.lag_seconds, one.lag_exact) },
      { title: "Trend", n: true, cell: trendCell },
    ], page.groups, { ...state, onsort, caption: "Groups", empty: "No group has a position in this topic." }), pages(page, page.groups));
    if (round++ % 5 === 0 || drawn !== span.value) {
      drawn = span.value;
      const history = await get(`${path}/history?span=${span.value}`);
      const lines = (what) => history.groups.map((one, at) => ({ label: one.group || "(no name)", points: one[what], colour: colourAt(at) }));
      behind.draw(history, lines("records"));
      late.draw(history, lines("seconds"));
    }
  }
  return { element, refresh: look, close: () => [behind, late].forEach((one) => one.close()) };
}
