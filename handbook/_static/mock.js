// The mock interview: a set of nine drawn from the cards, a clock that decides nothing, and a score that you give.
// With _ext/cards/drill_page.py, room.css, room.js.
"use strict";

customElements.define("ddp-mock", class extends HTMLElement {
  static SET = [["core", 3, 3], ["deep", 3, 4], ["staff", 2, 5], ["design", 1, 12]]; // kind, how many, minutes for each
  static SCORES = ["Nothing that would count", "The headline, or half of it", "The answer", "The answer, with a number, a limit or a trade-off"];

  connectedCallback() {
    const { make, button } = ddpRoom;
    this.design = new Set(this.getAttribute("design").split(" "));
    this.replaceChildren();
    this.cards = ddpRoom.cards(this);
    this.whole = ddpRoom.clock();
    this.one = ddpRoom.clock();
    const kept = this.kept(), start = button("Draw a set and start", () => this.start(), "room-main");
    const again = kept && button(`Go on with question ${kept.place + 1} of ${kept.set.length}`, () => this.resume(kept), "room-main");
    if (kept) start.className = "";
    this.stage = make("div", "room-stage", make("div", "room-row", ...(kept ? [again, start] : [start])));
    this.append(this.stage);
    addEventListener("pagehide", () => this.keep());
    addEventListener("keydown", (event) => this.key(event));
  }

  // Of each kind as many as the set has, from as many chapters as there are.
  draw() {
    const left = this.cards.map((card) => ({ card, place: Math.random() })).sort((a, b) => a.place - b.place).map(({ card }) => card);
    const taken = new Set(), set = [];
    for (const [kind, count, minutes] of this.constructor.SET) {
      const fit = left.filter((card) => (kind === "design") === this.design.has(card.id) && (kind === "design" || card.level === kind));
      for (let n = 0; n < count && fit.length; n++) {
        const place = Math.max(0, fit.findIndex(({ chapter }) => !taken.has(chapter)));
        const [card] = fit.splice(place, 1);
        taken.add(card.chapter);
        set.push({ card, kind, minutes });
      }
    }
    return set;
  }

  start() {
    this.set = this.draw();
    this.place = -1;
    this.whole.restart();
    this.go();
  }

  // An interview that has begun is kept until its end; the clocks stand still while its page is closed.
  keep() {
    if (!this.set || this.place >= this.set.length) return;
    const set = this.set.map(({ card: { id }, ...rest }) => ({ id, ...rest }));
    const mock = { set, place: this.place, shown: this.shown, whole: this.whole.seconds(), one: this.one.seconds() };
    ddpProgress.change((data) => { data.mock = mock; });
  }

  // What was kept, if this book still has all of its cards.
  kept() {
    const { mock } = ddpProgress.read();
    if (!Array.isArray(mock?.set) || !(mock.place in mock.set)) return null;
    const set = mock.set.map(({ id, ...rest }) => ({ card: this.cards.find((one) => one.id === id), ...rest }));
    return set.every(({ card }) => card) ? { ...mock, set } : null;
  }

  resume({ set, place, shown, whole, one }) {
    this.set = set;
    this.place = place - 1;
    this.whole.restart(whole);
    this.go();
    this.one.restart(one);
    if (!shown) return;
    this.answer();
    if (set[place].score !== undefined) this.scores.querySelectorAll("input")[set[place].score].click();
  }

  go() {
    const { make, button, partsOf, focus } = ddpRoom;
    this.place += 1;
    if (this.place === this.set.length) { this.end(); return; }
    const { card, kind, minutes } = this.set[this.place];
    this.parts = partsOf(card);
    this.shown = false;
    this.one.restart();
    const times = make("p", "room-times", "this question ", this.one.shown, ` of about ${minutes}:00 · all `, this.whole.shown);
    const about = make("p", "room-about", `Question ${this.place + 1} of ${this.set.length} · ${kind} · ${card.title}`);
    const round = kind === "design" ? this.round() : "";
    this.row = make("div", "room-row", button("I have answered: show a strong answer", () => this.answer(), "room-main"));
    this.body = make("div", "room-body", about, this.parts.question, round);
    this.stage.replaceChildren(times, this.body, this.row);
    this.keep();
    focus(this.parts.question);
  }

  // A worked case that the page names, in a tab of its own: the set waits here for its score.
  round() {
    const cases = [...document.querySelectorAll(".mock-cases a")];
    const link = cases[Math.floor(Math.random() * cases.length)].cloneNode(true);
    link.target = "_blank";
    return ddpRoom.make("p", "room-round", "Or, in 45 minutes, a whole design case: ", link, ". It opens in a new tab.");
  }

  answer() {
    const { make, button, focus } = ddpRoom;
    const { answer, weak = "", flags = "", depth = "", evidence = "", "follow-ups": more = "" } = this.parts;
    this.shown = true;
    this.body.append(answer, weak, flags, depth, more, evidence);
    const scores = make("fieldset", "room-scores", make("legend", "", "What did your answer hold?"));
    this.constructor.SCORES.forEach((words, score) => {
      const box = make("input", "");
      box.type = "radio";
      box.name = "room-score";
      box.addEventListener("change", () => { this.set[this.place].score = score; next.disabled = false; this.keep(); });
      scores.append(make("label", "", box, ` ${score}: ${words}`));
    });
    const last = this.place + 1 === this.set.length;
    const next = button(last ? "See the score" : "Next question", () => this.go(), "room-main");
    next.disabled = true;
    this.next = next;
    this.scores = scores;
    this.row.replaceChildren(next);
    this.row.before(scores);
    this.keep();
    focus(answer);
  }

  // What was weak comes first in the drill; then the score by level, and what to read next.
  end() {
    const { make, button, focus } = ddpRoom;
    const weak = this.set.filter(({ score }) => score < 2), today = ddpProgress.today();
    ddpProgress.change((data) => {
      for (const { card } of weak) data.cards[card.id] = { box: 1, due: today, seen: today };
      delete data.mock;
    });
    const sum = (list) => `${list.reduce((all, { score }) => all + score, 0)} of ${3 * list.length}`;
    const title = make("h2", "room-score", `Score: ${sum(this.set)}`);
    const rows = this.constructor.SET.map(([kind]) => {
      const own = this.set.filter((one) => one.kind === kind);
      return make("tr", "", make("th", "", kind), make("td", "", sum(own)), make("td", "", own.map(({ score }) => score).join(", ")));
    });
    for (const row of rows) row.firstChild.scope = "row";
    const head = make("tr", "", ...["Kind", "Points", "Each question"].map((text) => make("th", "", text)));
    const table = make("table", "docutils room-table", make("thead", "", head), make("tbody", "", ...rows));
    const read = make("ul", "room-read");
    for (const { card } of weak) {
      const { question, evidence } = ddpRoom.partsOf(card), item = make("li", "", ...question.childNodes);
      const links = [...(evidence?.querySelectorAll("a") ?? [])];
      item.append(make("span", "room-links", ...links.flatMap((link, n) => (n ? [" · ", link] : [link]))));
      read.append(item);
    }
    const next = make("div", "room-next", make("h3", "", "Read next"));
    if (weak.length) next.append(make("p", "", "You gave these 0 or 1. Each is in the first box of the drill now, with where the book answers it:"), read);
    else next.append(make("p", "", "Nothing below 2. Take a set again on another day: it draws other cards."));
    this.stage.replaceChildren(title, make("p", "room-times", "In ", this.whole.shown.textContent, "; a set is planned for 43 minutes."),
      table, next, make("div", "room-row", button("Draw another set", () => this.start())));
    focus(title);
  }

  key(event) {
    if (!this.set || this.place >= this.set.length) return;
    const key = ddpRoom.keyFor(event, this);
    if (key === "next") {
      event.preventDefault();
      if (!this.shown) this.answer();
      else if (!this.next.disabled) this.go();
    } else if (this.shown && ["0", "1", "2", "3"].includes(key)) {
      const box = this.scores.querySelectorAll("input")[key];
      box.click();
    }
  }
});
