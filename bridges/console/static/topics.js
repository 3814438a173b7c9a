// Topics as one log: who writes and who reads, through which protocol, whatever the topic was made with.

import { get, none, part, query as asked } from "./api.js";
import { spark, told } from "./charts.js";
import { bytes, count, fill, front, h, pager, say, table, tag, whole } from "./dom.js";
import { newTopic } from "./topic_forms.js";

export function users(rates, way) {
  const some = Object.entries(rates).filter(([, one]) => one["bytes_" + way] > 0 || one["records_" + way] > 0);
  if (!some.length) return h("span", { class: "faint" }, "–");
  return some.map(([name, one]) => front(name, one["records_" + way] > 0 ? told.rate(one["records_" + way]) : told.byterate(one["bytes_" + way])));
}

// Search, sort and skip in the address: what a list of any length needs. `change` is called when one of them has.
// With `opens`, Enter goes to the first one that is found.
export function listState(query, settle, refresh, first, opens = false) {
  const state = { search: query.search || "", sort: query.sort || first, descending: query.descending === "true", skip: Number(query.skip) || 0, limit: 50 };
  let asks = false;
  const change = (some) => {
    asks = true;
    Object.assign(state, some);
    settle({ ...(state.more || {}), search: state.search, sort: state.sort === first ? "" : state.sort, descending: state.descending, skip: state.skip || "" });
    return refresh();
  };
  let waiting = 0;
  const find = () => { clearTimeout(waiting); return change({ search: search.value, skip: 0 }); };
  const search = h("input", { type: "search", value: state.search, placeholder: "Search (/)", "aria-label": "Search by name", autocomplete: "off",
    oninput: () => { clearTimeout(waiting); waiting = setTimeout(find, 200); }, onkeydown: async (event) => { if (opens && event.key === "Enter") { await find(); document.querySelector("#main td a")?.click(); } } });
  const onsort = (sort, isNumber) => change(sort === state.sort ? { descending: !state.descending, skip: 0 } : { sort, descending: Boolean(isNumber), skip: 0 });
  const pages = (page, rows) => {
    if (asks) say(`${whole(rows.length)} of ${whole(page.total)} shown${state.sort === first ? "" : `, by ${state.sort}`}`);
    asks = false;
    return pager({ count: rows.length, total: page.total, next: page.next }, state, (skip) => change({ skip }));
  };
  const wanted = () => ({ limit: state.limit, skip: state.skip, search: state.search, sort: state.sort, descending: state.descending });
  return { state, change, search, onsort, pages, wanted };
}

// The same of one of several lists of a screen: nothing of it is in the address.
export const innerList = (refresh, limit = 50) => { const made = listState({}, () => {}, refresh, "name"); made.state.limit = limit; return made; };

export function topics({ element, query, settle, refresh }) {
  const { state, search, onsort, pages, wanted } = listState(query, settle, refresh, "name", true);
  const list = h("div", {});
  element.append(h("h1", {}, "Topics"), h("div", { class: "bar" }, search, h("button", { type: "button", class: "main", onclick: () => newTopic(refresh) }, "New topic")), h("section", { class: "card" }, list));
  async function look() {
    const page = await get("/api/topics" + asked({ ...wanted(), history: true }));
    fill(list, table([
      { title: "Topic", sort: "name", kind: "name", cell: (one) => [h("a", { href: "#/topic/" + part(one.name) }, one.name), one.internal ? [" ", tag("faint", "internal")] : "", one.importing ? [" ", tag("busy", "importing")] : ""].flat() },
      { title: "Partitions", sort: "partitions", n: true, cell: (one) => whole(one.partitions) },
      { title: "Records", sort: "records", n: true, keep: true, cell: (one) => count(one.records) },
      { title: "Size", sort: "bytes", n: true, keep: true, cell: (one) => bytes(one.bytes) },
      { title: "Written through", sort: "bytes_in", cell: (one) => h("span", {}, users(one.rates, "in")) },
      { title: "Read through", sort: "bytes_out", cell: (one) => h("span", {}, users(one.rates, "out")) },
      { title: "Last hour", cell: (one) => spark(one.history) },
    ].map((one) => ({ ...one, cell: wrapped(one.cell) })), page.topics, { ...state, onsort, caption: "Topics", empty: state.search ? "No topic of that name." : none("topics") }),
    page.unanswered ? h("p", { class: "failed" }, `Without the partitions of node ${page.unanswered.join(", ")}, which does not answer.`) : "",
    pages(page, page.topics));
  }
  return { element, refresh: look };
}

const wrapped = (cell) => (row) => { const made = cell(row); return Array.isArray(made) ? h("span", {}, made) : made; };
