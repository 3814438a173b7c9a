// Counters become rates: what they grew by since the last look. Of names that are not asked for any more nothing is kept.

export class Rates {
  constructor() { this.before = new Map(); this.now = new Map(); }

  // Between two calls of this all names are asked for that are to be known the next time.
  begin() { this.before = this.now; this.now = new Map(); }

  of(name, value) {
    const at = performance.now();
    this.now.set(name, [value, at]);
    const last = this.before.get(name);
    if (!last || at <= last[1]) return null;
    return Math.max(0, value - last[0]) * 1000 / (at - last[1]);
  }
}
