// Charts with uPlot, which is vendored, and small ones in SVG.

import { bytes, clock, duration, frontClass, h, plural, say, short, visible, zoneName } from "./dom.js";

export const told = {
  records: (value) => short(value),
  rate: (value) => short(value) + "/s",
  bytes: (value) => bytes(value),
  byterate: (value) => bytes(value) + "/s",
  seconds: (value) => (value ? duration(value) : "0"),
  share: (value) => `${value < 0.1 ? +(value * 100).toPrecision(2) : Math.round(value * 100)} %`,
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const palette = ["kafka", "ydb", "http", "pravega", "pipeline", "bad", "other"];
export const frontColour = (name) => frontClass(name);
export const colourAt = (place) => palette[place % palette.length];

// Where lines of the axis lie, of what is not counted by tens.
const steps = {
  bytes: Array.from({ length: 50 }, (_, power) => 2 ** power),
  records: Array.from({ length: 45 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3)), // no half records
  seconds: [0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, ...Array.from({ length: 20 }, (_, power) => 86400 * 2 ** power)],
};
steps.byterate = steps.bytes;
steps.time = steps.seconds.filter((one) => one >= 60);

// One value makes no line.
const isAlone = (plot, at) => plot.data[at].filter((value) => value !== null && value !== undefined).length === 1;

const LEAST = 30; // steps that are shown at least

// A chart that lasts as long as its screen: `draw` gives it new data, `close` lets go of it.
export class Chart {
  constructor(title, unit, height = 170) {
    this.unit = unit;
    this.height = height;
    this.title = title;
    // Arrows go through its steps as the mouse does.
    this.element = h("div", { class: "chart", role: "group", tabIndex: 0, "aria-label": title, "aria-roledescription": "chart", onkeydown: (event) => this.key(event) });
    this.plot = null;
    this.shape = "";
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.element);
    this.themed = () => { this.shape = ""; if (this.last) this.draw(...this.last); };
    addEventListener("theme", this.themed);
  }

  width() { return Math.max(120, this.element.clientWidth); }

  resize() {
    if (this.plot && Math.abs(this.plot.width - this.width()) > 1) this.plot.setSize({ width: this.width(), height: this.height });
  }

  // history: what the node answered (step_s, end_ms); series: [{ label, points, colour }], points may be null
  draw(history, series) {
    this.last = [history, series];
    let some = series.filter((one) => one.points && one.points.some((value) => value !== null));
    if (!some.length) {
      this.forget();
      this.element.replaceChildren(h("p", { class: "empty" }, "Nothing yet. What goes through is shown here, a step of 20 seconds behind."));
      return;
    }
    // What lies before anything is known takes no room, but for a little.
    const first = Math.min(...some.map((one) => one.points.findIndex((value) => value !== null)));
    const from = Math.max(0, Math.min(first - 1, some[0].points.length - LEAST));
    some = some.map((one) => ({ ...one, points: one.points.slice(from) }));
    const length = some[0].points.length;
    const end = history.end_ms / 1000;
    const times = Array.from({ length }, (_, place) => end - (length - 1 - place) * history.step_s);
    const data = [times, ...some.map((one) => one.points)];
    const shape = some.map((one) => one.label + one.colour).join("\n");
    const now = some.map((one) => { const last = one.points[one.points.length - 1]; return `${one.label} ${last === null ? "not known" : told[this.unit](last)}`; });
    this.element.setAttribute("aria-label", `${this.title}: ${now.join(", ")}`);
    if (this.plot && shape === this.shape) {
      this.plot.setData(data);
      return;
    }
    this.forget();
    this.shape = shape;
    this.element.replaceChildren();
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const text = told[this.unit];
    this.plot = new uPlot({
      width: this.width(), height: this.height,
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, size: 34, incrs: steps.time, values: (_, splits) => splits.map((at) => clock(at * 1000, 5)) }, { ...axis, size: 84, values: (_, splits) => splits.map(text), ...(steps[this.unit] ? { incrs: steps[this.unit] } : {}) }],
      cursor: { y: false },
      series: [
        { value: (_, at) => (at === null ? "–" : clock(at * 1000)), label: `time (${zoneName()})` },
        ...some.map((one) => ({ label: visible(one.label), stroke: colour(one.colour), width: 1.8, spanGaps: false, points: { show: isAlone, size: 7, fill: colour(one.colour) }, value: (_, value) => (value === null || value === undefined ? "–" : text(value)) })),
      ],
    }, data, this.element);
    this.element.querySelectorAll(".u-legend .u-series").forEach((row, at) => { if (at) this.toggle(row.querySelector("th"), at); });
  }

  // The legend shows and hides a line when it is clicked: with the keyboard as well.
  toggle(head, at) {
    const plot = this.plot;
    const tell = () => head.setAttribute("aria-pressed", String(plot.series[at].show));
    head.tabIndex = 0;
    head.setAttribute("role", "button");
    tell();
    head.addEventListener("click", () => queueMicrotask(tell));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      plot.setSeries(at, { show: !plot.series[at].show });
      tell();
    });
  }

  key(event) {
    if (!this.plot || event.target !== this.element) return;
    const times = this.plot.data[0], last = times.length - 1, now = this.plot.cursor.idx ?? last + 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.plot.setCursor({ left: this.plot.valToPos(times[Math.min(last, Math.max(0, to))], "x"), top: 0 });
    say([...this.element.querySelectorAll(".u-series")].map((row) => row.textContent).join(", "));
  }

  forget() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.shape = "";
  }

  close() {
    this.sizes.disconnect();
    removeEventListener("theme", this.themed);
    this.forget();
    this.last = null;
  }
}

// What went in and out in the last hour, as two lines of a row.
export function spark(history) {
  const all = [history?.bytes_in, history?.bytes_out];
  const most = Math.max(0, ...all.flatMap((points) => points || []).map((one) => one || 0));
  if (!most) return h("span", { class: "faint" }, "quiet");
  const line = (points) => {
    let pen = "M";
    return points.map((one, place) => {
      if (one === null) { pen = "M"; return ""; }
      const at = `${pen}${(place * 100 / (points.length - 1)).toFixed(1)} ${(23 - 21 * one / most).toFixed(1)}`;
      pen = "L";
      return at;
    }).join("");
  };
  const paths = [["in", all[0]], ["out", all[1]]].filter(([, points]) => points).map(([kind, points]) => h("path", { class: kind, d: line(points) }));
  return h("svg", { class: "spark", viewBox: "0 0 100 25", preserveAspectRatio: "none", role: "img", "aria-label": `at most ${bytes(most)} a second in the last hour` }, paths);
}

// Partitions over the epochs of a topic: each is as high as its share of the keys, from when it was made to when it was sealed.
export function lineage(partitions, epoch) {
  const width = 900, height = 300, left = 44, bottom = 24;
  const last = Math.max(epoch, ...partitions.map((one) => one.sealed_epoch ?? one.made_epoch)) + 1;
  const x = (at) => left + (width - left - 6) * at / last;
  const y = (key) => 4 + (height - bottom - 4) * (1 - key);
  const boxes = partitions.map((one) => {
    const from = x(one.made_epoch), to = x(one.sealed_epoch ?? last);
    const top = y(one.keys[1]), tall = y(one.keys[0]) - top;
    const text = `partition ${one.partition}, keys ${one.keys[0].toFixed(3)} to ${one.keys[1].toFixed(3)}, made in epoch ${one.made_epoch}` +
      (one.active ? ", active" : `, sealed in epoch ${one.sealed_epoch}`) + (one.parents.length ? `, from ${one.parents.join(", ")}` : "");
    return h("g", { class: one.active ? "active" : "sealed" }, h("title", {}, text),
      h("rect", { x: from + 1.5, y: top + 1, width: Math.max(4, to - from - 3), height: Math.max(2, tall - 2), rx: 4 }),
      tall > 12 ? h("text", { x: (from + to) / 2, y: top + tall / 2 }, String(one.partition)) : null);
  });
  const epochs = Array.from({ length: last }, (_, at) => at).filter((at) => last < 16 || at % Math.ceil(last / 12) === 0);
  return h("svg", { class: "lineage", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `How ${plural(partitions.length, "partition")} descend, over ${plural(last, "epoch")}` },
    boxes, epochs.map((at) => h("text", { class: "axis", x: (x(at) + x(at + 1)) / 2, y: height - 10 }, `epoch ${at}`)),
    [0, 0.5, 1].map((key) => h("text", { class: "axis", x: 20, y: Math.max(10, y(key)) }, String(key))));
}
