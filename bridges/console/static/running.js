// What goes on: transactions, jobs and migrations, nodes.

import { get, part, query as asked, send } from "./api.js";
import { bytes, card, closing, confirmed, count, dialog, duration, failed, fill, front, h, note, nothing, state as stateOf, table, tag, whole } from "./dom.js";
import { coordinator, open } from "./topic.js";
import { innerList, listState } from "./topics.js";

export function transactions({ element, query, settle, refresh }) {
  const all = h("input", { type: "checkbox", checked: query.all === "true", onchange: () => { settle({ all: all.checked }); refresh(); } });
  const { state, search, pages, wanted } = listState(query, (told) => settle({ ...told, all: all.checked }), refresh, "name");
  const holding = innerList(refresh);
  const list = h("div", {}), held = h("div", {});
  element.append(h("h1", {}, "Transactions"), h("div", { class: "bar" }, search, h("label", { class: "line" }, all, "also ids of which nothing is open")), h("section", { class: "card" }, list),
    card("What holds back readers of committed data, on this node", held));
  async function look() {
    const [page, holds] = await Promise.all([get("/api/transactions" + asked({ ...wanted(), open: all.checked ? "false" : "true" })), get("/api/open-transactions" + asked(holding.wanted()))]);
    fill(held, table([
      { title: "Topic", kind: "name", cell: (one) => h("a", { href: `#/topic/${part(one.topic)}/partitions` }, one.topic) }, { title: "Partition", n: true, keep: true, cell: (one) => whole(one.partition) },
      { title: "Producer", n: true, cell: (one) => String(one.producer_id) }, { title: "Records behind it", n: true, cell: (one) => count(one.held) },
      { title: "Open for", n: true, keep: true, cell: (one) => (one.appended_ms === null ? nothing() : (one.coordinated ? "" : "≥ ") + duration(Math.max(0, Date.now() - one.appended_ms) / 1000)) },
      { title: "Transactional id", cell: coordinator },
      { title: "", cell: (one) => h("button", { type: "button", class: "plain", "data-key": `held${one.topic}/${one.partition}/${one.producer_id}`, onclick: () => open("/api/topics/" + part(one.topic), one.topic, one.partition, refresh) }, "Look…") },
    ], holds.transactions, { empty: "Nothing: no partition has an open transaction.", caption: "Open transactions of partitions" }), holds.total > holds.transactions.length ? holding.pages(holds, holds.transactions) : null);
    fill(list, table([
      { title: "Transactional id", kind: "name", cell: (one) => h("button", { type: "button", class: "link", "data-key": one.transactional_id, onclick: () => detail(one) }, one.transactional_id) },
      { title: "Protocol", cell: (one) => front(one.front) }, { title: "State", cell: (one) => stateOf(one.state) },
      { title: "Producer", cell: (one) => `${one.producer_id}, epoch ${one.epoch}` },
      { title: "Open for", n: true, keep: true, cell: (one) => (one.open_ms === null ? nothing() : h("span", { class: one.open_ms > one.timeout_ms ? "bad" : "" }, duration(one.open_ms / 1000))) },
      { title: "Timeout", n: true, cell: (one) => duration(one.timeout_ms / 1000) }, { title: "Topics", n: true, cell: (one) => whole(one.topics) },
      { title: "", cell: (one) => (one.open_ms === null ? nothing() : h("button", { type: "button", class: "danger", "data-key": "abort" + one.transactional_id, onclick: () => confirmed(`Abort ${one.transactional_id}?`, "What it wrote is never shown, and its producer is fenced.", "Abort it",
        async () => { await send("POST", `/api/transactions/${part(one.transactional_id)}/abort`); note("aborted"); refresh(); }) }, "Abort…")) },
    ], page.transactions, { empty: state.search ? "No transactional id of that name." : "No transaction is open.", caption: "Transactions" }), page.total ? pages(page, page.transactions) : null);
  }
  async function detail(one) {
    const box = h("div", {}, "asking…");
    const close = dialog(one.transactional_id, box, closing(() => close()));
    try {
      const told = await get(`/api/transactions/${part(one.transactional_id)}?limit=500`);
      fill(box, h("p", {}, told.groups.length ? `Positions of ${told.groups.join(", ")} are part of it.` : "No positions are part of it."), table([
        { title: "Topic", cell: (each) => h("a", { href: "#/topic/" + part(each.topic) + "/partitions", onclick: () => document.getElementById("dialog").close() }, each.topic) }, { title: "Partition", n: true, cell: (each) => whole(each.partition) },
      ], told.partitions, { empty: "It has written nowhere." }), told.total > told.partitions.length ? h("p", { class: "faint" }, `${told.partitions.length} of ${whole(told.total)} are shown.`) : null);
    } catch (error) { fill(box, failed(error)); }
  }
  return { element, refresh: look };
}

const amount = (value, unit) => (unit === "bytes" ? bytes(value) : `${whole(Math.round(value))} ${unit}`);

function progress(job) {
  if (!job.total) return amount(job.done, job.unit);
  const share = Math.min(1, job.done / job.total);
  return h("span", {}, h("progress", { max: 1, value: share, "aria-label": job.name }), ` ${Math.floor(100 * share)} % · ${amount(job.done, job.unit)} of ${amount(job.total, job.unit)}`);
}

export function jobs({ element, query, settle, refresh }) {
  const { search, pages, wanted } = listState(query, settle, refresh, "name");
  const list = h("div", {});
  element.append(h("h1", {}, "Migrations and jobs"), h("div", { class: "bar" }, search), h("section", { class: "card" }, list));
  async function look() {
    const told = await get("/api/jobs" + asked(wanted()));
    fill(list, table([
      { title: "Job", kind: "name", cell: (job) => job.name }, { title: "Kind", cell: (job) => job.kind }, { title: "State", keep: true, cell: (job) => stateOf(job.state) },
      { title: "Done", keep: true, cell: progress },
      { title: "Rate", n: true, cell: (job) => (job.rate === null || job.state !== "running" ? nothing() : amount(job.rate, job.unit) + "/s") },
      { title: "Time left", n: true, cell: (job) => (job.seconds_left === null || job.state !== "running" ? nothing() : duration(job.seconds_left)) },
      { title: "Heard of", n: true, cell: (job) => duration(Math.max(0, Date.now() - job.heard_ms) / 1000) + " ago" },
      { title: "Says", cell: (job) => Object.entries(job.details).map(([name, text]) => `${name}: ${text}`).join(" · ") || nothing() },
    ], told.jobs, { empty: "No job has told of itself. Migrations, archives, replays and audits of the data pipeline do.", caption: "Jobs" }), told.total > told.jobs.length ? pages(told, told.jobs) : null);
  }
  return { element, refresh: look };
}

export function nodes({ element, refresh }) {
  const list = h("div", {}), own = h("div", {}), limits = h("div", {}), members = innerList(refresh, 100);
  element.append(h("h1", {}, "Nodes"), card("The cluster", list), card("This node", own), card("What it does not promise, as it is set up", limits));
  async function look() {
    const status = await get("/api/status");
    fill(own, h("dl", {}, [["node", `${status.node_id} of ${status.cluster_id}`], ["version", status.version], ["phase", status.phase], ["up for", duration(status.uptime_ms / 1000)], ["durability", status.durability], ["data", status.data_dir],
      ...Object.entries(status.listeners).map(([name, where]) => [name, where])].flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))])));
    const all = await get("/api/promises");
    fill(limits, h("ul", {}, all.not_promised.map((one) => h("li", {}, one.sentence, one.chosen ? h("span", { class: "busy" }, " (a setting)") : null))));
    try {
      const told = await get("/api/cluster" + asked(members.wanted()));
      fill(list, table([
        { title: "Node", n: true, cell: (one) => whole(one.node_id) }, { title: "State", keep: true, cell: (one) => h("span", {}, stateOf(one.state), one.suspected ? [" ", tag("bad", "suspected")] : "") },
        { title: "Shares", n: true, cell: (one) => `${whole(one.slots)} of ${whole(told.slots)}` }, { title: "Silent for", n: true, cell: (one) => duration(one.silent_seconds) },
        { title: "Rack", cell: (one) => one.rack || nothing() }, { title: "Addresses", kind: "mono", cell: (one) => Object.entries(one.addresses).map(([name, where]) => `${name} ${where}`).join(", ") },
        { title: "", cell: (one) => h("button", { type: "button", class: "danger", "data-key": "drain" + one.node_id, onclick: () => confirmed(`Drain node ${one.node_id}?`, "It hands over all it owns, and owns nothing until it is started again.", "Drain it",
          async () => { await send("POST", `/api/cluster/nodes/${one.node_id}/drain`); note("it has begun"); refresh(); }) }, "Drain…") },
      ], told.nodes, { caption: "Nodes" }), Object.entries(told.gone).map(([node, seconds]) => h("p", { class: "failed" }, `Node ${node} is gone: no sign of it for ${duration(seconds)}. Others have taken over what it owned. Start it again.`)), told.total > told.nodes.length ? members.pages(told, told.nodes) : null);
    } catch (error) {
      if (error.status !== 409) throw error;
      fill(list, h("p", { class: "empty" }, error.message));
    }
  }
  return { element, refresh: look };
}
