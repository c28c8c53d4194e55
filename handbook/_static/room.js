// What the drill and the mock interview share: the cards, the clock, and the file in which progress is carried.
// With _ext/cards/drill_page.py, room.css, drill.js, mock.js.
"use strict";

const ddpRoom = (() => {
  const make = (tag, className, ...inside) => {
    const made = document.createElement(tag);
    made.className = className;
    made.append(...inside);
    return made;
  };

  function button(text, act, className = "") {
    const made = make("button", className, text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  // A card's parts by name: question, answer, and what else it has (weak, flags, depth, follow-ups, evidence).
  function partsOf(card) {
    const holder = document.createElement("template");
    holder.innerHTML = card.html;
    const parts = {};
    for (const one of holder.content.querySelector(".card").children) {
      const name = [...one.classList].find((word) => word.startsWith("card-"))?.slice(5);
      if (name) parts[name] = one;
    }
    const question = make("div", "room-question");
    question.append(...parts.question.firstElementChild.childNodes);
    return { ...parts, question };
  }

  // All cards, and what their formulas are drawn with.
  function cards(element) {
    const shared = make("div", "");
    shared.innerHTML = ddpCards.glyphs;
    element.append(shared);
    return ddpCards.cards;
  }

  const words = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

  // Counts up, says nothing by itself, and decides nothing.
  function clock() {
    const shown = make("span", "room-clock");
    shown.setAttribute("role", "timer");
    let began = performance.now();
    const seconds = () => (performance.now() - began) / 1000;
    const tell = () => { shown.textContent = words(seconds()); };
    setInterval(tell, 1000);
    return { shown, seconds, restart: (from = 0) => { began = performance.now() - 1000 * from; tell(); } };
  }

  const keysAreOff = () => { try { return localStorage.getItem("keys") === "off"; } catch { return false; } };

  // A key that was pressed for this element and not for a field, a link or a button in it; "" for any other.
  function keyFor(event, element) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return "";
    if (event.target.closest?.("input, select, textarea, [contenteditable]")) return "";
    if (event.key === " " || event.key === "Enter")
      return element.contains(event.target) && !event.target.closest("a, button, summary") ? "next" : "";
    return keysAreOff() ? "" : event.key;
  }

  // Show something new, and read from it on.
  function focus(element) {
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest", behavior: "instant" }); // with the margins of the style sheet
  }

  return { make, button, cards, partsOf, clock, keyFor, focus };
})();

// Export, import and clear all that is kept.
customElements.define("ddp-keep", class extends HTMLElement {
  connectedCallback() {
    const { make, button } = ddpRoom;
    const said = make("p", "room-said");
    said.setAttribute("role", "status");
    const field = make("input", "");
    field.type = "file";
    field.accept = ".json,application/json";
    field.setAttribute("aria-label", "A file that this book exported");
    field.hidden = true;
    field.addEventListener("change", async () => {
      if (field.files.length) said.textContent = await this.take(field.files[0]);
      field.value = "";
    });
    const row = make("div", "room-row",
      button("Export", () => { said.textContent = this.give(); }),
      button("Import", () => field.click()),
      button("Clear", () => {
        if (!confirm("Clear all ticks and the boxes of all cards in this browser?")) return;
        ddpProgress.clear();
        said.textContent = "Cleared.";
        dispatchEvent(new Event("ddp-progress")); // what shows progress shows it anew
      }), field);
    this.replaceChildren(row, said);
  }

  give() {
    const { version, done, cards } = ddpProgress.read(), data = { version, done, cards }, link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
    link.download = `ddp-progress-${ddpProgress.today()}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    return `Exported to ${link.download}: ${this.count(data)}.`;
  }

  // What the file has is added to what is kept; of a card that both have, the later answer stays.
  async take(file) {
    let data, fault = "";
    if (file.size > 1_000_000) fault = "it is larger than 1 MB";
    else try { data = JSON.parse(await file.text()); } catch { fault = "it is not JSON"; }
    fault ||= ddpProgress.fault(data);
    if (fault) return `${file.name} was not imported: ${fault}. What this browser keeps is unchanged.`;
    const kept = ddpProgress.change((mine) => {
      Object.assign(mine.done, data.done);
      for (const [name, card] of Object.entries(data.cards))
        if (!(mine.cards[name]?.seen > card.seen)) mine.cards[name] = card;
    });
    if (!kept) return "This browser keeps nothing for this page, so nothing was imported.";
    dispatchEvent(new Event("ddp-progress"));
    return `Imported from ${file.name}: ${this.count(data)}.`;
  }

  count({ cards, done }) {
    const some = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    return `${some(Object.keys(cards).length, "card")}, ${some(Object.keys(done).length, "tick")}`;
  }
});
