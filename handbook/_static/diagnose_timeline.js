// "Diagnose a log": the lines that matter, one lane per rank, in the order of the log.
// A column is a line, not a second: what matters happens within a moment, and then nothing for half an hour.
// With _ext/explorers/diagnose_page.py.
(() => {
"use strict";
const { make, inert, colored } = window.ddpDiagnose;
const LANES = 12; // more ranks share the last one
// Told apart by shape as well as by color; drawn in a square of 16.
const KINDS = {
  error: ["Error", "M8 0.5 15.5 8 8 15.5 0.5 8Z"],
  warning: ["Warning", "M8 1.5 15.5 14.5H0.5Z"],
  consequence: ["Consequence", "M8 1a7 7 0 1 0 0 14A7 7 0 1 0 8 1Zm0 3.4a3.6 3.6 0 1 1 0 7.2 3.6 3.6 0 1 1 0-7.2Z"],
  fact: ["Note", "M6 2h4v12H6Z"],
};

function shape(kind) {
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawn.setAttribute("viewBox", "0 0 16 16");
  drawn.setAttribute("aria-hidden", "true");
  drawn.setAttribute("class", `diagnose-mark mark-${kind}`);
  const path = document.createElementNS(drawn.namespaceURI, "path");
  path.setAttribute("d", KINDS[kind][1]);
  path.setAttribute("fill-rule", "evenodd");
  drawn.append(path);
  return drawn;
}

const span = (seconds) => (seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : seconds < 5400
  ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
const who = (rank) => (rank === null ? "no rank" : `rank ${rank}`);

// The lanes from above: the ranks, then what names none.
function lanesOf(entries, suspect) {
  const ranks = [...new Set([...entries.map((one) => one.rank), suspect ? suspect.rank : null])].filter((rank) => rank !== null);
  ranks.sort((a, b) => (b === suspect?.rank) - (a === suspect?.rank) || a - b); // the suspect is kept in any case
  const own = ranks.slice(0, ranks.length > LANES ? LANES - 1 : LANES).sort((a, b) => a - b);
  const lanes = own.map((rank) => ({ name: `rank ${rank}`, rank }));
  if (ranks.length > own.length) lanes.push({ name: `${ranks.length - own.length} more`, rank: "more" });
  if (entries.some((one) => one.rank === null)) lanes.push({ name: "no rank", rank: null });
  const row = new Map(lanes.map((lane, number) => [lane.rank, number]));
  return { lanes, rowOf: (rank) => row.get(rank) ?? row.get("more") };
}

function timeline(entries, suspect) {
  const { lanes, rowOf } = lanesOf(entries, suspect);
  const chart = make("div", { class: "diagnose-lanes", role: "group", "aria-label": "Timeline: the arrow keys go from line to line" });
  chart.style.setProperty("--columns", entries.length);
  const at = (element, row, column) => { element.style.gridArea = `${row + 2} / ${column}`; chart.append(element); return element; };
  for (const [row, lane] of lanes.entries()) {
    const suspected = suspect && lane.rank === suspect.rank ? " diagnose-suspected" : "";
    at(colored(make("span", { class: `diagnose-lane${suspected}`, "aria-hidden": "true" }), lane.rank), row, "1 / auto / -1");
    at(colored(make("span", { class: `diagnose-lane-name${suspected}` }, lane.name), lane.rank), row, 1);
  }
  const readout = make("p", { class: "diagnose-readout", "aria-live": "polite" });
  const scroll = make("div", { class: "diagnose-scroll" }, chart);
  const times = entries.map((one) => one.seconds).filter((seconds) => seconds !== null);
  const pause = Math.max(1, (Math.max(...times) - Math.min(...times)) / 12); // s; a column would hide it
  let before = null;
  const marks = entries.map((one, number) => {
    if (one.seconds !== null) {
      if (before !== null && one.seconds - before >= pause) {
        at(make("span", { class: "diagnose-pause" }, span(one.seconds - before)), -1, number + 2);
        const rule = at(make("span", { class: "diagnose-rule", "aria-hidden": "true" }), 0, number + 2);
        rule.style.gridRowEnd = `span ${lanes.length}`;
      }
      before = one.seconds;
    }
    const mark = make("button", { type: "button", tabindex: "-1", "aria-pressed": "false",
      "aria-label": `${KINDS[one.kind][0]}, ${who(one.rank)}, line ${one.line}` }, shape(one.kind));
    mark.addEventListener("click", () => choose(number));
    mark.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(number));
    return at(mark, rowOf(one.rank), number + 2);
  });
  let chosen = -1;
  function choose(number) {
    if (chosen >= 0) { marks[chosen].tabIndex = -1; marks[chosen].setAttribute("aria-pressed", "false"); }
    chosen = number;
    marks[number].tabIndex = 0;
    marks[number].setAttribute("aria-pressed", "true");
    readout.replaceChildren(...told(entries[number]));
    show();
  }
  function show() {
    const left = marks[chosen].offsetLeft - scroll.scrollLeft;
    if (left < scroll.clientWidth / 4 || left > scroll.clientWidth - 40) scroll.scrollLeft += left - scroll.clientWidth / 2;
  }
  chart.addEventListener("keydown", (event) => {
    const row = rowOf(entries[chosen].rank), own = [...marks.keys()].filter((n) => rowOf(entries[n].rank) === row);
    const step = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: marks.length - 1,
      ArrowDown: next(row, 1), ArrowUp: next(row, -1), PageDown: own[own.indexOf(chosen) + 1], PageUp: own[own.indexOf(chosen) - 1] }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    if (marks[step]) { choose(step); marks[step].focus(); }
  });
  // The nearest mark of the next lane that has one.
  function next(row, way) {
    for (let other = row + way; other >= 0 && other < lanes.length; other += way) {
      const there = [...marks.keys()].filter((n) => rowOf(entries[n].rank) === other);
      if (there.length) return there.reduce((best, n) => (Math.abs(n - chosen) < Math.abs(best - chosen) ? n : best));
    }
    return chosen;
  }
  const errors = [...entries.keys()].filter((n) => entries[n].kind === "error");
  choose(errors.find((n) => entries[n].rank === suspect?.rank) ?? errors[0] ?? 0);
  requestAnimationFrame(show); // by then it is in the page

  const kinds = Object.keys(KINDS).filter((kind) => entries.some((one) => one.kind === kind));
  const legend = make("p", { class: "diagnose-legend" }, ...kinds.map((kind) => make("span", {}, shape(kind), KINDS[kind][0].toLowerCase())));
  const list = make("ol", {}, ...entries.map((one) => make("li", {}, ...told(one))));
  const words = `As a list: ${entries.length} lines`;
  return make("section", { class: "diagnose-timeline" }, make("h3", {}, "What each rank said"), legend,
    scroll, readout, make("details", {}, make("summary", {}, words), list));
}

function told(one) {
  const when = one.seconds === null ? "" : `, after ${span(Math.max(0, one.seconds))}`; // since the log began
  return [make("span", { class: "diagnose-where" }, shape(one.kind), ` ${KINDS[one.kind][0]}, ${who(one.rank)}, line ${one.line}${when} `),
    make("code", {}, inert(one.text))];
}

Object.assign(window.ddpDiagnose, { timeline });
})();
