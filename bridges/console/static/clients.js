// Who writes and who reads: a topic's clients, and the open connections of all nodes.

import { get, part, query as asked, send } from "./api.js";
import { told } from "./charts.js";
import { card, choice, confirmed, duration, faint, field, fill, front, h, note, nothing, ranges, table, tag, whole } from "./dom.js";
import { innerList, listState } from "./topics.js";

const PROTOCOLS = ["kafka", "pravega", "ydb", "http", "pipeline"];
const ago = (ms) => (ms === null ? nothing() : duration(Math.max(0, Date.now() - ms) / 1000) + " ago");
const named = { title: "Client", kind: "name", cell: (one) => h("span", {}, one.client || faint("(no name)"), one.id === null ? [" ", tag("faint", "has left")] : "") };
const described = [
  { title: "Protocol", cell: (one) => front(one.protocol) },
  { title: "User", cell: (one) => one.user || faint("anonymous") },
  { title: "Address", kind: "mono line", cell: (one) => one.address },
  { title: "Software", kind: "soft", cell: (one) => one.software || nothing() },
  { title: "Node", n: true, cell: (one) => whole(one.node) },
];

const ending = (refresh) => ({ title: "", cell: (one) => (one.id === null ? nothing() : h("button", { type: "button", class: "danger", "data-key": "end" + one.id, onclick: () => confirmed(`End the connection of ${one.client || one.address}?`,
  "This connection ends, once: its client may connect again at once. To keep a client out, take away its rights or its password.", "End it",
  async () => { await send("DELETE", "/api/connections/" + part(one.id)); note(`ended the connection from ${one.address}`); refresh(); }) }, "End…")) });

// Pravega's readers read bytes: nobody has counted their events.
const rate = (one) => [one.records_per_s && told.rate(one.records_per_s), one.bytes_per_s && told.byterate(one.bytes_per_s)].filter(Boolean).join(" · ") || nothing();

// What the list lacks.
const lacking = (page) => [
  page.more ? h("p", { class: "empty" }, `And ${whole(page.more)} more, which the nodes do not remember or do not list.`) : null,
  page.unanswered ? h("p", { class: "failed" }, `Without the clients of node ${page.unanswered.join(", ")}, which does not answer.`) : null,
];

function partitions(one) {
  const more = one.partition_count - one.partitions.length;
  return one.partition_count ? ranges(one.partitions) + (more > 0 ? ` and ${whole(more)} more` : "") : nothing();
}

export function topicClients({ element, path, refresh }) {
  const lists = [["writes", "Writers", "Nobody has written to this topic in the last ten minutes."], ["reads", "Readers", "Nobody has read this topic in the last ten minutes."]]
    .map(([direction, title, empty]) => ({ direction, title, empty, list: innerList(refresh), box: h("div", {}) }));
  element.append(...lists.map(({ title, list, box }) => card(title, h("div", { class: "bar" }, list.search), box)));
  async function look() {
    await Promise.all(lists.map(async ({ direction, title, empty, list, box }) => {
      const page = await get(`${path}/clients` + asked({ ...list.wanted(), direction }));
      fill(box, table([
        named,
        { title: "Rate", n: true, keep: true, cell: rate },
        { title: "Last seen", n: true, cell: (one) => ago(one.last_ms) },
        { title: "Partitions", cell: partitions },
        ...described, ending(refresh),
      ], page.clients, { caption: title, empty: list.state.search ? "No client of that name." : empty }), ...lacking(page), page.total > page.clients.length ? list.pages(page, page.clients) : null);
    }));
  }
  return { element, refresh: look };
}

export function connections({ element, query, settle, refresh }) {
  const { state, change, search, pages, wanted } = listState(query, settle, refresh, "name");
  state.more = { protocol: query.protocol || "", topic: query.topic || "" };
  const narrow = (key, value) => { state.more[key] = value; change({ skip: 0 }); };
  const protocol = choice([["", "all"], ...PROTOCOLS.map((name) => [name, name])], state.more.protocol, { onchange: (event) => narrow("protocol", event.target.value) });
  const topic = h("input", { value: state.more.topic, autocomplete: "off", onchange: (event) => narrow("topic", event.target.value) });
  search.setAttribute("aria-label", "Search by client, software, user or address");
  const list = h("div", {});
  element.append(h("h1", {}, "Connections"), h("div", { class: "bar" }, search, field("Protocol", protocol), field("Topic", topic)), h("section", { class: "card" }, list));
  const links = (names) => (names.length ? h("span", {}, names.slice(0, 3).flatMap((name, at) => [at ? ", " : "", h("a", { href: `#/topic/${part(name)}/clients` }, name)]), names.length > 3 ? ` and ${names.length - 3} more` : "") : nothing());
  async function look() {
    const page = await get("/api/connections" + asked({ ...wanted(), ...state.more }));
    fill(list, table([
      named,
      { title: "In", n: true, keep: true, cell: (one) => (one.bytes_in_per_s ? told.byterate(one.bytes_in_per_s) : nothing()) },
      { title: "Out", n: true, keep: true, cell: (one) => (one.bytes_out_per_s ? told.byterate(one.bytes_out_per_s) : nothing()) },
      { title: "Writes", kind: "name", cell: (one) => links(one.writes) }, { title: "Reads", kind: "name", cell: (one) => links(one.reads) },
      ...described,
      { title: "Open for", n: true, cell: (one) => duration(Math.max(0, Date.now() - one.since_ms) / 1000) },
      { title: "Last data", n: true, cell: (one) => ago(one.last_ms) },
      ending(refresh),
    ], page.connections, { caption: "Connections", empty: state.search || state.more.protocol || state.more.topic ? "No such connection." : "No client is connected." }), ...lacking(page), pages(page, page.connections));
  }
  return { element, refresh: look };
}
