// What goes on: transactions, jobs and migrations, nodes.

import { get, part, query as asked, send } from "./api.js";
import { bytes, card, confirmed, dialog, duration, failed, fill, front, h, note, nothing, state as stateOf, table, tag, whole } from "./dom.js";

export function transactions({ element, query, settle, refresh }) {
  const all = h("input", { type: "checkbox", checked: query.all === "true", onchange: () => { settle({ all: all.checked }); refresh(); } });
  const list = h("div", {});
  element.append(h("h1", {}, "Transactions"), h("div", { class: "bar" }, h("label", { class: "line" }, all, "also ids of which nothing is open")), h("section", { class: "card" }, list),
    h("p", { class: "faint" }, "A partition whose readers of committed data are held back says so among the partitions of its topic, also by a transaction that nobody coordinates any more."));
  async function look() {
    const page = await get("/api/transactions" + asked({ open: all.checked ? "false" : "true", limit: 200 }));
    fill(list, table([
      { title: "Transactional id", kind: "name", cell: (one) => h("button", { type: "button", class: "link", "data-key": one.transactional_id, onclick: () => detail(one) }, one.transactional_id) },
      { title: "Protocol", cell: (one) => front(one.front) }, { title: "State", cell: (one) => stateOf(one.state) },
      { title: "Producer", cell: (one) => `${one.producer_id}, epoch ${one.epoch}` },
      { title: "Open for", n: true, cell: (one) => (one.open_ms === null ? nothing() : h("span", { class: one.open_ms > one.timeout_ms ? "bad" : "" }, duration(one.open_ms / 1000))) },
      { title: "Timeout", n: true, cell: (one) => duration(one.timeout_ms / 1000) }, { title: "Topics", n: true, cell: (one) => whole(one.topics) },
      { title: "", cell: (one) => (one.open_ms === null ? nothing() : h("button", { type: "button", class: "danger", "data-key": "abort" + one.transactional_id, onclick: () => confirmed(`Abort ${one.transactional_id}?`, "What it wrote is never shown, and its producer is fenced.", "Abort it",
        async () => { await send("POST", `/api/transactions/${part(one.transactional_id)}/abort`); note("aborted"); refresh(); }) }, "Abort…")) },
    ], page.transactions, { empty: "No transaction is open.", caption: "Transactions" }), page.next === null || page.next === undefined ? null : h("p", { class: "faint" }, `${page.transactions.length} of ${whole(page.total)} are shown.`));
  }
  async function detail(one) {
    const box = h("div", {}, "asking…");
    dialog(one.transactional_id, box);
    try {
      const told = await get(`/api/transactions/${part(one.transactional_id)}`);
      fill(box, h("p", {}, told.groups.length ? `Positions of ${told.groups.join(", ")} are part of it.` : "No positions are part of it."), table([
        { title: "Topic", cell: (each) => h("a", { href: "#/topic/" + part(each.topic) + "/partitions", onclick: () => document.getElementById("dialog").close() }, each.topic) }, { title: "Partition", n: true, cell: (each) => whole(each.partition) },
      ], told.partitions.slice(0, 500), { empty: "It has written nowhere." }));
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

export function jobs({ element }) {
  const list = h("div", {});
  element.append(h("h1", {}, "Migrations and jobs"), h("section", { class: "card" }, list));
  async function look() {
    const told = await get("/api/jobs");
    fill(list, table([
      { title: "Job", kind: "name", cell: (job) => job.name }, { title: "Kind", cell: (job) => job.kind }, { title: "State", cell: (job) => stateOf(job.state) },
      { title: "Done", cell: progress },
      { title: "Rate", n: true, cell: (job) => (job.rate === null || job.state !== "running" ? nothing() : amount(job.rate, job.unit) + "/s") },
      { title: "Time left", n: true, cell: (job) => (job.seconds_left === null || job.state !== "running" ? nothing() : duration(job.seconds_left)) },
      { title: "Heard of", n: true, cell: (job) => duration(Math.max(0, Date.now() - job.heard_ms) / 1000) + " ago" },
      { title: "Says", cell: (job) => Object.entries(job.details).map(([name, text]) => `${name}: ${text}`).join(" · ") || nothing() },
    ], told.jobs, { empty: "No job has told of itself. Migrations, archives, replays and audits of the data pipeline do.", caption: "Jobs" }));
  }
  return { element, refresh: look };
}

export function nodes({ element, refresh }) {
  const list = h("div", {}), own = h("div", {}), limits = h("div", {});
  element.append(h("h1", {}, "Nodes"), card("The cluster", list), card("This node", own), card("What it does not promise, as it is set up", limits));
  async function look() {
    const status = await get("/api/status");
    fill(own, h("dl", {}, [["node", `${status.node_id} of ${status.cluster_id}`], ["version", status.version], ["phase", status.phase], ["up for", duration(status.uptime_ms / 1000)], ["durability", status.durability], ["data", status.data_dir],
      ...Object.entries(status.listeners).map(([name, where]) => [name, where])].flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))])));
    const all = await get("/api/promises");
    fill(limits, h("ul", {}, all.not_promised.map((one) => h("li", {}, one.sentence, one.chosen ? h("span", { class: "busy" }, " (a setting)") : null))));
    try {
      const told = await get("/api/cluster");
      fill(list, table([
        { title: "Node", n: true, cell: (one) => whole(one.node_id) }, { title: "State", cell: (one) => h("span", {}, stateOf(one.state), one.suspected ? [" ", tag("bad", "suspected")] : "") },
        { title: "Shares", n: true, cell: (one) => `${whole(one.slots)} of ${whole(told.slots)}` }, { title: "Silent for", n: true, cell: (one) => duration(one.silent_seconds) },
        { title: "Rack", cell: (one) => one.rack || nothing() }, { title: "Addresses", kind: "mono", cell: (one) => Object.entries(one.addresses).map(([name, where]) => `${name} ${where}`).join(", ") },
        { title: "", cell: (one) => h("button", { type: "button", class: "danger", "data-key": "drain" + one.node_id, onclick: () => confirmed(`Drain node ${one.node_id}?`, "It hands over all it owns, and owns nothing until it is started again.", "Drain it",
          async () => { await send("POST", `/api/cluster/nodes/${one.node_id}/drain`); note("it has begun"); refresh(); }) }, "Drain…") },
      ], told.nodes, { caption: "Nodes" }));
    } catch (error) {
      if (error.status !== 409) throw error;
      fill(list, h("p", { class: "empty" }, error.message));
    }
  }
  return { element, refresh: look };
}
