// Topics made, cloned, configured and emptied: each option that matters is a field, which says what it means here.

import { get, part, send } from "./api.js";
import { bytes, card, choice, confirmed, dialog, failed, faint, field, fill, h, nothing, note, table, tag, when, whole, zoneName } from "./dom.js";

const UNITS = { ms: 1, s: 1000, min: 60000, h: 3600000, d: 86400000, w: 604800000 };
const SIZES = { B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, TiB: 1099511627776 };
const NEVER = "no limit";

// "7 d" of 604800000, and the other way; -1 is no limit. A plain number is one of the smallest unit.
const amount = (units) => ({
  show: (value) => {
    if (Number(value) < 0) return NEVER;
    const [name, size] = Object.entries(units).filter(([one, each]) => one !== "w" && Number(value) % each === 0).pop();
    return Number(value) ? `${Number(value) / size} ${name}` : "0";
  },
  read: (text) => {
    if (text === NEVER) return "-1";
    const [, number, unit] = /^(-?[\d.]+)\s*([a-zA-Z]*)$/.exec(text) || [];
    const found = Object.entries(units).find(([name]) => name.toLowerCase() === (unit || "").toLowerCase());
    if (number === undefined || Number.isNaN(Number(number)) || (unit && !found)) throw new Error(`“${text}” is none: a number with ${Object.keys(units).join(", ")}, or “${NEVER}”`);
    return String(Math.round(Number(number) * (found ? found[1] : 1)));
  },
});
const DURATION = amount(UNITS), SIZE = amount(SIZES);
const FIELDS = [
  ["cleanup.policy", "Old records", [["delete", "are deleted"], ["compact", "are compacted: the last of each key stays"], ["compact,delete", "are compacted, and deleted"]]],
  ["retention.ms", "Kept for", DURATION], ["retention.bytes", "Kept bytes, of a partition", SIZE], ["max.message.bytes", "Largest batch", SIZE],
  ["message.timestamp.type", "Time of a record", [["CreateTime", "as its producer says"], ["LogAppendTime", "when it is appended"]]],
  ["anabranch.partitions.split", "Split and merge partitions", [["false", "never"], ["true", "as clients ask"]]],
];

let known = null; // what each key means is the same as long as the node runs
const meanings = async () => { known ??= new Map((await get("/api/topic-configs")).configs.map((one) => [one.key, one])); return known; };

// "name=value" lines
export function pairs(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    found[(at < 0 ? line : line.slice(0, at)).trim()] = at < 0 ? "" : line.slice(at + 1).trim();
  }
  return found;
}
const lines = (config) => Object.entries(config).map(([key, value]) => `${key}=${value}`).join("\n");

// The fields of a configuration, and the one for everything else. `read` gives what was said, without defaults.
function fields(meaning, config) {
  const inputs = FIELDS.filter(([key]) => meaning.has(key)).map(([key, title, kind]) => {
    const one = meaning.get(key), isChoice = Array.isArray(kind);
    const usual = isChoice ? kind.find(([value]) => value === one.default)?.[1] ?? one.default : kind.show(one.default);
    const id = "means-" + key;
    const input = isChoice ? choice([["", `${usual} (default)`], ...kind], config[key] ?? "", { "aria-describedby": id })
      : h("input", { value: config[key] === undefined ? "" : kind.show(config[key]), placeholder: `${usual} (default)`, autocomplete: "off", "aria-describedby": id });
    return { key, element: h("div", { title: one.meaning }, field(title, input), h("p", { class: "faint", id }, key)), read: () => (input.value.trim() === "" ? null : isChoice ? input.value : kind.read(input.value.trim())) };
  });
  const own = new Set(inputs.map((one) => one.key));
  const more = h("textarea", { rows: 3, placeholder: "min.compaction.lag.ms=60000", value: lines(Object.fromEntries(Object.entries(config).filter(([key]) => !own.has(key)))) });
  return {
    element: [h("div", { class: "bar" }, inputs.map((one) => one.element)), field("Other configuration, a line each; what is left out is the default", more)],
    read: () => ({ ...pairs(more.value), ...Object.fromEntries(inputs.map((one) => [one.key, one.read()]).filter(([, value]) => value !== null)) }),
  };
}

function form(title, word, parts, act) {
  const problem = h("div", { role: "alert" });
  const close = dialog(title, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await act(); close(); } catch (error) { fill(problem, failed(error)); }
  } }, parts, problem, h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), h("button", { class: "main" }, word))));
}

const opened = (form) => form().catch((error) => note(error.message, true));

// `like` is the topic that a clone has partitions and configuration of.
export const newTopic = (done, like = null) => opened(async () => {
  const config = fields(await meanings(), like ? like.config : {});
  const name = h("input", { required: true, maxLength: 249, autocomplete: "off", value: like ? like.name + "-copy" : "" });
  const partitions = h("input", { type: "number", min: 1, value: like ? like.partition_count : 1 });
  form(like ? `Clone ${like.name}` : "New topic", "Create", [
    like ? h("p", {}, "The new topic has its partitions and configuration, and no records: Records has a replay into another topic.") : null,
    h("div", { class: "bar" }, field("Name", name), field("Partitions", partitions)), ...config.element,
  ], async () => {
    await send("POST", "/api/topics", { name: name.value, partitions: Number(partitions.value), config: config.read() });
    note(`made ${name.value}`); done(name.value);
  });
});

export function config({ element, path, name, refresh }) {
  const list = h("div", {}), button = (word, act, kind = "plain") => h("button", { type: "button", class: kind, onclick: act }, word);
  element.append(card("Configuration", h("div", { class: "bar" }, button("Change…", () => last && opened(change), "main"), button("Clone…", () => last && newTopic((made) => { location.hash = "#/topic/" + part(made); }, last)), button("Empty…", empty, "danger"), button("Delete the topic…", remove, "danger")), list));
  let last = null;
  async function look() {
    last = await get(path + "?limit=1");
    const meaning = await meanings();
    const rows = Object.entries(last.effective_config).map(([key, value]) => ({ key, value: String(value), own: key in last.config, idle: last.without_effect.includes(key) }));
    fill(list, h("p", { class: "faint" }, "made ", when(last.created_ms), ` ${zoneName()} · id `, last.id), table([
      { title: "Key", kind: "mono", cell: (one) => (one.idle ? faint(one.key) : one.key) }, { title: "Value", kind: "mono", keep: true, cell: (one) => h("span", { class: one.idle ? "faint" : null }, one.value, " ", faint(words(one.key, one.value))) },
      { title: "From", cell: (one) => (one.own || one.idle ? h("span", {}, one.own ? tag("busy", "of this topic") : "", " ", one.idle ? tag("faint", "kept, without effect here") : "") : nothing()) },
      { title: "Means here", cell: (one) => faint(meaning.get(one.key)?.meaning ?? "") },
    ], rows, { caption: "Configuration" }));
  }
  async function change() {
    const before = last.config, fieldsOf = fields(await meanings(), before);
    const number = h("input", { type: "number", min: last.partition_count, value: last.partition_count });
    form(`Change ${name}`, "Change", [field("Partitions", number), ...fieldsOf.element], async () => {
      const now = fieldsOf.read(), changes = {};
      for (const key of Object.keys(before)) if (!(key in now)) changes[key] = null;
      for (const [key, value] of Object.entries(now)) if (before[key] !== value) changes[key] = value;
      await send("PATCH", path, { config: changes, ...(Number(number.value) > last.partition_count ? { partitions: Number(number.value) } : {}) });
      note(`changed ${name}`); refresh();
    });
  }
  function empty() {
    confirmed(`Empty ${name}?`, "All records that it has now are gone for the readers of every protocol. The topic stays, and goes on at its offsets.", "Empty it", async () => {
      const done = await send("DELETE", path + "/records"); note(`emptied ${name} of ${whole(done.deleted)} offsets`); refresh();
    }, name);
  }
  function remove() {
    confirmed(`Delete ${name}?`, "Its records are gone for the readers of every protocol, and so are the positions of its groups.", "Delete it", async () => {
      await send("DELETE", path); note(`deleted ${name}`); location.hash = "#/topics";
    }, name);
  }
  return { element, refresh: look };
}

function words(key, value) {
  if (!/^-?\d+$/.test(value) || Math.abs(Number(value)) > 1e17) return "";
  const said = /\.ms$/.test(key) ? DURATION.show(value) : !/bytes$/.test(key) ? "" : Number(value) < 0 ? NEVER : bytes(Number(value));
  return said && `(${said})`;
}
