"use strict";
// Polls the JSON interface and redraws. Everything from the node is put in as text, never as markup.

const PERIOD_MS = 2000;
const NEWEST = 20;
const before = new Map(); // last counters by name, for rates
let chosen = decodeURIComponent(location.hash.slice(1));

const $ = (id) => document.getElementById(id);
const number = (value) => Number(value).toLocaleString("en-GB");

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function rate(name, value) {
  const now = performance.now();
  const last = before.get(name);
  before.set(name, { value, now });
  if (!last || now <= last.now) return "";
  return number(Math.max(0, Math.round((value - last.value) * 1000 / (now - last.now)))) + "/s";
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

function link(name) {
  const anchor = document.createElement("a");
  anchor.href = "#" + encodeURIComponent(name);
  anchor.append(name);
  return anchor;
}

function users(topic, way) {
  return Object.entries(topic.traffic).filter(([, seen]) => seen["records_" + way] > 0)
    .map(([front, seen]) => `${front} ${rate(`${topic.name}/${front}/${way}`, seen["records_" + way])}`.trim()).join(", ");
}

async function refresh() {
  const [status, topics, groups] = await Promise.all([get("/api/status"), get("/api/topics"), get("/api/groups")]);
  const since = Math.round(status.uptime_ms / 1000);
  $("status").className = status.failure ? "bad" : "";
  $("status").textContent = status.failure ||
    `node ${status.node_id} of ${status.cluster_id}, ${status.phase} for ${since} s, version ${status.version}, durability ${status.durability}`;
  draw("fronts", [
    ["Protocol", (front) => front.name],
    ["Address", (front) => status.listeners[front.name] || status.listeners.console],
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
  draw("groups", [
    ["Group", (group) => group.group],
    ["Topics", (group) => [...new Set(group.positions.map((position) => position.topic))].join(", ")],
    ["Partitions", (group) => number(group.positions.length), true],
    ["Lag", (group) => number(group.lag), true],
  ], groups.groups);
  await detail(topics.topics.some((topic) => topic.name === chosen) ? chosen : "");
}

async function detail(name) {
  $("detail").hidden = !name;
  if (!name) return;
  const path = "/api/topics/" + encodeURIComponent(name);
  const topic = await get(path);
  $("detail-name").textContent = topic.name;
  $("detail-names").textContent = Object.entries(topic.names).map(([protocol, other]) => `${protocol}: ${other}`).join("   ");
  draw("partitions", [
    ["Partition", (one) => number(one.partition), true],
    ["First offset", (one) => number(one.start_offset), true],
    ["Next offset", (one) => number(one.end_offset), true],
    ["Records", (one) => rate(`${name}/${one.partition}`, one.end_offset), true],
    ["Size", (one) => size(one.bytes), true],
    ["Epoch", (one) => number(one.epoch), true],
  ], topic.partitions);
  draw("config", [["Key", ([key]) => key], ["Value", ([, value]) => value]], Object.entries(topic.config));
  const busiest = topic.partitions.reduce((a, b) => (b.end_offset > a.end_offset ? b : a));
  const from = Math.max(busiest.start_offset, busiest.end_offset - NEWEST);
  const response = await fetch(`${path}/records?partition=${busiest.partition}&offset=${from}&limit=${NEWEST}`);
  const lines = (await response.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line)).reverse();
  draw("records", [
    ["Offset", (record) => `${record.partition}:${record.offset}`],
    ["Time", (record) => (record.timestamp ? new Date(record.timestamp).toISOString() : "")],
    ["Key", (record) => short(record.key ?? record.key_base64)],
    ["Value", (record) => short(record.value ?? record.value_base64)],
  ], lines.filter((record) => "offset" in record));
}

function short(text) {
  if (text === null || text === undefined) return "∅";
  return text.length > 200 ? text.slice(0, 200) + "…" : text;
}

async function loop() {
  try {
    await refresh();
  } catch (error) {
    $("status").className = "bad";
    $("status").textContent = `the node does not answer: ${error.message}`;
  }
  setTimeout(loop, PERIOD_MS);
}

addEventListener("hashchange", () => { chosen = decodeURIComponent(location.hash.slice(1)); refresh(); });
loop();
