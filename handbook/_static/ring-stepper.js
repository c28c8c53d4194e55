// The ring all-reduce, step by step: who sends which chunk to whom, and what every rank holds after it.
// The states come from the algorithm itself, not from a drawing; a test compares them with real ranks.
// With _ext/explorers/explorer_directives.py, explorers.css.
(() => {
"use strict";

const MOST_RANKS = 8, PLAY_MS = 1800, MOVE_MS = 600, SAY_MS = 500;

// -- the algorithm ----------------------------------------------------------------------------------------

// Rank r starts with 10·r + c as its chunk c, counted from 1: 23 is chunk 3 of rank 2.
const startValue = (rank, chunk) => 10 * rank + chunk + 1;

// States 0 … 2(p−1). `held[rank][chunk]` is the number that the rank holds, `from[rank][chunk]` a bit per rank whose
// share is in it; `moves` are the messages of the step that led here: {from, to, chunk, own, came}.
function states(p) {
  const ranks = [...Array(p).keys()];
  let held = ranks.map((rank) => ranks.map((chunk) => startValue(rank, chunk)));
  let from = ranks.map((rank) => ranks.map(() => 1 << rank));
  const all = [{ step: 0, phase: "start", moves: [], held, from }];
  for (let step = 0; step < 2 * (p - 1); step++) {
    const adds = step < p - 1, before = { held, from };
    held = held.map((row) => [...row]);
    from = from.map((row) => [...row]);
    const moves = ranks.map((rank) => {
      const to = (rank + 1) % p, chunk = (((rank - step) % p) + p) % p;
      const own = before.held[to][chunk], came = before.held[rank][chunk];
      held[to][chunk] = adds ? own + came : came;
      from[to][chunk] = adds ? before.from[to][chunk] | before.from[rank][chunk] : before.from[rank][chunk];
      return { from: rank, to, chunk, own, came };
    });
    all.push({ step: step + 1, phase: adds ? "reduce-scatter" : "all-gather", moves, held, from });
  }
  return all;
}

const members = (bits) => [...Array(MOST_RANKS).keys()].filter((rank) => bits >> rank & 1);

function inWords(p, state) {
  const steps = 2 * (p - 1), { step, phase, moves } = state;
  if (!step) return [`Start: each of the ${p} ranks holds ${p} chunks. Chunk 2 of rank 1 is ${startValue(1, 1)}.`];
  const adds = phase === "reduce-scatter";
  const end = { [p - 1]: " Now each rank has one finished sum.", [steps]: " Now all ranks have all sums." }[step] || "";
  const said = [`Step ${step} of ${steps}, ${phase}: every rank sends one chunk to the next rank, which ${adds ? "adds it to its own" : "keeps it in place of its own"}.${end}`];
  for (const { from, to, chunk, own, came } of moves) {
    const result = adds ? `${own} + ${came} = ${own + came}` : `${came} replaces ${own}`;
    said.push(`Rank ${from} sends chunk ${chunk + 1} to rank ${to}: ${result}.`);
  }
  return said;
}

// -- the element ------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // strings become text nodes
  return element;
}

let elements = 0;

class RingStepper extends HTMLElement {
  connectedCallback() {
    if (this.table) return;
    const id = `ring-${++elements}`;
    this.p = Math.min(MOST_RANKS, Math.max(2, Math.round(+this.getAttribute("ranks")) || 4));
    this.step = 0;
    this.count = make("select", { id: `${id}-ranks` },
      ...[...Array(MOST_RANKS - 1).keys()].map((n) => make("option", { value: n + 2 }, `${n + 2}`)));
    this.count.value = this.p;
    this.back = make("button", { type: "button" }, "Back");
    this.next = make("button", { type: "button" }, "Next");
    this.playing = make("button", { type: "button" }, "Play");
    this.slider = make("input", { type: "range", id: `${id}-step`, min: 0, step: 1, value: 0 });
    this.heading = make("p", { class: "ring-title" });
    this.table = make("table", { class: "ring-table" });
    this.words = make("ul", { class: "ring-words" });
    this.bytes = make("p", { class: "explorer-note" });
    this.live = make("p", { class: "explorer-hidden", role: "status" });
    this.append(make("div", { class: "explorer", role: "group", "aria-label": "Ring all-reduce, step by step" },
      make("div", { class: "explorer-row" },
        make("label", { for: `${id}-ranks` }, "Ranks"), this.count, this.back, this.next, this.playing),
      make("div", { class: "explorer-row" }, make("label", { for: `${id}-step` }, "Step"), this.slider),
      this.heading, this.table, this.words, this.bytes, this.live));
    this.classList.add("explorer-ready");

    this.count.addEventListener("change", () => this.ranks(+this.count.value));
    this.slider.addEventListener("input", () => { this.stop(); this.go(+this.slider.value); });
    this.back.addEventListener("click", () => { this.stop(); this.go(this.step - 1); });
    this.next.addEventListener("click", () => { this.stop(); this.go(this.step + 1); });
    this.playing.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    this.addEventListener("keydown", (event) => this.key(event));
    this.ranks(this.p);
  }

  disconnectedCallback() {
    this.stop();
    clearTimeout(this.saying);
  }

  // For tests, and for whoever wants the numbers.
  states(p = this.p) {
    return states(p);
  }

  ranks(p) {
    this.stop();
    this.p = p;
    this.all = states(p);
    this.slider.max = this.all.length - 1;
    this.step = 0;
    this.cells = [];
    const head = make("tr", {}, make("td"), ...this.all.map((_, c) => c).slice(0, p).map((c) =>
      make("th", { scope: "col" }, make("span", { class: "ring-long" }, "chunk "), `${c + 1}`)));
    const rows = this.all[0].held.map((row, rank) => {
      this.cells.push(row.map(() => make("td")));
      const name = make("th", { scope: "row", class: `explorer-r${rank}` }, make("span", { class: "ring-long" }, "rank "), `${rank}`);
      return make("tr", {}, name, ...this.cells[rank]);
    });
    this.table.classList.toggle("ring-many", p > 4);
    this.table.replaceChildren(make("caption", { class: "explorer-hidden" }, "What each rank holds, chunk by chunk"),
      make("thead", {}, head), make("tbody", {}, ...rows));
    this.draw();
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.matches("input, select")) return;
    const to = { ArrowRight: this.step + 1, ArrowLeft: this.step - 1, Home: 0, End: this.all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.stop();
    this.go(to);
  }

  go(step) {
    const before = this.step;
    this.step = Math.min(this.all.length - 1, Math.max(0, step));
    if (this.step === before) return;
    this.draw();
    if (this.step === before + 1) this.move();
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.live.textContent = inWords(this.p, this.all[this.step]).join(" "); }, SAY_MS);
  }

  play() {
    if (this.step === this.all.length - 1) this.go(0);
    const tick = () => {
      this.go(this.step + 1);
      if (this.step === this.all.length - 1) this.stop();
    };
    this.timer = setInterval(tick, PLAY_MS);
    this.playing.textContent = "Pause";
    if (this.step === 0) tick();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.playing.textContent = "Play";
  }

  draw() {
    const { p, step } = this, state = this.all[step], last = this.all.length - 1, full = 2 ** p - 1;
    const changed = new Set(state.moves.map((one) => `${one.to} ${one.chunk}`));
    const sent = new Set(state.moves.map((one) => `${one.from} ${one.chunk}`));
    this.cells.forEach((row, rank) => row.forEach((cell, chunk) => {
      const bits = state.from[rank][chunk], place = `${rank} ${chunk}`, complete = bits === full;
      cell.className = ["ring-cell", complete ? "ring-complete" : "", changed.has(place) ? "ring-changed" : ""].join(" ").trim();
      const shares = state.held.map((_, source) =>
        make("span", { class: bits >> source & 1 ? `ring-share explorer-r${source}` : "ring-share" }));
      const who = complete ? "all ranks" : `${bits & (bits - 1) ? "ranks" : "rank"} ${members(bits).join(", ")}`;
      cell.replaceChildren(`${state.held[rank][chunk]}`, make("span", { class: "explorer-hidden" }, ` from ${who}`),
        make("span", { class: "ring-shares", "aria-hidden": "true" }, ...shares));
      if (sent.has(place)) cell.append(make("span", { class: "ring-arrow", "aria-hidden": "true" }, "↓"));
      if (rank === 0 && changed.has(place)) cell.append(make("span", { class: "ring-arrow ring-above", "aria-hidden": "true" }, "↓"));
    }));
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", step ? `${step} of ${last}, ${state.phase}` : "start");
    this.back.setAttribute("aria-disabled", step === 0);
    this.next.setAttribute("aria-disabled", step === last);
    const [said, ...lines] = inWords(p, state);
    this.heading.textContent = said;
    this.words.replaceChildren(...lines.map((line) => make("li", {}, line)));
    const ratio = (step / p).toFixed(2).replace(/\.?0+$/, "");
    this.bytes.textContent = step
      ? `Each rank has sent ${step} ${step > 1 ? "chunks" : "chunk"} of n/${p} bytes: ${ratio} n${step === last ? `, which is 2(p − 1)/p · n` : ""}.`
      : `n bytes per rank are cut into ${p} chunks. A frame will mark a finished sum; a coloured stripe, whose share is in it.`;
  }

  // What was sent slides from the sender's cell to the receiver's; the numbers are there already.
  move() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const { from, to, chunk } of this.all[this.step].moves) {
      const shares = this.cells[to][chunk].querySelector(".ring-shares");
      const way = to ? this.cells[from][chunk].offsetTop - this.cells[to][chunk].offsetTop : -24;
      shares.animate([{ transform: `translateY(${way}px)`, opacity: 0.4 }, { transform: "none", opacity: 1 }],
        { duration: MOVE_MS, easing: "ease-in-out" });
    }
  }
}

customElements.define("ddp-ring-stepper", RingStepper);
})();
