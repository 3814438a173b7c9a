"use strict";
// Polls the JSON interface and redraws. Everything from the node is put in as text, never as markup.

const PERIOD_MS = 2000;
const NEWEST = 20;
const before = new Map(); // last counters by name, for rates
const GROUP = "group"; // with a slash before the name of a group in the address; no topic's name has one
const CONSUMERS = "consumers"; // the space of groups whose name says all; others stand before the slash
let chosen = fromAddress();

const $ = (id) => document.getElementById(id);
function fromAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // somebody typed an address that is none
  }
}

const number = (value) => Number(value).toLocaleString("en-GB");

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function rate(name, value, told = number) {
  const now = performance.now();
  const last = before.get(name);
  before.set(name, { value, now });
  if (!last || now <= last.now) return "";
  return told(Math.max(0, Math.round((value - last.value) * 1000 / (now - last.now)))) + "/s";
}

// Some protocols are read by bytes, and how many records those are nobody has looked: their bytes tell how much.
function flow(name, seen, way) {
  return seen["records_" + way] > 0 ? rate(name, seen["records_" + way]) : rate(name + "/bytes", seen["bytes_" + way], size);
}

// A front's own listener, and those that its clients are told of.
function addresses(name, listeners) {
  const own = Object.keys(listeners).filter((one) => one === name || one.startsWith(name + "-")).sort();
  return own.map((one) => listeners[one]).join(", ") || listeners.console;
}

function cell(tag, content, numeric) {
  const element = document.createElement(tag);
  if (numeric) element.className = "n";
  element.append(content);
  return element;
}

// columns: [title, row => content, numeric]
function draw(id, columns, rows) {
  const head = document.createElement("tr");
  for (const [title, , numeric] of columns) head.append(cell("th", title, numeric));
  const lines = rows.map((row) => {
    const line = document.createElement("tr");
    for (const [, content, numeric] of columns) line.append(cell("td", content(row), numeric));
    return line;
  });
  $(id).replaceChildren(...(rows.length ? [head, ...lines] : []));
}

async function get(path) {
  const response = await fetch(path, { cache: "no-store" });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error || response.statusText);
  return body;
}

function link(name, prefix = "") {
  const anchor = document.createElement("a");
  anchor.href = "#" + prefix + encodeURIComponent(name);
  anchor.append(name || "(no name)");
  return anchor;
}

const inSpace = (group) => (group.space === CONSUMERS ? "" : "@" + encodeURIComponent(group.space));
const address = (group) => GROUP + inSpace(group) + "/" + group.group;

function tagged(kind, text) {
  const element = document.createElement("span");
  element.className = kind;
  element.append(text);
  return element;
}

const known = (value) => (value === null ? tagged("faint", "–") : number(value));
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

function state(name) {
  const kind = { Stable: "good", Empty: "faint", Dead: "bad" }[name] || "busy";
  return tagged("state " + kind, name);
}

// What jobs elsewhere say of themselves.
function jobState(job) {
  const kind = { running: "busy", done: "good", failed: "bad" }[job.state] || "faint";
  return tagged("state " + kind, job.state);
}

const amount = (value, unit) => (unit === "bytes" ? size(value) : `${number(Math.round(value))} ${unit}`);

// A bar where the end is known; a job that is done may have found less than it expected, or more.
function done(job) {
  if (!job.total) return amount(job.done, job.unit);
  const bar = document.createElement("progress");
  bar.max = job.total;
  bar.value = Math.min(job.done, job.total);
  const reached = job.unit === "bytes" ? size(job.done) : number(Math.round(job.done));
  const element = tagged("state", bar);
  element.append(` ${Math.floor(100 * Math.min(1, job.done / job.total))} % · ${reached} of ${amount(job.total, job.unit)}`);
  return element;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// "+" says that there is more: the ends of some partitions are not known.
function lag(group) {
  return group.lag === null ? known(null) : number(group.lag) + (group.unknown_lags ? "+" : "");
}

// 0, 1, 2, 3, 7 as "0–3, 7"
function ranges(numbers) {
  const parts = [];
  for (const one of numbers) {
    const last = parts[parts.length - 1];
    if (last && one === last[1] + 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

function users(topic, way) {
  return Object.entries(topic.traffic).filter(([, seen]) => seen["bytes_" + way] > 0)
    .map(([front, seen]) => `${front} ${flow(`${topic.name}/${front}/${way}`, seen, way)}`.trim()).join(", ");
}

async function refresh() {
  const [status, topics, groups, jobs, { transactions }] = await Promise.all(
    ["/api/status", "/api/topics", "/api/groups", "/api/jobs", "/api/transactions?open=true"].map(get));
  const since = Math.round(status.uptime_ms / 1000);
  $("status").className = status.failure ? "bad" : "";
  $("status").textContent = status.failure ||
    `node ${status.node_id} of ${status.cluster_id}, ${status.phase} for ${since} s, version ${status.version}, durability ${status.durability}`;
  draw("fronts", [
    ["Protocol", (front) => front.name],
    ["Address", (front) => addresses(front.name, status.listeners)],
    ["Connections", (front) => number(front.connections), true],
    ["Requests", (front) => rate(`${front.name}/requests`, front.requests), true],
    ["Records in", (front) => rate(`${front.name}/in`, front.records_in), true],
    ["Records out", (front) => rate(`${front.name}/out`, front.records_out), true],
    ["Errors", (front) => number(front.errors), true],
  ], status.fronts);
  draw("topics", [
    ["Topic", (topic) => link(topic.name)],
    ["Partitions", (topic) => number(topic.partitions), true],
    ["Records", (topic) => number(topic.records), true],
    ["Size", (topic) => size(topic.bytes), true],
    ["Written through", (topic) => users(topic, "in")],
    ["Read through", (topic) => users(topic, "out")],
  ], topics.topics);
  $("no-topics").hidden = topics.topics.length > 0;
  $("jobs-section").hidden = jobs.jobs.length === 0;
  draw("jobs", [
    ["Job", (job) => job.name],
    ["Kind", (job) => job.kind],
    ["State", (job) => jobState(job)],
    ["Done", (job) => done(job)],
    ["Rate", (job) => (job.rate === null || job.state !== "running" ? known(null) : amount(job.rate, job.unit) + "/s"), true],
    ["Time left", (job) => (job.seconds_left === null || job.state !== "running" ? known(null) : duration(job.seconds_left)), true],
    ["Heard of", (job) => duration(Math.max(0, Date.now() - job.heard_ms) / 1000) + " ago", true],
    ["Says", (job) => Object.entries(job.details).map(([name, text]) => `${name}: ${text}`).join(" · ")],
  ], jobs.jobs);
  $("transactions-section").hidden = transactions.length === 0;
  draw("transactions", [
    ["Transactional id", (one) => one.transactional_id],
    ["Protocol", (one) => one.front],
    ["State", (one) => state(one.state)],
    ["Producer", (one) => `${one.producer_id}, epoch ${one.epoch}`],
    ["Open for", (one) => duration(one.open_ms / 1000), true],
    ["Timeout", (one) => duration(one.timeout_ms / 1000), true],
    ["Topics", (one) => number(one.topics), true],
  ], transactions);
  draw("groups", [
    ["Group", (group) => link(group.group, GROUP + inSpace(group) + "/")],
    ["State", (group) => state(group.state)],
    ["Members", (group) => number(group.members), true],
    ["Lag", (group) => lag(group), true],
    ["Partitions", (group) => number(group.partitions), true],
    ["Topics", (group) => group.topics.join(", ") || known(null)],
    ["Protocol", (group) => group.fronts.join(", ") || known(null)],
  ], groups.groups);
  $("no-groups").hidden = groups.groups.length > 0;
  await groupDetail(groups.groups.find((one) => decodeURIComponent(address(one)) === chosen) || null);
  await detail(topics.topics.some((topic) => topic.name === chosen) ? chosen : "");
}

async function groupDetail(one) {
  if (one === null) {
    $("group").hidden = true;
    return;
  }
  const group = await get(`/api/groups/${encodeURIComponent(one.group)}?space=${encodeURIComponent(one.space)}`);
  const clients = new Map(group.members.map((member) => [member.member_id, member]));
  $("group-name").textContent = group.group;
  $("group-facts").replaceChildren(state(group.state), ...[
    ...group.fronts,
    group.kind && `kind ${group.kind}`,
    group.protocol_type && `type ${group.protocol_type}`,
    group.protocol && `strategy ${group.protocol}`,
    group.generation !== null && `generation ${number(group.generation)}`,
    plural(group.members.length, "member"),
  ].filter(Boolean).map((fact) => ` · ${fact}`), " · lag ", lag(group));
  draw("members", [
    ["Member", (member) => tagged("id", member.member_id)],
    ...(group.members.some((member) => member.instance_id !== null)
      ? [["Instance", (member) => member.instance_id ?? known(null)]] : []),
    ["Client", (member) => member.client_id || known(null)],
    ...(group.members.some((member) => member.software)
      ? [["Software", (member) => member.software || known(null)]] : []),
    ...(group.members.some((member) => member.user)
      ? [["User", (member) => member.user || known(null)]] : []),
    ["Host", (member) => member.host],
    ["Reads", (member) => assigned(member.partitions)],
  ], group.members);
  draw("positions", [
    ["Topic", (one) => (one.exists ? link(one.topic) : `${one.topic} (deleted)`)],
    ["Partition", (one) => number(one.partition), true],
    ["Committed", (one) => known(one.offset), true],
    ["Log end", (one) => known(one.end_offset), true],
    ["Lag", (one) => known(one.lag), true],
    ["Reader", (one) => reader(one.member_id, clients)],
  ], group.positions);
  $("members-title").hidden = !group.members.length;
  $("positions-title").hidden = !group.positions.length;
  $("group").hidden = false;
}

function assigned(partitions) {
  if (partitions === null) return tagged("faint", "not told");
  const topics = Object.entries(partitions).map(([topic, indexes]) => `${topic}: ${ranges(indexes)}`);
  return topics.join("; ") || known(null);
}

// Ids are long, and clients of one program often have the same name: its name and the end of its id tell them apart.
function reader(id, clients) {
  if (id === null) return known(null);
  const element = tagged("id", `${clients.get(id)?.client_id ?? ""} …${id.slice(-6)}`.trim());
  element.title = id;
  return element;
}

async function detail(name) {
  $("detail").hidden = !name;
  if (!name) return;
  const path = "/api/topics/" + encodeURIComponent(name);
  const topic = await get(path);
  $("detail-name").textContent = topic.name;
  $("detail-names").textContent = Object.entries(topic.names).map(([protocol, other]) => `${protocol}: ${other}`).join(" · ");
  draw("partitions", [
    ["Partition", (one) => number(one.partition), true],
    ["First offset", (one) => number(one.start_offset), true],
    ["Next offset", (one) => number(one.end_offset), true],
    ["Records", (one) => rate(`${name}/${one.partition}`, one.end_offset), true],
    ["Size", (one) => size(one.bytes), true],
    ["Epoch", (one) => number(one.epoch), true],
  ], topic.partitions);
  draw("config", [["Key", ([key]) => key], ["Value", ([, value]) => value]], Object.entries(topic.config));
  $("config-title").hidden = !Object.keys(topic.config).length;
  const busiest = topic.partitions.reduce((a, b) => (b.end_offset > a.end_offset ? b : a));
  const from = Math.max(busiest.start_offset, busiest.end_offset - NEWEST);
  const response = await fetch(`${path}/records?partition=${busiest.partition}&offset=${from}&limit=${NEWEST}`);
  const lines = (await response.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line)).reverse();
  draw("records", [
    ["Offset", (record) => `${record.partition}:${record.offset}`],
    ["Time", (record) => (record.timestamp ? new Date(record.timestamp).toISOString() : "")],
    ["Key", (record) => short(record.key ?? record.key_base64)],
    ["Value", (record) => short(record.error ?? record.value ?? record.value_base64)],
  ], lines.filter((record) => "offset" in record));
}

function short(text) {
  if (text === null || text === undefined) return "∅";
  return text.length > 200 ? text.slice(0, 200) + "…" : text;
}

async function attempt() {
  try {
    await refresh();
  } catch (error) {
    $("status").className = "bad";
    $("status").textContent = `the node does not answer: ${error.message}`;
  }
}

async function loop() {
  await attempt();
  setTimeout(loop, PERIOD_MS);
}

addEventListener("hashchange", async () => {
  chosen = fromAddress();
  await attempt();
  (/^group(@[^/]*)?\//.test(chosen) ? $("group") : $("detail")).scrollIntoView({ block: "nearest" });
});
loop();
