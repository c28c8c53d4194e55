// What a reader has done: ticks, where each card of the drill stands, a mock interview that has begun ("mock", which only
// its page reads). Kept in this browser under one key, never sent.
// With _ext/navigation/marks.py, marks.css.
"use strict";

const ddpProgress = (() => {
  const KEY = "ddp-progress", VERSION = 1;
  const DAY = /^\d{4}-\d\d-\d\d$/, NAME = /^[a-z][\w/#.-]*$/i;
  const isMap = (one) => one !== null && typeof one === "object" && !Array.isArray(one);
  const today = (after = 0) => {
    const day = new Date();
    day.setDate(day.getDate() + after);
    return day.toLocaleDateString("sv"); // 2026-01-31, in the reader's own zone
  };

  // What is wrong with something that was kept or exported, in words; "" if nothing is.
  function fault(data) {
    if (!isMap(data) || !("version" in data)) return "it is not progress that this book exported";
    if (data.version !== VERSION) return `it has version ${JSON.stringify(data.version)}, and this book reads version ${VERSION}`;
    for (const part of ["done", "cards"]) if (!isMap(data[part])) return `it has no list "${part}"`;
    const day = (one) => typeof one === "string" && DAY.test(one) && !isNaN(Date.parse(one));
    for (const [name, when] of Object.entries(data.done))
      if (!NAME.test(name) || !day(when)) return `its tick "${name}" has no day such as ${today()}`;
    for (const [name, card] of Object.entries(data.cards))
      if (!NAME.test(name) || !isMap(card) || ![1, 2, 3, 4, 5].includes(card.box) || !day(card.due) || !day(card.seen))
        return `its card "${name}" needs a box from 1 to 5 and the days "due" and "seen"`;
    return "";
  }

  function read() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY));
      if (!fault(kept)) return kept;
    } catch { /* nothing is kept here */ }
    return { version: VERSION, done: {}, cards: {} };
  }

  // Change what is kept, and say whether it was; another tab may have changed it since it was last read.
  function change(how) {
    try {
      const data = read();
      how(data);
      localStorage.setItem(KEY, JSON.stringify(data));
      return true;
    } catch { return false; }
  }

  return { fault, read, change, today, clear: () => localStorage.removeItem(KEY) };
})();

// Ticks on this page, and behind the links to what is complete.
{
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href).pathname;
  const page = (link) => decodeURI(link.pathname).slice(root.length).replace(/\.html$/, "");
  const links = document.querySelectorAll(".book-nav a, .book-map a, .toctree-wrapper a, .lab-card-title a");

  function show() {
    const { done } = ddpProgress.read();
    for (const box of document.querySelectorAll("[data-mark]")) box.checked = box.dataset.mark in done;
    for (const link of links) {
      const complete = page(link) in done && !link.hash;
      if (complete !== link.classList.toggle("complete", complete)) continue;
      link.querySelector(".said-complete")?.remove();
      if (complete) link.insertAdjacentHTML("beforeend", '<span class="said-complete">, complete</span>');
    }
    const line = document.querySelector(".progress"), names = Object.keys(done);
    if (!line || !names.length) return;
    const labs = names.filter((name) => name.startsWith("labs/")).length;
    const exercises = names.filter((name) => name.includes("/practice#")).length;
    const chapters = names.filter((name) => !name.includes("#")).length - labs;
    const { chapters: allChapters, labs: allLabs, exercises: allExercises } = line.dataset;
    line.textContent = `Complete: ${chapters} of ${allChapters} chapters, ${labs} of ${allLabs} labs, ${exercises} of ${allExercises} exercises.`;
  }

  addEventListener("change", ({ target }) => {
    const name = target.dataset?.mark;
    if (!name) return;
    const kept = ddpProgress.change(({ done }) => {
      if (target.checked) done[name] = ddpProgress.today();
      else delete done[name];
    });
    if (!kept) target.closest("label").title = "This browser keeps nothing for this page.";
    show();
  });
  for (const event of ["storage", "pageshow", "ddp-progress"]) addEventListener(event, show);
  show();
}
