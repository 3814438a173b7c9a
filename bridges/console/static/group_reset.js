// Positions of a group set anew, in one topic or in all, after a look at what that would do.

import { part, send } from "./api.js";
import { choice, count, dialog, failed, field, fill, h, moment, note, nothing, plural, table, whole, zoneName } from "./dom.js";

const SHOWN = 200;

export function reset(name, space, group, refresh) {
  const topics = [...new Set(group.positions.map((row) => row.topic))];
  const topic = h("input", { value: topics.length === 1 ? topics[0] : "", placeholder: "all", list: "reset-topics", autocomplete: "off" });
  const partitions = h("input", { placeholder: "all", inputMode: "numeric", autocomplete: "off" });
  const offset = h("input", { type: "number", min: 0, value: 0 });
  const time = h("input", { type: "datetime-local", step: 1 });
  const to = choice([["earliest", "the beginning"], ["latest", "the end"], ["offset", "an offset"], ["time", "a time"]], "earliest", { onchange: () => { extra(); clear(); } });
  const more = h("div", {}), shown = h("div", {});
  const extra = () => fill(more, to.value === "offset" ? field("Offset", offset) : to.value === "time" ? field(`Time (${zoneName()})`, time) : null);
  const apply = h("button", { type: "button", class: "main", disabled: true, onclick: () => ask(false) }, "Set them");
  const clear = () => { apply.disabled = true; fill(shown); };
  for (const one of [topic, partitions, offset, time]) one.addEventListener("input", clear);
  function body(dry) {
    const some = partitions.value.trim();
    return { space, to: to.value, dry_run: dry,
      ...(topic.value ? { topics: [topic.value] } : {}),
      ...(some ? { partitions: some.split(/[\s,]+/).map(Number) } : {}),
      ...(to.value === "offset" ? { offset: Number(offset.value) } : {}),
      ...(to.value === "time" ? { time_ms: moment(time.value) } : {}) };
  }
  async function ask(dry) {
    try {
      const answer = await send("POST", `/api/groups/${part(name)}/reset`, body(dry));
      if (!dry) { close(); note(`positions of ${name} in ${topic.value || "all topics"} are set`); refresh(); return; }
      fill(shown, table([
        ...(topic.value ? [] : [{ title: "Topic", kind: "name", cell: (row) => row.topic }]),
        { title: "Partition", n: true, cell: (row) => whole(row.partition) }, { title: "Now", n: true, cell: (row) => count(row.before) },
        { title: "Then", n: true, cell: (row) => count(row.offset) }, { title: "Change", n: true, keep: true, cell: (row) => (row.change === null ? nothing() : (row.change > 0 ? "+" : "") + whole(row.change)) },
        { title: "Lag then", n: true, keep: true, cell: (row) => count(row.lag) },
      ], answer.positions.slice(0, SHOWN), { caption: "Preview" }), answer.partitions > SHOWN ? h("p", { class: "faint" }, `The first ${SHOWN} of ${plural(answer.partitions, "partition")}; all are set.`) : null);
      apply.disabled = false;
    } catch (error) { apply.disabled = true; fill(shown, failed(error)); }
  }
  const close = dialog(`Set positions of ${name}`, h("form", { onsubmit: (event) => { event.preventDefault(); ask(true); } },
    h("datalist", { id: "reset-topics" }, topics.map((one) => h("option", { value: one }))),
    h("div", { class: "bar" }, field("Topic", topic), field("Partitions", partitions), field("To", to), more),
    shown, h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), h("button", { class: "plain" }, "Preview"), apply)));
}
