// The drill: a question, time to think, the answer, its follow-ups one at a time, and when the card comes back.
// With _ext/cards/drill_page.py, room.css, room.js.
"use strict";

customElements.define("ddp-drill", class extends HTMLElement {
  static DAYS = [0, 1, 3, 7, 21]; // until a card of each box comes back
  static GRADES = [["Again", 0], ["Good", 1], ["Easy", 2]]; // how many boxes up; again is the first box

  connectedCallback() {
    const { make, clock } = ddpRoom;
    this.replaceChildren();
    this.cards = ddpRoom.cards(this);
    const asked = new URLSearchParams(location.search);
    this.chapter = this.choice(this.chapters(), asked.get("chapter") ?? `${asked.get("part") ?? ""}/`);
    this.level = this.choice([["", "all levels"], ...["core", "deep", "staff"].map((one) => [one, one])], asked.get("level"));
    const round = asked.get("stop"), counts = [...new Set([10, 20, 40, ...(/^[1-9]\d?$/.test(round) ? [Number(round)] : [])])];
    this.stop = this.choice([["", "all"], ...counts.sort((a, b) => a - b).map((one) => [String(one), one])], round);
    this.clock = clock();
    const box = make("input", "");
    box.type = "checkbox";
    box.addEventListener("change", () => { this.clock.shown.hidden = !box.checked; });
    this.clock.shown.hidden = true;
    this.status = make("p", "room-said");
    this.status.setAttribute("role", "status");
    this.stage = make("div", "room-stage");
    this.append(
      make("div", "room-row", make("label", "", "Chapter ", this.chapter), make("label", "", "Level ", this.level),
        make("label", "", "Stop after ", this.stop), make("label", "", box, " Clock"), this.clock.shown),
      this.status, this.stage);
    addEventListener("ddp-progress", () => this.begin(""));
    addEventListener("keydown", (event) => this.key(event));
    this.begin("");
  }

  // All cards, those of a part (its folder and "/"), or of a chapter: [value, text].
  chapters() {
    const found = new Map([["/", "all chapters"]]);
    for (const { chapter, title, part } of this.cards) {
      found.set(`${chapter.split("/")[0]}/`, part);
      found.set(chapter, `\u00a0\u00a0${title}`);
    }
    return [...found];
  }

  choice(options, chosen) {
    const select = document.createElement("select");
    for (const [value, text] of options) select.add(new Option(text, value));
    if (options.some(([value]) => value === chosen)) select.value = chosen;
    select.addEventListener("change", () => this.begin(""));
    return select;
  }

  // The cards of this choice: those that are due, the first boxes first; then new ones, core before deep before staff.
  begin(said) {
    const { cards } = ddpProgress.read(), today = ddpProgress.today();
    const of = this.chapter.value, within = (chapter) => of === "/" || chapter === of || (of.endsWith("/") && chapter.startsWith(of));
    const chosen = this.cards.filter(({ chapter, level }) => within(chapter) && (!this.level.value || level === this.level.value));
    const due = chosen.filter(({ id }) => cards[id]?.due <= today).sort((a, b) => cards[a.id].box - cards[b.id].box);
    const fresh = ["core", "deep", "staff"].flatMap((level) => chosen.filter((card) => card.level === level && !cards[card.id]));
    this.later = chosen.filter(({ id }) => cards[id]?.due > today).map(({ id }) => cards[id].due).sort();
    this.queue = [...due, ...fresh];
    this.graded = this.constructor.GRADES.map(() => 0); // of this round
    this.ask(said);
  }

  tell(said) {
    const { cards } = ddpProgress.read(), today = ddpProgress.today();
    const seen = Object.values(cards).filter((card) => card.seen === today).length;
    const due = this.queue.filter(({ id }) => cards[id]).length, fresh = this.queue.length - due;
    const round = this.stop.value && `; ${this.answered()} of ${this.stop.value} in this round`;
    this.status.textContent = `${said ? `${said} ` : ""}${due} due, ${fresh} new; ${seen} answered today${round}.`;
  }

  answered() {
    return this.graded.reduce((all, one) => all + one);
  }

  ask(said, thenFocus = false) {
    const { make, button, partsOf } = ddpRoom;
    this.card = this.queue[0];
    this.tell(said);
    this.shown = false;
    if (this.card && this.answered() === Number(this.stop.value || Infinity)) {
      const end = make("p", "", `The round is over: ${this.constructor.GRADES.map(([name], n) => `${this.graded[n]} ${name.toLowerCase()}`).join(", ")}.`);
      const plans = make("a", "", "To the plans");
      plans.href = "index.html";
      this.stage.replaceChildren(end, make("div", "room-row", button("Another round", () => this.begin(""), "room-main"), plans));
      this.card = undefined;
      ddpRoom.focus(end);
      return;
    }
    if (!this.card) {
      const next = this.later.length ? ` The next card comes back on ${this.later[0]}.` : "";
      this.stage.replaceChildren(make("p", "", `Nothing of this choice is due.${next}`));
      return;
    }
    const kept = ddpProgress.read().cards[this.card.id];
    this.parts = partsOf(this.card);
    const about = make("p", "room-about", `${this.card.title} · ${this.card.level} · ${kept ? `box ${kept.box}` : "new"}`);
    this.next = button("Show the answer", () => this.answer(), "room-main");
    this.hint = make("p", "room-hint", "Say your answer aloud first. Space or Enter shows the answer and each follow-up; 1, 2, 3 grade.");
    this.row = make("div", "room-row", this.next);
    this.body = make("div", "room-body", about, this.parts.question);
    this.stage.replaceChildren(this.body, this.row, this.hint);
    this.clock.restart();
    if (thenFocus) ddpRoom.focus(this.parts.question);
  }

  answer() {
    const { make, button, focus } = ddpRoom;
    const { answer, weak = "", flags = "", depth, evidence = "", "follow-ups": more } = this.parts;
    this.shown = true;
    this.follow = more ? [...more.querySelectorAll(":scope > ul > li")] : [];
    this.body.append(answer, weak, flags);
    if (depth) {
      const fold = make("details", "room-fold", make("summary", "", depth.querySelector(".card-label").textContent));
      depth.querySelector(".card-label").remove();
      fold.append(depth);
      this.body.append(fold);
    }
    this.list = make("ul", "room-follow");
    this.body.append(this.list, evidence);
    this.next.remove();
    if (this.follow.length) {
      this.next = button("", () => this.followUp());
      this.row.append(this.next);
      this.sayNext();
    }
    const kept = ddpProgress.read().cards[this.card.id];
    this.constructor.GRADES.forEach(([name, up], number) => {
      const days = this.constructor.DAYS[this.box(kept, up) - 1];
      const when = days === 0 ? "today" : days === 1 ? "tomorrow" : `in ${days} days`;
      const grade = button(name, () => this.grade(number), "room-grade");
      grade.append(" ", make("small", "", when));
      grade.setAttribute("aria-keyshortcuts", number + 1);
      this.row.append(grade);
    });
    this.row.classList.add("room-graded");
    focus(answer);
  }

  // One press shows the question of a follow-up, the next what one says to it.
  followUp() {
    const last = this.list.lastElementChild;
    if (last?.classList.contains("room-asked")) last.classList.remove("room-asked");
    else if (this.follow.length) {
      const item = this.follow.shift();
      item.classList.add("room-asked");
      item.querySelector("strong")?.classList.add("room-asks");
      this.list.append(item);
    }
    ddpRoom.focus(this.list.lastElementChild);
    this.sayNext();
  }

  sayNext() {
    const open = this.list.lastElementChild?.classList.contains("room-asked");
    const left = this.follow.length;
    this.next.textContent = open ? "Show its answer" : left > 1 ? `Follow-up, ${left} left` : "Follow-up";
    if (open || left) return;
    this.next.remove();
  }

  box(kept, up) {
    return up === 0 ? 1 : Math.min(5, (kept?.box ?? 1) + up);
  }

  grade(number) {
    const [name, up] = this.constructor.GRADES[number], { id } = this.card, today = ddpProgress.today;
    const kept = ddpProgress.change(({ cards }) => {
      const box = this.box(cards[id], up);
      cards[id] = { box, due: today(this.constructor.DAYS[box - 1]), seen: today() };
    });
    this.graded[number] += 1;
    this.queue.shift();
    if (up === 0) this.queue.splice(4, 0, this.card); // soon again, but not at once
    this.ask(kept ? `${name}.` : `${name}; this browser keeps nothing for this page.`, true);
  }

  key(event) {
    const key = ddpRoom.keyFor(event, this);
    if (key === "next" && this.card) {
      event.preventDefault();
      if (!this.shown) this.answer();
      else if (this.next.isConnected) this.followUp();
    } else if (this.shown && ["1", "2", "3"].includes(key)) this.grade(Number(key) - 1);
  }
});
