// The list of claims: shows those that have the words and the scope that a reader asks for.
"use strict";

(() => {
  const table = document.querySelector("table.claims");
  if (!table) return;
  const rows = [...table.querySelectorAll("tr[data-holds]")].map((row) => ({ row, words: row.textContent.toLowerCase() }));
  const scopes = [...new Set(rows.map(({ row }) => row.dataset.holds))].filter(Boolean).sort();
  const form = document.createElement("form");
  form.className = "claims-filter";
  form.setAttribute("role", "search");
  form.innerHTML = `<input type="search" aria-label="Words that a claim has" placeholder="Words, such as no_sync">
    <select aria-label="Where it holds"><option value="">any scope</option></select><span role="status"></span>`;
  const [asked, scope, count] = form.children;
  for (const name of scopes) scope.add(new Option(name, name));

  function filter() {
    const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, words: has } of rows) {
      row.hidden = !(words.every((word) => has.includes(word)) && (!scope.value || row.dataset.holds === scope.value));
      shown += !row.hidden;
    }
    for (const part of table.tBodies) part.hidden = !part.querySelector("tr[data-holds]:not([hidden])");
    count.textContent = `${shown} of ${rows.length}`;
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  table.before(form);
  filter();
})();
