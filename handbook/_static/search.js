// Search by section, over the page: "/" or the header's link opens it. What is searched is loaded at the first use.
// With scripts off the link leads to Sphinx's search page.
// With _ext/search/search_sections.py, search.css.
{
  const here = document.currentScript.src.replace(/search\.js.*$/, ""); // …/_static/
  // Where readers who search want to land: chapters and messages first, labs below them, lists last.
  const KINDS = { chapter: 1.6, error: 1, practice: 0.5, lab: 0.5, reference: 0.3 };
  const FIELDS = { asked: 8, title: 6, page: 3, code: 1.5, text: 1 };
  // Words of a question that say nothing about what it asks for.
  const SMALL = new Set(("a about all am an and any are as at be been but by can could did do does for from get gets got had has have "
    + "how i if in instead into is it its just may me mean means my need of on one ones only or other others really same should so some "
    + "still than that the their them then there these they this though to too use was we what when where which while who why will with "
    + "without would you your").split(" "));
  let ready = null;

  function load(file) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = here + file;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
      document.head.append(script);
    });
  }

  // A name such as find_unused_parameters is found whole and by its parts.
  function tokens(text) {
    return text.split(/[^\p{L}\p{N}_.]+/u).flatMap((word) => {
      const whole = word.replace(/^[._]+|[._]+$/g, "");
      const parts = whole.split(/[._]+|(?<=\p{Ll})(?=\p{Lu})/u);
      return parts.length > 1 ? [whole, ...parts] : [whole];
    }).filter(Boolean);
  }
  const term = (word) => {
    const low = word.toLowerCase();
    return low.length > 3 && low.endsWith("s") && !low.endsWith("ss") ? low.slice(0, -1) : low;
  };

  // What a question is about: its words without the small ones, as a text and as terms.
  const mainly = (text) => text.split(/\s+/).filter((word) => !SMALL.has(word.toLowerCase().replace(/[^\p{L}\p{N}_]+$/u, ""))).join(" ");
  const telling = (text) => new Set(tokens(mainly(text)).map(term));

  function prepare() {
    ready ??= Promise.all([load("vendor/minisearch.js"), load("search-sections.js")]).then(() => {
      const { words, sections } = window.ddpSearchData;
      const index = new MiniSearchModule.default({
        fields: Object.keys(FIELDS), tokenize: tokens, processTerm: (word) => term(word) || null,
        extractField: (section, name) => (name === "id" ? section.number : section[name]),
      });
      const uses = Object.create(null);  // how many of the askers' phrases have a word
      let phrases = 0;
      sections.forEach((section, number) => {
        section.phrases = [...section.asked.split(", ").filter(Boolean), ...section.questions].map(telling);
        for (const phrase of section.phrases) { phrases += 1; for (const one of phrase) uses[one] = (uses[one] ?? 0) + 1; }
        section.number = number;
        section.level = Math.max(1.5, section.depth); // a page comes before its sections, they before what is in them
      });
      index.addAll(sections);
      const rare = (one) => Math.log(1 + phrases / (1 + (uses[one] ?? 0)));
      return { index, sections, words, rare };
    });
    return ready;
  }

  // The best sections for a query, best first: { title, page, address, kind, text }.
  async function search(query, most = 12) {
    const { index, sections, words, rare } = await prepare();
    const plain = query.trim().toLowerCase().replace(/\s+/g, " ");
    if (!plain) return [];
    // A pasted line is the message of an entry, or stands around it, if it has all parts of it that do not vary.
    // A message of one or two words ("Training …") is meant if it is most of what was typed, as it was printed.
    const meant = (parts) => parts.every((part) => plain.includes(part.toLowerCase())) && (parts.join("").length > 15
      || (parts.every((part) => query.includes(part.trim())) && 2 * parts.join("").length >= plain.length));
    const having = (what) => new Set(sections.flatMap((section, number) => (section[what]?.some(meant) ? [number] : [])));
    const said = having("says"), printed = having("prints");
    const options = {
      boost: FIELDS, prefix: (word) => word.length > 3, fuzzy: (word) => (word.length > 5 ? 0.15 : false), maxFuzzy: 1,
      boostDocument: (number) => KINDS[sections[number].kind] / Math.sqrt(sections[number].level),
    };
    const main = mainly(plain) || plain;
    const others = main.split(" ").flatMap((word) => (Object.hasOwn(words, word) ? words[word].split(" ") : [])).filter(Boolean).join(" ");
    let hits = index.search(main, { ...options, combineWith: "AND" });
    if (hits.length < 3 || others) {
      const known = new Set(hits.map((hit) => hit.id));
      const more = index.search({ combineWith: "OR", queries: [{ queries: [main], ...options, combineWith: "OR" },
        ...(others ? [{ queries: [others], ...options, combineWith: "OR" }] : [])] }, options);
      // How much of the question a section has, by how rare the words are.
      const often = Object.create(null);  // a word may be "constructor"
      for (const hit of more) for (const one of new Set(hit.queryTerms)) often[one] = (often[one] ?? 0) + 1;
      const weight = (names) => [...new Set(names)].reduce((sum, one) => sum + Math.log(1 + sections.length / (often[one] ?? 1)), 0);
      const asked = weight(tokens(main).map(term));
      for (const hit of more) {
        if (known.has(hit.id)) continue;
        hit.score *= Math.min(1, weight(hit.queryTerms) / asked);
        hits.push(hit);
      }
    }
    const known = new Set(hits.map((hit) => hit.id));
    for (const number of new Set([...said, ...printed])) if (!known.has(number)) hits.push({ id: number, score: 1, terms: [] });
    const best = Math.max(...hits.map((hit) => hit.score));
    const sum = (some) => [...some].reduce((all, one) => all + rare(one), 0);
    const wanted = telling(query), all = sum(wanted);
    // How near a phrase of askers is to the question, 0 to 1: what they share, of both.
    const near = (phrase) => {
      const shared = sum([...phrase].filter((one) => wanted.has(one)));
      return shared && (shared / all) * Math.sqrt(shared / sum(phrase));
    };
    for (const hit of hits) {
      hit.score += best * Math.max(0, ...sections[hit.id].phrases.map(near));
      if (said.has(hit.id)) hit.score += 2 * best;
      else if (printed.has(hit.id)) hit.score += best;
      const section = sections[hit.id], title = section.title.toLowerCase();
      const phrase = plain.includes(" ") && `${section.text} ${section.code}`.toLowerCase().includes(plain);
      if (title === plain || section.asked.split(", ").includes(plain)) hit.score *= 4;
      else if (title.includes(plain)) hit.score *= 1.5;
      else if (phrase) hit.score *= section.kind === "error" ? 6 : 2;  // a line of a log, as it was printed
    }
    hits.sort((a, b) => b.score - a.score);
    return hits.slice(0, most).map((hit) => {
      const section = sections[hit.id];
      return { ...section, address: section.at + (section.to && `#${section.to}`), terms: hit.terms };
    });
  }
  window.ddpSearch = search;

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // Some words around the first place where a term stands.
  function excerpt(section) {
    const low = section.text.toLowerCase();
    const places = section.terms.map((one) => low.indexOf(one)).filter((place) => place >= 0);
    const start = Math.max(0, Math.min(...places, low.length) - 40);
    const from = places.length && start > 0 ? section.text.indexOf(" ", start) + 1 : 0;
    return (from ? "… " : "") + section.text.slice(from, from + 140);
  }

  const KIND_NAMES = { chapter: "", error: "Error", practice: "Practice", lab: "Lab", reference: "Reference" };
  let dialog, field, list, status, asked = 0;

  function build() {
    field = make("input", { type: "search", placeholder: "Search the book", "aria-label": "Search the book",
      role: "combobox", "aria-controls": "search-hits", "aria-expanded": "true", autocomplete: "off", spellcheck: "false" });
    list = make("ul", { id: "search-hits", role: "listbox", "aria-label": "Sections found" });
    status = make("p", { class: "search-status", role: "status" });
    dialog = make("dialog", { class: "search-overlay", "aria-label": "Search" }, field, list, status);
    document.body.append(dialog);
    field.addEventListener("input", show);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.preventDefault(); dialog.close(); } // or the field would only be emptied
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) { event.preventDefault(); choose(chosen() + step); }
      if (event.key === "Enter") { event.preventDefault(); list.children[Math.max(0, chosen())]?.querySelector("a").click(); }
    });
  }
  const chosen = () => [...list.children].findIndex((one) => one.getAttribute("aria-selected") === "true");
  function choose(place) {
    const all = [...list.children];
    if (!all.length) return;
    const now = (place + all.length) % all.length;
    all.forEach((one, number) => one.setAttribute("aria-selected", String(number === now)));
    field.setAttribute("aria-activedescendant", all[now].id);
    all[now].scrollIntoView({ block: "nearest" });
  }

  async function show() {
    const turn = ++asked;
    let hits;
    try { hits = await search(field.value); } catch (error) { status.textContent = error.message; return; }
    if (turn !== asked) return;
    const root = here.replace(/_static\/$/, "");
    list.replaceChildren(...hits.map((hit, number) => make("li", { id: `search-hit-${number}`, role: "option" },
      make("a", { href: root + hit.address, tabindex: "-1" },
        make("strong", {}, hit.title),
        make("span", { class: "search-place" }, [KIND_NAMES[hit.kind], hit.page === hit.title ? "" : hit.page].filter(Boolean).join(" · ")),
        make("span", { class: "search-excerpt" }, excerpt(hit))))));
    status.textContent = !field.value.trim() ? "↑ ↓ to choose, Enter to open, Esc to close"
      : hits.length ? "" : "Nothing found. A line of a log? Try “Diagnose a log”.";
    choose(0);
  }

  function open(text = "") {
    if (!dialog) build();
    prepare().catch(() => {});
    field.value = text;
    dialog.showModal();
    field.focus();
    show();
  }

  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]") || localStorage.getItem("keys") === "off";
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); open(); }
  });
  for (const link of document.querySelectorAll("[data-search]")) {
    link.addEventListener("click", (event) => { event.preventDefault(); open(); }); // else it leads to the search page
  }
}
