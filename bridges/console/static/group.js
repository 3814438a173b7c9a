// One group: members, what each reads, lag over time.

import { get, part, query as asked, send } from "./api.js";
import { Chart, colourAt } from "./charts.js";
import { card, confirmed, count, fill, front, h, note, nothing, plural, ranges, state as stateOf, table, whole } from "./dom.js";
import { reset } from "./group_reset.js";
import { CONSUMERS, lagCell, seconds, trendCell } from "./groups.js";
import { span, spanChoice } from "./overview.js";
import { listState } from "./topics.js";

export function group({ element, parts, query, settle, refresh }) {
  const name = parts[0], space = query.space || CONSUMERS;
  const { state, search, pages, wanted } = listState(query, settle, refresh, "name");
  state.more = space === CONSUMERS ? {} : { space };
  search.placeholder = "Topic (/)";
  const facts = h("p", {}), why = h("p", {}), members = h("div", {}), positions = h("div", {});
  const records = new Chart("Lag in records", "records"), late = new Chart("Lag in seconds", "seconds"), places = new Chart("Lag of partitions", "records");
  let last = null;
  element.append(h("h1", {}, name || "(no name)"), facts, why, spanChoice(refresh),
    h("div", { class: "grid" }, card("Lag in records", records.element), card("Lag in seconds", late.element)),
    card("Partitions furthest behind, in records", places.element),
    card("Members", members),
    card("Positions", h("div", { class: "bar" }, search, h("button", { type: "button", class: "plain", onclick: () => last && reset(name, space, last, refresh) }, "Set positions…"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete the group…")), positions));
  let round = 0, drawn = "";

  function remove() {
    confirmed(`Delete ${name}?`, "Its positions are gone for the readers of every protocol.", "Delete it", async () => {
      await send("DELETE", `/api/groups/${part(name)}` + asked(state.more)); note(`deleted ${name}`); location.hash = "#/groups";
    }, name);
  }

  async function look() {
    const one = await get(`/api/groups/${part(name)}` + asked({ ...wanted(), space }));
    last = one;
    const clients = new Map(one.members.map((member) => [member.member_id, member]));
    fill(facts, stateOf(one.state), " ", one.fronts.map((each) => front(each)),
      [one.kind && `kind ${one.kind}`, one.protocol_type && `type ${one.protocol_type}`, one.protocol && `strategy ${one.protocol}`, one.dead_letter_topic && `dead letters in ${one.dead_letter_topic}`, one.generation !== null && `generation ${whole(one.generation)}`].filter(Boolean).join(" · "),
      " · lag ", lagCell(one), " · ", trendCell(one));
    fill(why, reasons(one).map((each) => h("span", { class: "busy" }, each, " ")));
    const some = (key) => one.members.some((member) => member[key]);
    fill(members, table([
      { title: "Member", kind: "mono", cell: (member) => member.member_id },
      ...(some("instance_id") ? [{ title: "Instance", cell: (member) => member.instance_id ?? nothing() }] : []),
      { title: "Client", cell: (member) => member.client_id || nothing() },
      ...(some("software") ? [{ title: "Software", cell: (member) => member.software || nothing() }] : []),
      ...(some("user") ? [{ title: "User", cell: (member) => member.user || nothing() }] : []),
      { title: "Host", cell: (member) => member.host },
      { title: "Reads", keep: true, cell: (member) => (member.partitions === null ? h("span", { class: "faint" }, "not told") : Object.entries(member.partitions).map(([topic, all]) => `${topic}: ${ranges(all)}`).join("; ") || nothing()) },
    ], one.members, { empty: "No members now.", caption: "Members" }),
    one.member_count > one.members.length ? h("p", { class: "faint" }, `${one.members.length} of ${whole(one.member_count)} are shown.`) : null);
    const reader = (id) => { if (id === null) return nothing(); return h("span", { class: "mono", title: id }, `${clients.get(id)?.client_id ?? ""} …${id.slice(-6)}`.trim()); };
    const shared = one.positions.some((row) => row.deliveries);
    fill(positions, table([
      { title: "Topic", kind: "name", cell: (row) => (row.exists ? h("a", { href: "#/topic/" + part(row.topic) }, row.topic) : `${row.topic} (deleted)`) },
      { title: "Partition", n: true, keep: true, cell: (row) => whole(row.partition) },
      { title: shared ? "Start" : "Committed", n: true, cell: (row) => count(row.offset) },
      { title: "Log end", n: true, cell: (row) => count(row.end_offset) },
      { title: "Lag", n: true, keep: true, cell: (row) => count(row.lag) },
      { title: "Behind", n: true, keep: true, cell: (row) => seconds(row.lag_seconds, row.lag_exact) },
      ...(shared ? [
        { title: "With members", n: true, cell: (row) => count(row.acquired) },
        { title: "Deliveries", keep: true, cell: (row) => Object.entries(row.deliveries || {}).map(([times, records]) => `${whole(records)} × ${times}`).join(", ") || nothing() },
      ] : [{ title: "Reader", cell: (row) => reader(row.member_id) }]),
    ], one.positions, { empty: "No positions.", caption: "Positions" }), pages(one, one.positions));
    if (round++ % 5 === 0 || drawn !== span.value) {
      drawn = span.value;
      const history = await get(`/api/groups/${part(name)}/history` + asked({ space, span: span.value }));
      records.draw(history, [{ label: "records behind", points: history.records, colour: "kafka" }]);
      late.draw(history, [{ label: "behind", points: history.seconds, colour: "ydb" }]);
      places.draw(history, history.places.slice(0, 7).map((place, at) => ({ label: `${place.topic} ${place.partition}`, points: place.records, colour: colourAt(at) })));
    }
  }
  return { element, refresh: look, close: () => [records, late, places].forEach((one) => one.close()) };
}

// Why a group lags, as far as its positions tell.
function reasons({ lag, members, member_count, trend, causes: { unread, held, worst } }) {
  if (!lag && !held) return [];
  const told = members.every((one) => one.partitions !== null);
  return [
    lag && !member_count ? "Nobody reads: the group has no member now." : told && unread ? `${plural(unread, "partition")} with unread records ${unread === 1 ? "has" : "have"} no reader.` : null,
    held ? [`${plural(held, "position")} ${held === 1 ? "waits" : "wait"} for `, h("a", { href: "#/transactions" }, "an open transaction"), ": readers of committed data do not pass it."] : null,
    worst && worst.lag > lag / 2 && worst.lag < lag ? `${Math.round(100 * worst.lag / lag)} % of it is in ${worst.topic}, partition ${worst.partition}.` : null,
    member_count && trend > 0.05 ? "Members read less than is written." : null,
  ].filter(Boolean);
}
