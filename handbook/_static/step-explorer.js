// A DDP step by the cost model, redrawn at each move of a slider.
// The model is that of gallery/ddplab/model/ (link.py, step.py, buckets.py); a test compares the two on random cases.
// With _ext/explorers/explorer_directives.py, explorers.css.
(() => {
"use strict";

const MIB = 2 ** 20, CURVE_POINTS = 160, SAY_MS = 700;

// -- the model: costmodel.py and buckets.py, in the same order -------------------------------------------

// Seconds of one all-reduce: Link.seconds.
function seconds(nbytes, { latency_s: alpha, bytes_per_s: rate, ranks: p = 2, algorithm = "ring", segment_bytes = MIB }) {
  if (p === 1) return 0;
  if (algorithm === "pipelined-ring") {
    const chunk = nbytes / p / rate, segment = Math.min(nbytes / p, segment_bytes) / rate;
    return (2 * (p - 1) - 1) * Math.max(chunk, alpha + segment) + alpha + chunk;
  }
  if (algorithm === "gloo") {
    const perChunk = Math.max(2, Math.ceil(Math.ceil(nbytes / segment_bytes) / p));
    const segment = nbytes / (perChunk * p) / rate, before = (p - 1) * perChunk - 1;
    const pairs = Math.floor(before / 2) * Math.max(2 * segment, alpha + segment) + (before % 2) * segment;
    return 2 * (pairs + alpha + segment);
  }
  const [hops, volume] = terms(algorithm, p);
  return hops * alpha + (volume * nbytes) / rate;
}

function terms(algorithm, p) {
  const bits = (n) => 32 - Math.clz32(n);
  if (algorithm === "ring") return [2 * (p - 1), (2 * (p - 1)) / p];
  if (algorithm === "tree") return [2 * bits(p - 1), 2];
  if (algorithm === "halving-doubling") {
    const log = bits(p) - 1, q = 2 ** log, odd = p === q ? 0 : 2;
    return [2 * log + odd, (2 * (q - 1)) / q + odd];
  }
  if (algorithm === "link") return [1, 1];
  throw new RangeError(`unknown algorithm ${algorithm}`);
}

// torch's rule: a bucket closes as soon as it holds at least its cap.
function assign(sizes, cap_bytes, first_cap_bytes = cap_bytes) {
  const buckets = [];
  let open = [], held = 0;
  sizes.forEach((nbytes, position) => {
    open.push(position);
    held += nbytes;
    if (held >= (buckets.length ? cap_bytes : first_cap_bytes)) {
      buckets.push(open);
      open = [];
      held = 0;
    }
  });
  return open.length ? [...buckets, open] : buckets;
}

// One step: gradients are [ready_s, nbytes], in ready order.
function simulateStep({ forward_s, gradients, cap_bytes, first_cap_bytes, link, backward_s, optimizer_s = 0, overlap = true, accumulation: k = 1 }) {
  const buckets = assign(gradients.map(([, nbytes]) => nbytes), cap_bytes, first_cap_bytes);
  const backward = backward_s ?? gradients.reduce((most, [ready]) => Math.max(most, ready), 0);
  const begin = k * forward_s + (k - 1) * backward, backwardEnd = begin + backward;
  const timeline = [];
  let communication = 0, total = 0, free = 0;
  buckets.forEach((bucket, number) => {
    let nbytes = 0, last = 0;
    for (const position of bucket) {
      last = Math.max(last, gradients[position][0]);
      nbytes += gradients[position][1];
    }
    const ready = begin + last, start = Math.max(overlap ? ready : backwardEnd, free), duration = seconds(nbytes, link);
    free = start + duration;
    communication += duration;
    total += nbytes;
    timeline.push({ bucket: number, nbytes, ready_s: ready, start_s: start, end_s: free });
  });
  const exposed = Math.min(Math.max(0, free - backwardEnd), communication);
  return {
    step_s: Math.max(backwardEnd, free) + optimizer_s, forward_s: k * forward_s, backward_s: k * backward, optimizer_s,
    communication_s: communication, exposed_s: exposed, overlapped_s: communication - exposed,
    lower_bound_s: begin + Math.max(backward, buckets.length ? seconds(total, link) : 0) + optimizer_s, timeline,
  };
}

// -- what the sliders choose from ------------------------------------------------------------------------

function series(from, to, digits = [1, 1.5, 2, 3, 4, 5, 6, 8]) {
  const values = [];
  for (let power = Math.floor(Math.log10(from)); 10 ** power <= to; power++)
    for (const digit of digits) values.push(+(digit * 10 ** power).toPrecision(3));
  return values.filter((value) => value >= from && value <= to);
}

const BUCKETS = [0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 400, 512, 1024];
const SLIDERS = [
  ["bucket_mib", "Bucket size", "MiB", BUCKETS],
  ["backward_ms", "Backward", "ms", series(1, 3000)],
  ["forward_ms", "Forward", "ms", series(1, 3000)],
  ["gradients_mib", "Gradients in all", "MiB", series(1, 20000, [1, 2, 3, 4, 5, 6, 8])],
  ["layers", "Layers of equal size", "", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 200]],
  ["gbit_per_s", "Bandwidth of a rank", "Gbit/s", [...series(0.1, 90), ...[100, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3600]]],
  ["latency_us", "Latency of a hop", "µs", series(0.5, 5000)],
  ["ranks", "Ranks", "", [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]],
  ["accumulation", "Micro-batches in a step", "", [1, 2, 3, 4, 6, 8, 12, 16]],
];
const ALGORITHMS = [
  ["ring", "ring"], ["tree", "tree"], ["halving-doubling", "halving and doubling"],
  ["pipelined-ring", "ring, pipelined"], ["gloo", "ring as gloo runs it"], ["link", "one transfer, one hop"],
];

function caseOf(settings, bucket_mib = settings.bucket_mib) {
  const { layers } = settings, nbytes = Math.floor((settings.gradients_mib * MIB) / layers), backward_s = settings.backward_ms / 1e3;
  return {
    forward_s: settings.forward_ms / 1e3, cap_bytes: Math.floor(bucket_mib * MIB), accumulation: settings.accumulation,
    gradients: [...Array(layers).keys()].map((layer) => [backward_s * ((layer + 1) / layers), nbytes]),
    link: {
      latency_s: settings.latency_us / 1e6, bytes_per_s: settings.gbit_per_s * 125e6, ranks: settings.ranks,
      algorithm: settings.algorithm,
    },
  };
}

// -- words and drawings ----------------------------------------------------------------------------------

const grouped = (value) => `${value}`.replace(/\B(?=(\d{3})+$)/g, value >= 1e4 ? "\u202f" : "");

function time(s) {
  const ms = s * 1e3;
  if (ms >= 9999.5) return `${s.toFixed(s < 99.95 ? 1 : 0)} s`;
  return `${ms.toFixed(ms < 0.995 ? 2 : ms < 99.95 ? 1 : 0)} ms`;
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? +value.toFixed(2) : value);
  element.append(...children); // strings become text nodes
  return element;
}

const box = (kind, x, y, width, height) => draw("rect", { class: kind, x, y, width: Math.max(width, 0), height });
const line = (kind, x1, y1, x2, y2) => draw("line", { class: kind, x1, y1, x2, y2 });
const text = (said, x, y, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, said);

// Round values for an axis, at most `most` of them.
function marks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
  const first = Math.ceil(low / step);
  return [...Array(Math.max(0, Math.floor(high / step) - first + 1)).keys()].map((n) => (first + n) * step);
}

// The step: compute, gradients, link, and below the axis the same step without overlap and at best.
function timelineOf(settings, step, serial_s, width) {
  const left = width < 480 ? 66 : 84, right = width - 16, all = Math.max(step.step_s, serial_s);
  const x = (s) => left + (s / all) * (right - left), parts = [];
  const k = settings.accumulation, forward = settings.forward_ms / 1e3, backward = settings.backward_ms / 1e3;
  const end = step.forward_s + step.backward_s;
  if (step.exposed_s > 0) parts.push(box("waiting", x(end), 6, x(step.step_s) - x(end), 98));
  for (let n = 0; n < k; n++) {
    const begin = n * (forward + backward), middle = begin + forward;
    for (const [kind, from, to] of [["forward", begin, middle], ["backward", middle, middle + backward]]) {
      parts.push(box(kind, x(from), 12, x(to) - x(from), 24));
      if (x(to) - x(from) > 60) parts.push(text(kind, (x(from) + x(to)) / 2, 28, "middle"));
    }
  }
  for (let n = 1; n <= settings.layers; n++) {
    const at = x(end - backward + (backward * n) / settings.layers);
    parts.push(line("ready", at, 46, at, 58));
  }
  for (const one of step.timeline) {
    const hidden = Math.min(one.end_s, end);
    if (one.start_s < hidden) parts.push(box("transfer", x(one.start_s), 68, x(hidden) - x(one.start_s), 24));
    if (one.end_s > end) parts.push(box("exposed", x(Math.max(one.start_s, end)), 68, x(one.end_s) - x(Math.max(one.start_s, end)), 24));
    if (x(one.end_s) - x(one.start_s) > 3) parts.push(line("border", x(one.end_s), 67.5, x(one.end_s), 92.5));
  }
  const waits = `waits ${time(step.exposed_s)}`;
  if (x(step.step_s) - x(end) > 7 * waits.length) parts.push(text(waits, (x(end) + x(step.step_s)) / 2, 28, "middle"));
  parts.push(line("axis", left, 104, right, 104));
  const seconds_ = all >= 10;
  for (const at of marks(0, all, width < 480 ? 4 : 8)) {
    parts.push(line("axis", x(at), 104, x(at), 108));
    if (x(at) < right - 16) parts.push(text(grouped(+(seconds_ ? at : at * 1e3).toPrecision(6)), x(at), 120, "middle", "soft"));
  }
  parts.push(text(seconds_ ? "s" : "ms", right + 10, 120, "end", "soft"));
  const rows = [["compute", 28], ["gradients", 56], ["link", 84]];
  const bars = [["this step", step.step_s], ["no overlap", serial_s], ["at best", step.lower_bound_s]];
  bars.forEach(([name, s], row) => {
    const y = 132 + 20 * row, inside = x(s) - left > 70;
    rows.push([name, y + 12]);
    parts.push(box("bar", left, y, x(s) - left, 16));
    if (s > end) parts.push(box("waited", x(end), y, x(s) - x(end), 16));
    parts.push(text(time(s), x(s) + (inside ? -5 : 5), y + 12, inside ? "end" : "start"));
  });
  for (const [name, y] of rows) parts.push(text(name, left - 8, y, "end", "soft"));
  return [194, parts];
}

// Step time against bucket size, with the lower bound, the best choice and the current one.
function curveOf(settings, step, best, width) {
  const left = width < 480 ? 66 : 84, right = width - 16, top = 34, bottom = 146;
  const low = Math.log(BUCKETS[0]), high = Math.log(BUCKETS[BUCKETS.length - 1]);
  const sizes = [...Array(CURVE_POINTS).keys()].map((n) => Math.exp(low + ((high - low) * n) / (CURVE_POINTS - 1)));
  const points = [...new Set([...sizes, ...BUCKETS])].sort((a, b) => a - b)
    .map((mib) => [mib, simulateStep(caseOf(settings, mib)).step_s]);
  const most = Math.max(...points.map(([, s]) => s)), least = Math.min(step.lower_bound_s, best[1]);
  const room = Math.max(most - least, most * 0.02), x = (mib) => left + ((Math.log(mib) - low) / (high - low)) * (right - left);
  const y = (s) => bottom - 6 - ((s - least) / room) * (bottom - top - 10), parts = [];
  parts.push(line("axis", left, bottom, right, bottom));
  for (const mib of width < 480 ? [0.25, 1, 4, 25, 128, 1024] : [0.25, 0.5, 1, 2, 5, 10, 25, 64, 128, 256, 512, 1024]) {
    parts.push(line("axis", x(mib), bottom, x(mib), bottom + 4), text(`${mib}`, x(mib), bottom + 17, "middle", "soft"));
  }
  parts.push(text("bucket size in MiB", (left + right) / 2, bottom + 33, "middle", "soft"));
  const long = most >= 10;
  for (const s of marks(least - room * 0.05, most, 4)) {
    parts.push(line("axis", left - 4, y(s), left, y(s)));
    parts.push(text(grouped(+(long ? s : s * 1e3).toPrecision(6)), left - 8, y(s) + 4, "end", "soft"));
  }
  parts.push(text(`step in ${long ? "s" : "ms"}`, left - 8, top - 14, "start", "soft"), line("axis", left, top - 6, left, bottom));
  parts.push(line("best", left, y(step.lower_bound_s), right, y(step.lower_bound_s)));
  parts.push(draw("polyline", { class: "curve", points: points.map(([mib, s]) => `${x(mib).toFixed(1)},${y(s).toFixed(1)}`).join(" ") }));
  // The best size is marked, and named on the side away from the current one.
  const there = x(best[0]), away = there - x(settings.bucket_mib), same = away === 0;
  parts.push(line("chosen", there, y(best[1]), there, bottom), draw("circle", { class: "best-point", cx: there, cy: y(best[1]), r: 8 }));
  const beside = away < 0 ? there - left : right - there;
  if (!same && beside > 90) parts.push(text(`best: ${best[0]} MiB`, there + Math.sign(away) * 9, y(best[1]) - 12, away < 0 ? "end" : "start", "halo"));
  // The label goes to the side on which the curve lies lower.
  const at = x(settings.bucket_mib), near = (mib) => simulateStep(caseOf(settings, mib)).step_s;
  const rises = near(settings.bucket_mib * 1.5) > near(settings.bucket_mib / 1.5);
  const side = at > right - 80 || (rises && at > left + 80) ? "end" : "start";
  parts.push(draw("circle", { class: "point", cx: at, cy: y(step.step_s), r: 5.5 }));
  parts.push(text(`${settings.bucket_mib} MiB${same ? ", the best" : ""}`, at + (side === "end" ? -9 : 9), Math.max(y(step.step_s) - 8, 10), side, "halo"));
  return [184, parts];
}

// -- the element -----------------------------------------------------------------------------------------

let elements = 0;

class StepExplorer extends HTMLElement {
  connectedCallback() {
    if (this.settings) return;
    this.examples = JSON.parse(this.querySelector('script[type="application/json"]').textContent);
    const id = `step-${++elements}`, first = this.examples.find((one) => one.name === this.getAttribute("example")) || this.examples[0];
    this.example = make("select", { id: `${id}-example` },
      ...this.examples.map((one) => make("option", { value: one.name }, one.title)), make("option", { value: "" }, "your own"));
    this.assumed = make("p", { class: "explorer-note" });
    this.number = make("span", { class: "step-number" });
    this.facts = make("span", { class: "step-facts" });
    this.timeline = draw("svg", { role: "img" });
    this.curve = draw("svg", { role: "img" });
    this.live = make("p", { class: "explorer-hidden", role: "status" });
    this.controls = new Map();
    const rows = SLIDERS.map(([name, label, unit, values]) => {
      const input = make("input", { type: "range", id: `${id}-${name}`, min: 0, max: values.length - 1, step: 1 });
      const output = make("output", { for: input.id, "aria-live": "off" });
      const told = (value) => `${grouped(value)} ${unit}`.trim();
      const set = (value) => {
        input.value = values.reduce((near, one, index) => (Math.abs(one - value) < Math.abs(values[near] - value) ? index : near), 0);
        output.textContent = told(value);
        input.setAttribute("aria-valuetext", told(value));
      };
      this.controls.set(name, set);
      input.addEventListener("input", () => this.change({ [name]: values[input.value] }));
      return make("div", { class: "step-slider" }, make("label", { for: input.id }, label), output, input);
    });
    const algorithm = make("select", { id: `${id}-algorithm` }, ...ALGORITHMS.map(([value, label]) => make("option", { value }, label)));
    algorithm.addEventListener("change", () => this.change({ algorithm: algorithm.value }));
    this.controls.set("algorithm", (value) => { algorithm.value = value; });
    rows.splice(8, 0, make("div", { class: "step-slider" }, make("label", { for: algorithm.id }, "All-reduce"), algorithm));
    const [bucket, ...others] = rows; // the one to move first stands above what it moves
    this.append(make("div", { class: "explorer", role: "group", "aria-label": "Step explorer" },
      make("div", { class: "explorer-row" }, make("label", { for: this.example.id }, "Example"), this.example),
      this.assumed, make("div", { class: "step-sliders" }, bucket), make("p", { class: "step-result" }, this.number, this.facts),
      this.timeline, this.curve, make("div", { class: "step-sliders" }, ...others), this.live));
    this.classList.add("explorer-ready");
    this.example.addEventListener("change", () => {
      const chosen = this.examples.find((one) => one.name === this.example.value);
      if (chosen) this.change(chosen.settings);
    });
    this.change(first.settings, false);
    this.watch = new ResizeObserver(() => this.clientWidth === this.drawn || this.redraw());
    this.watch.observe(this);
  }

  disconnectedCallback() {
    clearTimeout(this.saying);
  }

  // The model, for tests and for whoever wants the numbers.
  simulate(cases) {
    return cases.map(simulateStep);
  }

  change(settings, say = true) {
    this.settings = { ...this.settings, ...settings };
    for (const [name, value] of Object.entries(settings)) this.controls.get(name)(value);
    const same = this.examples.find((one) => Object.entries(one.settings).every(([name, value]) => this.settings[name] === value));
    this.example.value = same ? same.name : "";
    this.assumed.textContent = same ? same.assumed : "Your own numbers. The model is exact about its rules, and knows nothing of your machine.";
    this.redraw(say);
  }

  redraw(say = false) {
    const { settings } = this, step = simulateStep(caseOf(settings));
    const serial_s = simulateStep({ ...caseOf(settings), overlap: false }).step_s;
    const tried = BUCKETS.map((mib) => [mib, simulateStep(caseOf(settings, mib)).step_s]);
    const best = tried.reduce((a, b) => (b[1] < a[1] * (1 - 1e-9) ? b : a));
    const count = step.timeline.length, hidden = step.communication_s ? step.overlapped_s / step.communication_s : 1;
    this.number.replaceChildren(time(step.step_s), make("small", {}, " a step"));
    this.facts.replaceChildren(
      make("strong", {}, time(step.exposed_s)), " of it waiting for the link. ",
      `${count} bucket${count > 1 ? "s" : ""}, ${Math.round(hidden * 100)} % of the communication hidden. Best bucket size here: `,
      make("strong", {}, `${best[0]} MiB`), `, ${time(best[1])}.`);
    this.drawn = this.clientWidth;
    const width = Math.max(280, this.drawn || 700);
    const said = `One step takes ${time(step.step_s)}, of which it waits ${time(step.exposed_s)} for the link. Without overlap it takes ${time(serial_s)}, at best ${time(step.lower_bound_s)}.`;
    this.show(this.timeline, `Timeline. ${said}`, width, timelineOf(settings, step, serial_s, width));
    const known = `Step time against bucket size. ${settings.bucket_mib} MiB: ${time(step.step_s)}. The best choice is ${best[0]} MiB: ${time(best[1])}.`;
    this.show(this.curve, known, width, curveOf(settings, step, best, width));
    if (!say) return;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.live.textContent = `${said} Best bucket size: ${best[0]} MiB.`; }, SAY_MS);
  }

  show(drawing, said, width, [height, parts]) {
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("aria-label", said);
    drawing.replaceChildren(...parts);
  }
}

customElements.define("ddp-step-explorer", StepExplorer);
})();
