// Groups of all protocols.

import { get, part, query as asked } from "./api.js";
import { told } from "./charts.js";
import { duration, fill, front, h, nothing, short, state as stateOf, table, tag, whole } from "./dom.js";
import { listState } from "./topics.js";

export const CONSUMERS = "consumers";
export const groupLink = (one) => h("a", { href: "#/group/" + part(one.group) + (one.space === CONSUMERS ? "" : asked({ space: one.space })) }, one.group || "(no name)");

export const missing = (page) => (page.unanswered ? h("p", { class: "failed" }, `Without the groups of node ${page.unanswered.join(", ")}, which does not answer.`) : null);

export function seconds(value, exact) {
  if (value === null || value === undefined) return nothing();
  return (exact === false ? "≥ " : "") + (value ? duration(value) : "0 s");
}

// "+" says that there is more: the ends of some partitions are not known.
export function lagCell(one) {
  if (one.lag === null) return nothing();
  const records = (one.lag < 100000 ? whole(one.lag) : short(one.lag)) + (one.unknown_lags ? "+" : "");
  return one.lag && one.lag_seconds !== undefined ? h("span", { title: whole(one.lag) + " records" }, records, " · ", seconds(one.lag_seconds, one.lag_exact)) : records;
}

export function trendCell(one) {
  if (one.trend === null || one.trend === undefined) return nothing();
  if (Math.abs(one.trend) < 0.05) return h("span", { class: "faint" }, "steady");
  const left = one.trend < 0 && one.lag ? ` (${duration(one.lag / -one.trend)} left)` : "";
  return h("span", { class: one.trend > 0 ? "busy" : "good" }, `${one.trend > 0 ? "↑ +" : "↓ "}${told.rate(one.trend)}${left}`);
}

export function groups({ element, query, settle, refresh }) {
  const { state, search, onsort, pages, wanted } = listState(query, settle, refresh, "name", true);
  const list = h("div", {});
  element.append(h("h1", {}, "Consumer groups"), h("div", { class: "bar" }, search), h("section", { class: "card" }, list));
  async function look() {
    const page = await get("/api/groups" + asked(wanted()));
    fill(list, table([
      { title: "Group", sort: "name", kind: "name", cell: (one) => h("span", {}, groupLink(one), one.space === CONSUMERS ? "" : [" ", tag("faint", one.space)]) },
      { title: "State", cell: (one) => stateOf(one.state) },
      { title: "Protocol", cell: (one) => (one.fronts.length ? h("span", {}, one.fronts.map((name) => front(name)), one.kind === "share" ? [" ", tag("faint", "share")] : "") : nothing()) },
      { title: "Members", sort: "members", n: true, cell: (one) => whole(one.members) },
      { title: "Lag", sort: "lag", n: true, keep: true, cell: lagCell },
      { title: "Behind", sort: "seconds", n: true, keep: true, cell: (one) => seconds(one.lag_seconds, one.lag_exact) },
      { title: "Trend", n: true, cell: trendCell },
      { title: "Topics", cell: (one) => (one.topics.length ? one.topics.slice(0, 3).join(", ") + (one.topic_count > 3 ? ` and ${one.topic_count - 3} more` : "") : nothing()) },
    ].map((one) => (one.sort === "lag" ? { ...one, cell: (row) => lagCell({ ...row, lag_seconds: undefined }) } : one)), page.groups, { ...state, onsort, caption: "Groups", empty: state.search ? "No group of that name." : "No consumer groups yet." }),
    missing(page),
    pages(page, page.groups));
  }
  return { element, refresh: look };
}
