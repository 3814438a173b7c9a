// What the node does, all at a glance.

import { get, none, part } from "./api.js";
import { Chart, told } from "./charts.js";
import { bytes, card, count, duration, fact, failed, fill, front, h, nothing, short, state, table, whole } from "./dom.js";
import { groupLink, lagCell, missing, trendCell } from "./groups.js";
import { problems } from "./problems.js";
import { Rates } from "./rates.js";

export const span = { value: "hour" };

export function spanChoice(refresh) {
  const button = (value, text) => h("button", { type: "button", class: span.value === value ? "main" : "plain", "aria-pressed": String(span.value === value),
    onclick: (event) => { span.value = value; for (const one of event.target.parentNode.children) { const on = one === event.target; one.className = on ? "main" : "plain"; one.setAttribute("aria-pressed", String(on)); } refresh(); } }, text);
  return h("div", { class: "bar", role: "group", "aria-label": "How far back" }, button("hour", "Last hour"), button("day", "Last day"));
}

export function overview({ element, refresh }) {
  const rates = new Rates();
  const facts = h("div", { class: "facts" }), whose = h("p", { class: "faint" });
  const fronts = h("div", {});
  const busiest = h("div", {});
  const behind = h("div", {});
  const promises = h("div", {});
  const incoming = new Chart("Records in", "rate");
  const outgoing = new Chart("Records out", "rate");
  const processor = new Chart("Processor and lateness of the loop", "share");
  const memory = new Chart("Memory", "bytes");
  const wrong = problems();
  element.append(h("h1", {}, "Overview"), wrong.element, whose, facts, spanChoice(refresh),
    h("div", { class: "grid" }, card("Records in, by protocol", incoming.element), card("Records out, by protocol", outgoing.element),
      card("Processor, of one core", processor.element), card("Memory", memory.element)),
    card("Protocols", fronts),
    h("div", { class: "grid" }, card("Busiest topics", busiest), card("Furthest behind", behind)),
    card("What this node does not promise, as it is set up", promises));
  const own = async (where, path, draw) => { try { draw(await get(path)); } catch (error) { if (!error.status) throw error; fill(where, failed(error)); } };
  let round = 0;
  const lately = {}; // what the node remembers, until there is something to compare

  async function look() {
    const slow = round++ % 5 === 0; // what changes every 20 seconds at most
    await Promise.all([
      wrong.refresh(),
      own(fronts, "/api/status", (status) => {
        fill(whose, status.nodes < 2 ? null : `Traffic and connections of node ${status.node_id}; topics, groups and what is wrong of all nodes.`);
        rates.begin();
        const rows = status.fronts.map((one) => ({ ...one, requestRate: rates.of(one.name + "/r", one.requests), inRate: rates.of(one.name + "/i", one.records_in), outRate: rates.of(one.name + "/o", one.records_out) }));
        const sum = (key, way) => (rows.some((one) => one[key] !== null) ? short(rows.reduce((all, one) => all + (one[key] || 0), 0)) + "/s" : lately[way] === undefined ? "…" : short(lately[way]) + "/s");
        fill(facts, fact("records in", sum("inRate", "records_in")), fact("records out", sum("outRate", "records_out")), fact(status.topics === 1 ? "topic" : "topics", whole(status.topics)), fact("partitions", whole(status.partitions)),
          fact(status.groups === 1 ? "group" : "groups", whole(status.groups)), fact("connections", whole(rows.reduce((all, one) => all + one.connections, 0))),
          fact(status.phase + " for", duration(status.uptime_ms / 1000)), fact(`durability, version ${status.version}`, status.durability));
        const rate = (value) => (value === null ? nothing() : short(value) + "/s");
        const where = (name) => Object.keys(status.listeners).filter((one) => one === name || one.startsWith(name + "-")).sort().map((one) => status.listeners[one]).join(", ") || status.listeners.console;
        fill(fronts, status.failure ? h("p", { class: "failed" }, status.failure) : null, table([
          { title: "Protocol", cell: (one) => front(one.name) },
          { title: "Address", cell: (one) => where(one.name), kind: "mono" },
          { title: "Connections", cell: (one) => whole(one.connections), n: true },
          { title: "Requests", cell: (one) => rate(one.requestRate), n: true },
          { title: "Records in", cell: (one) => rate(one.inRate), n: true },
          { title: "Records out", cell: (one) => rate(one.outRate), n: true },
          { title: "Errors told", cell: (one) => count(one.errors), n: true },
        ], rows, { caption: "Protocols" }));
      }),
      own(busiest, "/api/topics?limit=6&sort=bytes_in&descending=true", ({ topics }) => fill(busiest, table([
        { title: "Topic", cell: (one) => h("a", { href: "#/topic/" + part(one.name) }, one.name), kind: "name" },
        { title: "In", cell: (one) => told.byterate(Object.values(one.rates).reduce((all, rate) => all + rate.bytes_in, 0)), n: true },
        { title: "Out", cell: (one) => told.byterate(Object.values(one.rates).reduce((all, rate) => all + rate.bytes_out, 0)), n: true },
        { title: "Size", cell: (one) => bytes(one.bytes), n: true },
      ], topics, { empty: none("topics") + " Create one under Topics, or produce to one.", caption: "Busiest topics" }))),
      own(behind, "/api/groups?limit=6&sort=seconds&descending=true", (page) => fill(behind, table([
        { title: "Group", cell: groupLink, kind: "name" }, { title: "State", cell: (one) => state(one.state) },
        { title: "Lag", cell: lagCell, n: true, keep: true }, { title: "Trend", cell: trendCell, n: true },
      ], page.groups, { empty: none("consumer groups"), caption: "Groups furthest behind" }), missing(page))),
      slow && own(incoming.element, `/api/history?span=${span.value}`, draw),
      slow && own(promises, "/api/promises", (all) => fill(promises, h("ul", {}, all.not_promised.map((one) => h("li", {}, one.sentence, one.chosen ? h("span", { class: "busy" }, " (a setting)") : null))), all.not_promised.length ? null : h("p", {}, "Nothing is held back."))),
    ]);
  }

  function draw(history) {
    const lines = (way) => Object.entries(history.fronts).map(([name, one]) => ({ label: name, points: one[way], colour: name === "kafka" || name === "pravega" || name === "ydb" || name === "http" || name === "pipeline" ? name : "other" }));
    for (const way of ["records_in", "records_out"]) lately[way] = Object.values(history.fronts).reduce((all, one) => all + (one[way]?.at(-1) || 0), 0);
    incoming.draw(history, lines("records_in"));
    outgoing.draw(history, lines("records_out"));
    processor.draw(history, [{ label: "processor", points: history.cpu, colour: "kafka" }, { label: "beats late", points: history.late, colour: "bad" }]);
    memory.draw(history, [{ label: "resident", points: history.memory, colour: "http" }, { label: "held by connections", points: history.held, colour: "ydb" }]);
  }

  const charts = [incoming, outgoing, processor, memory];
  return { element, isFirst: true, refresh: () => { if (span.drawn !== span.value) { span.drawn = span.value; round = 0; } return look(); }, close: () => charts.forEach((one) => one.close()) };
}
