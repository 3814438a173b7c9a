// Records: browse, search within a bound, follow live, download; one from every protocol's side; produce, and replay into another topic.

import { check, get, lines, part, query as asked, send } from "./api.js";
import { bytes, card, choice, closing, data, dialog, failed, field, fieldTime, fill, h, hex, moment, note, nothing, plural, table, tag, when, whole, zoneName } from "./dom.js";

const SHOWN = 500; // rows that are kept while a topic is followed
const BATCH = 50;
const LOOK = 100000, LOOK_MOST = 10000000; // records that a search looks at
const MOST_PLACES = 300; // partitions whose places fit into an address

// The fields are in the address as well, so that a search can be sent to somebody: times in milliseconds, whatever the zone.
export function records({ element, path, name, query, settle }) {
  const partition = h("input", { type: "number", min: 0, value: query.partition ?? "", placeholder: "all" });
  const from = choice([["newest", "the newest"], ["before", "before a time"], ["time", "a time"], ["earliest", "the beginning"], ["offset", "an offset"]], query.from ?? (query.offset ? "offset" : "newest"), { onchange: () => extra() });
  const offset = h("input", { type: "number", min: 0, value: query.offset ?? 0 });
  const at = (ms) => h("input", { type: "datetime-local", step: 1, value: ms > 0 ? fieldTime(Number(ms)) : "" });
  const time = at(query.since), until = at(query.until);
  const limit = h("input", { type: "number", min: 1, max: 500, value: query.limit ?? BATCH });
  const text = h("input", { type: "search", placeholder: "anywhere (/)", autocomplete: "off", value: query.text ?? "" });
  const key = h("input", { placeholder: "exactly", autocomplete: "off", value: query.key ?? "" });
  const header = h("input", { placeholder: "name=text", autocomplete: "off", value: query.header ?? "" });
  const json = h("input", { placeholder: "customer.country = DE and items[*].qty >= 2", autocomplete: "off", spellcheck: false, value: query.json ?? "" });
  const look = h("input", { type: "number", min: 1, value: query.look ?? LOOK });
  const more = h("div", { class: "bar" }), told = h("p", { class: "faint", role: "status" }), list = h("div", {}), files = h("span", { class: "bar" });
  const hasTimes = () => ["time", "before"].includes(from.value);
  const extra = () => fill(more, from.value === "offset" ? field("Offset", offset) : from.value === "time" ? [field(`Time (${zoneName()})`, time), field(`Until (${zoneName()})`, until)]
    : from.value === "before" ? [field(`Before (${zoneName()})`, until), field(`Since (${zoneName()})`, time)] : null);
  extra();
  let rows = [], under = null, going = null, chosen = new Set();
  const tail = h("button", { type: "button", class: "plain", "aria-pressed": "false", onclick: () => { if (under) { stop(); remember(false); } else follow(); } }, "Follow live");
  const next = h("button", { type: "button", class: "plain", disabled: true, onclick: () => show(going) }, "Continue");
  const ms = (input) => (hasTimes() && input.value ? moment(input.value) : "");
  const searched = () => ({ text: text.value, key: key.value, header: header.value, json: json.value.trim(), until_ms: ms(until) });
  const isSearch = () => Object.values(searched()).some((one) => one !== "");
  function remember(follows) {
    settle({ partition: partition.value, from: from.value === "newest" ? "" : from.value, offset: from.value === "offset" ? offset.value : "", since: ms(time), until: ms(until),
      limit: Number(limit.value) === BATCH ? "" : limit.value, text: text.value, key: key.value, header: header.value, json: json.value, look: Number(look.value) === LOOK ? "" : look.value, follow: follows });
    const all = { decode: true, partition: partition.value, since_ms: ms(time), ...(from.value === "offset" ? { offset: offset.value } : {}), ...(isSearch() ? { ...searched(), look: LOOK_MOST } : {}) };
    fill(files, h("a", { href: `${path}/records` + asked(all), download: `${name}.ndjson` }, isSearch() ? "Download all that matches" : "Download all"),
      h("button", { type: "button", class: "link", onclick: () => parquet(all) }, "as Parquet"));
  }
  element.append(card(null, h("form", { onsubmit: (event) => { event.preventDefault(); show(null); } },
    h("div", { class: "bar" }, field("Partition", partition), field("From", from), more, field("Records", limit), field("Text", text), field("Key", key), field("Header", header), h("label", { class: "long" }, "JSON of the value", json), field("Look at most at", look),
      h("button", { class: "main" }, "Show"), next, tail)),
  h("div", { class: "bar" }, h("button", { type: "button", class: "plain", onclick: () => download() }, "Download what is shown"), files,
    h("button", { type: "button", class: "plain", onclick: () => produce(path, name) }, "Produce…"), h("button", { type: "button", class: "plain", onclick: () => replay() }, "Replay into another topic…")), told, list));

  function draw() {
    fill(list, table([
      { title: "", cell: (one) => h("input", { type: "checkbox", "data-key": "c" + id(one), "aria-label": `choose ${id(one)}`, checked: chosen.has(id(one)), onchange: (event) => { if (event.target.checked) chosen.add(id(one)); else chosen.delete(id(one)); } }) },
      { title: "Place", keep: true, cell: (one) => (one.error ? id(one) : h("button", { type: "button", class: "link", "data-key": id(one), onclick: () => sides(path, name, one) }, id(one))) },
      { title: `Time (${zoneName()})`, kind: "line", cell: (one) => when(one.timestamp ?? -1) },
      { title: "Key", kind: "mono key", keep: true, cell: (one) => asRead(one, "key", 80) },
      { title: "Value", kind: "mono long", keep: true, cell: (one) => (one.error ? h("span", { class: "bad" }, one.error) : asRead(one, "value", 240)) },
      { title: "Headers", kind: "mono long", cell: (one) => (one.headers ? h("span", {}, one.headers.flatMap(([head, value], place) => [`${place ? ", " : ""}${head}: `, data(value?.base64 ? null : value, value?.base64, 60)])) : nothing()) },
    ], rows, { empty: "No records here.", caption: "Records" }));
  }

  // Newest first, whatever partition a record lies in; a search goes back from the end. The node sends windows of
  // partitions: what is too much is left out here, and is where "Continue" begins.
  async function show(goOn) {
    stop();
    remember(false);
    const mine = under = new AbortController();
    const wasNext = document.activeElement === next;
    const most = Math.min(500, Number(limit.value) || BATCH), newest = ["newest", "before"].includes(from.value);
    const found = [];
    let last = { looked: 0, next: {} };
    const take = (line) => {
      if (!("looked" in line)) { found.push(line); return; }
      last = line;
      if (!line.next) fill(told, `${whole(line.looked)} looked at, ${whole(found.length)} found so far…`);
    };
    rows = []; chosen = new Set(); going = null; next.disabled = true;
    fill(told, "reading…");
    try {
      const begin = goOn ? { at: Object.entries(goOn).map((one) => one.join(":")).join(",") } : from.value === "offset" ? { offset: offset.value } : from.value === "time" ? { since_ms: ms(time) || 0 } : {};
      if (from.value === "before") begin.since_ms = ms(time);
      await lines(`${path}/records` + asked({ decode: true, partition: goOn ? "" : partition.value, order: newest ? "newest" : "oldest", limit: most, ...begin, ...(isSearch() ? { ...searched(), look: look.value } : {}) }), take, mine.signal);
      const problem = found.find((one) => one.error && !("offset" in one));
      rows = found.filter((one) => "offset" in one).sort(latest);
      const left = newest ? rows.splice(most) : rows.splice(0, Math.max(0, rows.length - most));
      going = last.next || {};
      for (const one of left) going[one.partition] = newest ? Math.max(going[one.partition] ?? 0, one.offset + 1) : Math.min(going[one.partition] ?? Infinity, one.offset);
      const places = Object.keys(going).length, many = places > MOST_PLACES;
      next.disabled = !places || many;
      if (wasNext && document.activeElement === document.body) next.focus();
      fill(told, problem ? h("span", { class: "bad" }, problem.error) : isSearch() ? `${whole(rows.length)} found, ${whole(last.looked)} looked at${places ? ": there is more to look at." : "."}${last.too_long ? ` ${whole(last.too_long)} above 128 KiB were not parsed.` : ""}` : `${plural(rows.length, "record")}, the newest first.`, many ? ` Of ${whole(places)} partitions: name one to go on.` : "");
      draw();
    } catch (error) { if (error.name !== "AbortError") { fill(told); fill(list, failed(error)); } }
    if (under === mine) under = null;
  }

  async function follow() {
    stop();
    remember(true);
    const mine = under = new AbortController();
    tail.setAttribute("aria-pressed", "true"); tail.className = "main"; tail.textContent = "Stop";
    rows = []; chosen = new Set();
    fill(told, "following; what is new comes first"); draw();
    let waiting = 0;
    try {
      await lines(`${path}/records` + asked({ decode: true, partition: partition.value, offset: "latest", follow: true, ...(isSearch() ? { ...searched(), look: 10000000 } : {}) }), (one) => {
        if (!("offset" in one)) return;
        rows.unshift(one);
        if (rows.length > SHOWN) rows.length = SHOWN;
        if (!waiting) waiting = setTimeout(() => { waiting = 0; if (under === mine) { fill(told, rows.length === 1 ? "following; the last record" : `following; the last ${whole(rows.length)} records`); draw(); } }, 250);
      }, mine.signal);
    } catch (error) { if (error.name !== "AbortError") fill(told, h("span", { class: "bad" }, error.message)); }
    clearTimeout(waiting);
    if (under === mine) stop();
  }

  function stop() {
    if (under) under.abort();
    under = null;
    tail.setAttribute("aria-pressed", "false"); tail.className = "plain"; tail.textContent = "Follow live";
  }

  function download() {
    const body = rows.map((one) => JSON.stringify(one) + "\n").join("");
    const where = URL.createObjectURL(new Blob([body], { type: "application/x-ndjson" }));
    h("a", { href: where, download: `${name}-selection.ndjson` }).click();
    setTimeout(() => URL.revokeObjectURL(where), 1000);
  }

  // Asked for nothing first: whether the node can make such a file.
  async function parquet(all) {
    try {
      await check(`${path}/records` + asked({ limit: 0, format: "parquet" }));
      h("a", { href: `${path}/records` + asked({ ...all, format: "parquet" }), download: `${name}.parquet` }).click();
    } catch (error) { note(error.message, true); }
  }

  function replay() {
    const some = rows.filter((one) => !one.error && (!chosen.size || chosen.has(id(one)))).reverse();
    const target = h("input", { required: true, autocomplete: "off" }), problem = h("div", { role: "alert" });
    const times = h("input", { type: "checkbox" });
    const close = dialog("Replay into another topic", h("form", { onsubmit: async (event) => {
      event.preventDefault();
      try {
        const body = some.map((one) => { const { partition: _, ...rest } = one; if (!times.checked) delete rest.timestamp; return JSON.stringify(rest) + "\n"; }).join("");
        const stored = await send("POST", `/api/topics/${part(target.value)}/records`, body);
        close(); note(`${plural(stored.records, "record")} stored in ${target.value}`);
      } catch (error) { fill(problem, failed(error)); }
    } }, h("p", {}, `${plural(some.length, "record")}, ${chosen.size ? "as chosen" : "as shown"}, in order, each to the partition of its key.`), field("Topic", target), h("label", { class: "line" }, times, "with the times they have"), problem,
    h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), h("button", { class: "main", disabled: !some.length }, "Replay"))));
  }

  let begun = false;
  return { element, refresh: async () => { if (!begun) { begun = true; if (query.follow) follow(); else await show(null); } }, close: stop };
}

const id = (one) => `${one.partition}:${one.offset}`;

// A key or value as its schema says, if it names one that the node's registry has; otherwise its bytes, and why.
const asRead = (one, name, most) => {
  const { schema, type, text, error } = one[`${name}_decoded`] ?? {};
  if (text) return h("span", { title: `${type}, schema ${schema}` }, tag("good", type), " ", data(text, undefined, most));
  return error ? h("span", {}, data(one[name], one[`${name}_base64`], most), h("span", { class: "faint" }, ` not decoded: ${error}`)) : data(one[name], one[`${name}_base64`], most);
};

const latest = (a, b) => (b.timestamp ?? 0) - (a.timestamp ?? 0) || b.offset - a.offset;

// One record as it is stored, and as the readers of each protocol get it.
async function sides(path, name, one) {
  const box = h("div", {}, "asking…");
  const close = dialog(`${name}, partition ${one.partition}, offset ${one.offset}`, box, closing(() => close()));
  document.getElementById("dialog").style.maxWidth = "min(76rem, 96vw)";
  document.getElementById("dialog").addEventListener("close", () => { document.getElementById("dialog").style.maxWidth = ""; }, { once: true });
  try {
    const seen = await get(`${path}/partitions/${one.partition}/records/${one.offset}`);
    const content = (value) => {
      if (value === null) return h("span", { class: "faint" }, "null");
      const size = value.size > 4096 ? h("p", { class: "faint" }, `the beginning of ${bytes(value.size)}`) : null;
      return h("div", {}, tag(...("text" in value ? ["faint", "text"] : ["busy", "bytes"])), h("pre", {}, "text" in value ? pretty(value) : `hex ${hex(value.base64)}\n\nbase64 ${value.base64}`), size);
    };
    const row = (title, value) => [h("dt", {}, title), h("dd", {}, value)];
    const items = (all) => (all.length ? h("dl", {}, all.flatMap(([title, value]) => row(title, content(value)))) : nothing());
    const side = (kind, title, ...rest) => h("section", { class: "side " + kind }, h("h3", {}, title, seen.stored.format === kind ? h("span", { class: "good" }, " · as written") : h("span", { class: "faint" }, " · translated")), h("dl", {}, rest.flat()));
    const { kafka, pravega, ydb, stored, decoded = {} } = seen;
    const decodings = Object.entries(decoded).map(([what, { schema, type, text, error }]) => row(`${what}, ${type ?? ""} schema ${schema}`, text ? h("pre", {}, pretty({ text, size: 0 })) : h("span", { class: "bad" }, `not decoded: ${error}`)));
    fill(box, h("p", { class: "faint" }, `Stored as ${stored.format}, in a batch of ${bytes(stored.bytes)} with the offsets ${stored.base_offset} to ${stored.end_offset - 1}; appended `, when(stored.appended_ms), ` ${zoneName()}`), decodings.length ? h("dl", {}, decodings.flat()) : null, h("div", { class: "sides" },
      side("kafka", "Kafka", row("offset", whole(kafka.offset)), row("timestamp", when(kafka.timestamp)), row("key", content(kafka.key)), row("value", content(kafka.value)), row("headers", items(kafka.headers)), row("producer", kafka.producer_id ?? nothing())),
      side("pravega", "Pravega", row("event", content(pravega.event)), row("in the segment", bytes(pravega.event_bytes)), row("no place for", pravega.has_no_place_for.join(", ") || nothing())),
      side("ydb", "YDB", row("offset", whole(ydb.offset)), row("seq_no", whole(ydb.seq_no)), row("created_at", when(ydb.created_at)), row("producer", ydb.producer_id || nothing()), row("data", content(ydb.data)), row("metadata", items(ydb.metadata_items)))));
  } catch (error) { fill(box, failed(error)); }
}

function pretty(value) {
  if (value.size <= 4096 && /^\s*[[{]/.test(value.text)) try { return indented(value.text); } catch { /* no JSON after all */ }
  return value.text;
}

// JSON with its own words: numbers that JavaScript cannot keep, and names that come twice, stay as they were written.
function indented(text) {
  JSON.parse(text);
  let made = "", depth = 0, before = "";
  const line = () => "\n" + "  ".repeat(depth);
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const opened = before === "{" || before === "[";
    if (token === "}" || token === "]") { depth -= 1; made += (opened ? "" : line()) + token; }
    else {
      made += (opened || before === "," ? line() : "") + token + (token === ":" ? " " : "");
      if (token === "{" || token === "[") depth += 1;
    }
    before = token;
  }
  return made;
}

function produce(path, name) {
  const key = h("input", { autocomplete: "off" }), value = h("textarea", { rows: 6 }), headers = h("textarea", { rows: 2, placeholder: "name=value" });
  const schemas = ["key", "value"].map((what) => h("input", { autocomplete: "off", placeholder: `none, or ${name}-${what}` }));
  const partition = h("input", { type: "number", min: 0, placeholder: "by key" }), none = h("input", { type: "checkbox" }), problem = h("div", { role: "alert" });
  const close = dialog(`Produce to ${name}`, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const heads = headers.value.split("\n").filter((one) => one.trim()).map((one) => { const at = one.indexOf("="); return at < 0 ? [one, null] : [one.slice(0, at), one.slice(at + 1)]; });
    const record = { key: key.value === "" ? null : key.value, value: none.checked ? null : value.value, headers: heads, ...(partition.value === "" ? {} : { partition: Number(partition.value) }) };
    try {
      const stored = await send("POST", `${path}/records` + asked({ key_schema: schemas[0].value.trim(), value_schema: schemas[1].value.trim() }), JSON.stringify(record) + "\n");
      const [[number, at]] = Object.entries(stored.partitions);
      close(); note(`stored in partition ${number} at offset ${at.first}`);
    } catch (error) { fill(problem, failed(error)); }
  } }, field("Key (none if empty)", key), field("Value", value), h("label", { class: "line" }, none, "no value (a tombstone)"), field("Headers, a line each", headers), field("Partition", partition), h("div", { class: "bar" }, field("Schema of the key (subject or id)", schemas[0]), field("Schema of the value", schemas[1])), problem,
  h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), h("button", { class: "main" }, "Produce"))));
}
