// How often to save, from four numbers of a job; redrawn at each change.
// The formulas are those of gallery/ddplab/model/interval.py; a test compares the two on random cases.
// With _ext/explorers/explorer_directives.py, explorers.css.
(() => {
"use strict";

const CURVE_POINTS = 140, SAY_MS = 700, MINUTE = 60, HOUR = 3600, DAY = 86400;

// -- interval.py, in the same order ------------------------------------------------------------------------

const young = (save_s, mtbf_s) => Math.sqrt(2 * save_s * mtbf_s);

function daly(save_s, mtbf_s) {
  if (save_s >= 2 * mtbf_s) return mtbf_s;
  const x = Math.sqrt(save_s / (2 * mtbf_s));
  return Math.sqrt(2 * save_s * mtbf_s) * (1 + x / 3 + (x * x) / 9) - save_s;
}

function lost(interval_s, save_s, mtbf_s, restart_s) {
  const expected = mtbf_s * Math.exp(restart_s / mtbf_s) * Math.expm1((interval_s + save_s) / mtbf_s);
  return 1 - interval_s / expected; // 1 where it overflows
}

// -- fields, words, drawings -------------------------------------------------------------------------------

// name, label, seconds of a unit (0: a count), least value
const FIELDS = [
  ["save-s", "A save stops training, in s", 1, 0],
  ["nodes", "Nodes", 0, 0],
  ["node-mtbf-days", "Days per failure of a node", DAY, 0],
  ["restart-s", "Failure to next step, in s", 1, null],
  ["interval-min", "Your interval, in min", MINUTE, 0],
];
const TICKS = [
  0.01, 0.1, 1, 5, 15, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY, 10 * DAY, 30 * DAY,
  100 * DAY, 300 * DAY, 1000 * DAY, 3000 * DAY,
];

function time(s) {
  for (const [unit, name] of [[DAY, "days"], [HOUR, "h"], [MINUTE, "min"]])
    if (s >= { days: 2, h: 4, min: 3 }[name] * unit) return `${digits(s / unit)} ${name}`;
  return `${digits(s)} s`;
}

const digits = (value) => (value >= 99.5 ? `${Math.round(value)}` : `${+value.toPrecision(3)}`);
const share = (part) => `${part >= 0.9995 ? "more than 99.9" : digits(100 * part)} %`;

function tick(s) {
  const [unit, name] = s >= DAY ? [DAY, "d"] : s >= HOUR ? [HOUR, "h"] : s >= MINUTE ? [MINUTE, "min"] : [1, "s"];
  return `${s / unit} ${name}`;
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

const line = (kind, x1, y1, x2, y2) => draw("line", { class: kind, x1, y1, x2, y2 });
const text = (said, x, y, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, said);

// The share lost over the interval, with Daly's and Young's interval and the reader's own.
function curveOf(job, width) {
  const left = 56, right = width - 14, top = 30, bottom = 168, parts = [];
  const middle = job.daly_s, own = job.interval_s;
  const low = Math.log(Math.min(middle / 12, own / 1.5)), high = Math.log(Math.max(middle * 12, own * 1.5));
  const x = (s) => left + ((Math.log(s) - low) / (high - low)) * (right - left);
  const at = (s) => lost(s, job.save_s, job.mtbf_s, job.restart_s);
  const points = [...Array(CURVE_POINTS).keys()].map((n) => Math.exp(low + ((high - low) * n) / (CURVE_POINTS - 1)));
  const most = Math.min(1, Math.max(...points.map(at)) * 1.05), y = (part) => bottom - (part / most) * (bottom - top);
  let free = left - 20;
  for (const s of TICKS) {
    const here = x(s);
    if (here < free || here > right) continue;
    parts.push(line("axis", here, bottom, here, bottom + 4), text(tick(s), here, bottom + 17, "middle", "soft"));
    free = here + 58;
  }
  parts.push(text("time between two saves", (left + right) / 2, bottom + 34, "middle", "soft"));
  parts.push(line("axis", left, bottom, right, bottom), line("axis", left, top - 6, left, bottom));
  const power = 10 ** Math.floor(Math.log10(most / 3)), step = power * [1, 2, 5, 10].find((one) => one * power >= most / 4);
  for (let n = 0; n * step <= most; n++) {
    parts.push(line("axis", left - 4, y(n * step), left, y(n * step)));
    parts.push(text(digits(100 * n * step), left - 8, y(n * step) + 4, "end", "soft"));
  }
  parts.push(text("% of the time lost", left - 50, top - 16, "start", "soft"));
  parts.push(line("best", x(job.young_s), top - 6, x(job.young_s), bottom));
  parts.push(draw("polyline", { class: "curve", points: points.map((s) => `${x(s).toFixed(1)},${y(at(s)).toFixed(1)}`).join(" ") }));
  for (const [s, name] of [[middle, "Daly"], [own, "yours"]]) {
    const side = x(s) > right - 80 ? "end" : "start";
    parts.push(draw("circle", { class: "point", cx: x(s), cy: y(at(s)), r: 5.5 }));
    if (name === "yours" || Math.abs(x(own) - x(s)) > 70)
      parts.push(text(`${name}: ${time(s)}`, x(s) + (side === "end" ? -9 : 9), Math.max(y(at(s)) - 9, 12), side, "halo"));
  }
  return [208, parts];
}

// -- the element -------------------------------------------------------------------------------------------

let elements = 0;

class IntervalCalculator extends HTMLElement {
  connectedCallback() {
    if (this.inputs) return;
    const id = `interval-${++elements}`;
    this.inputs = new Map();
    const rows = FIELDS.map(([name, label, , least]) => {
      const input = make("input", {
        type: "number", id: `${id}-${name}`, min: 0, step: name === "nodes" ? 1 : "any", inputmode: "decimal", required: "",
        value: this.getAttribute(name), "aria-describedby": `${id}-wrong`,
      });
      this.inputs.set(name, [input, least]);
      input.addEventListener("input", () => this.redraw(true));
      return make("div", { class: "step-slider" }, make("label", { for: input.id }, label), input);
    });
    this.number = make("span", { class: "step-number" });
    this.facts = make("span", { class: "step-facts" });
    this.wrong = make("p", { id: `${id}-wrong`, class: "interval-wrong" });
    this.curve = draw("svg", { role: "img" });
    this.live = make("p", { class: "explorer-hidden", role: "status" });
    this.append(make("div", { class: "explorer", role: "group", "aria-label": "Saving interval" },
      make("div", { class: "step-sliders" }, ...rows), this.wrong,
      make("p", { class: "step-result" }, this.number, this.facts), this.curve, this.live));
    this.classList.add("explorer-ready");
    this.redraw();
    this.watch = new ResizeObserver(() => this.clientWidth === this.drawn || this.redraw());
    this.watch.observe(this);
  }

  disconnectedCallback() {
    clearTimeout(this.saying);
  }

  // The formulas, for tests and for whoever wants the numbers.
  compute(cases) {
    return cases.map(({ interval_s, save_s, mtbf_s, restart_s }) => ({
      young_s: young(save_s, mtbf_s), daly_s: daly(save_s, mtbf_s), lost: lost(interval_s, save_s, mtbf_s, restart_s),
    }));
  }

  // The job of the fields in seconds; null if one of them holds no usable number.
  job() {
    const value = {};
    let usable = true;
    for (const [name, , unit] of FIELDS) {
      const [input, least] = this.inputs.get(name), number = input.valueAsNumber;
      const good = Number.isFinite(number) && (least === null ? number >= 0 : number > least);
      if (good) input.removeAttribute("aria-invalid");
      else input.setAttribute("aria-invalid", "true");
      usable &&= good;
      value[name] = unit ? number * unit : number;
    }
    const mtbf_s = value["node-mtbf-days"] / value.nodes, save_s = value["save-s"];
    const job = { save_s, mtbf_s, restart_s: value["restart-s"], interval_s: value["interval-min"] };
    return usable ? { ...job, young_s: young(save_s, mtbf_s), daly_s: daly(save_s, mtbf_s) } : null;
  }

  redraw(say = false) {
    const job = this.job();
    this.wrong.textContent = job ? "" : "Each field takes a number above 0; the way to the next step may be 0.";
    this.drawn = this.clientWidth;
    if (!job) {
      this.number.replaceChildren("–");
      this.facts.replaceChildren();
      this.curve.replaceChildren();
      this.curve.setAttribute("aria-label", "No curve");
      return;
    }
    const part = (interval_s) => share(lost(interval_s, job.save_s, job.mtbf_s, job.restart_s));
    const best = part(job.daly_s), own = part(job.interval_s);
    this.number.replaceChildren(time(job.daly_s), make("small", {}, " between saves (Daly)"));
    this.facts.replaceChildren(
      make("strong", {}, best), ` of the time is lost then, and at your ${time(job.interval_s)} `, make("strong", {}, own),
      `. Young: ${time(job.young_s)}, ${part(job.young_s)}. The job fails every ${time(job.mtbf_s)} on average.`);
    const width = Math.max(280, this.drawn || 700), [height, parts] = curveOf(job, width);
    const said = `Daly: save every ${time(job.daly_s)}, ${best} lost. Young: every ${time(job.young_s)}, ${part(job.young_s)}. At your ${time(job.interval_s)}: ${own}.`;
    this.curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.curve.setAttribute("aria-label", `Share of the time lost against the time between two saves. ${said}`);
    this.curve.replaceChildren(...parts);
    if (!say) return;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.live.textContent = said; }, SAY_MS);
  }
}

customElements.define("ddp-interval-calculator", IntervalCalculator);
})();
