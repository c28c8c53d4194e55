// A long list, of claims or of errors: shows what has the words that a reader asks for, and stands where he says.
// A pasted line finds the errors whose message it has: `data-says` names the parts of it that do not vary.
// With _ext/cards/claims_list.py, _ext/explorers/error_index.py.
"use strict";

(() => {
  const claims = document.querySelector("table.claims");
  const form = document.querySelector("form.list-filter") || document.createElement("form");
  const found = [...document.querySelectorAll(claims ? "table.claims tr[data-holds]" : ".error-list > li")];
  if (!found.length) return;
  const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
  const title = (heading) => [...heading.childNodes].find((node) => node.nodeType === Node.TEXT_NODE).data.trim(); // no number
  const items = found.map((one) => {
    const row = one, part = claims ? row.parentElement : row.closest("section");
    const says = JSON.parse(one.dataset.says || "[]").map((pieces) => pieces.map(plain));
    return { row, part, says, words: plain(one.textContent),
             place: claims ? one.dataset.holds : title(part.querySelector("h2")) };
  });
  const places = [...new Set(items.map(({ place }) => place))].filter(Boolean);
  const [about, any, where, example] = claims
    ? ["Words that a claim has", "any scope", "Where it holds", "Words, such as no_sync"]
    : ["Words, or a line of a log", "everywhere", "Where it stands", "Words, or a line of your log"];
  form.className = "claims-filter list-filter";
  form.setAttribute("role", "search");
  form.innerHTML = `<input type="search" aria-label="${about}" placeholder="${example}">
    <select aria-label="${where}"><option value="">${any}</option></select><span role="status"></span>`;
  const [asked, scope, count] = form.children;
  for (const name of claims ? places.sort() : places)
    scope.add(new Option(claims ? name : `${name} (${items.filter(({ place }) => place === name).length})`, name));

  function filter() {
    const line = plain(asked.value), words = line.split(" ");
    const shown = items.filter(({ says, words: has, place }) =>
      (!scope.value || place === scope.value) &&
      (words.every((word) => has.includes(word)) || says.some((pieces) => pieces.every((piece) => line.includes(piece)))));
    const kept = new Set(shown), parts = new Set(shown.map(({ part }) => part));
    for (const item of items) {
      item.row.hidden = !kept.has(item);
      item.part.hidden = !parts.has(item.part);
    }
    count.textContent = `${shown.length} of ${items.length}`;
  }

  // A link to a line of the list shows it, also where the filter hid it.
  function arrive() {
    const item = items.find(({ row }) => `#${row.id}` === location.hash);
    if (!item?.row.hidden) return;
    form.reset();
    filter();
    item.row.scrollIntoView({ behavior: "instant" });
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  if (claims) claims.before(form);
  filter();
  if (!claims) {
    addEventListener("hashchange", arrive);
    arrive();
  }
})();
