// Along with the reading: the section in the header, how far one is, and the contents at the right. And a few keys.
// With _ext/navigation/orientation.py, orientation.css.
{
  const root = document.documentElement, header = document.querySelector("header.mobile-header");
  const article = document.querySelector("article"), said = document.querySelector(".where-section");
  const bar = document.querySelector(".reading-progress"), contents = document.querySelector(".toc-scroll");

  // -- the section that is being read -------------------------------------------------------------------

  const headings = [...article.querySelectorAll("h2, h3")].filter((one) => one.closest("section"));
  const words = (heading) => [...heading.childNodes].filter((one) => !one.classList?.contains("headerlink"))
    .map((one) => one.textContent).join("").trim();
  const entries = new Map([...document.querySelectorAll(".toc-tree a[href^='#']")].map((one) => [one.hash.slice(1), one]));
  let shown = null, entry = null, waiting = false;

  function follow() {
    waiting = false;
    const line = header.offsetHeight + 0.2 * innerHeight, all = root.scrollHeight - innerHeight;
    const title = article.querySelector("h1");
    root.classList.toggle("reading", !!title && title.getBoundingClientRect().bottom < header.offsetHeight);
    bar.style.transform = `scaleX(${all > 0 ? Math.min(1, Math.max(0, scrollY / all)) : 0})`;
    const past = headings.filter((one) => one.getBoundingClientRect().top < line);
    const heading = past.at(-1) ?? null;
    if (heading !== shown) {
      shown = heading;
      said.textContent = heading ? words(heading) : "";
    }
    // At the top nothing is marked: a section that opens while the page comes would move the contents.
    mark(scrollY > 0 ? past.findLast((one) => entries.has(one.closest("section").id)) : undefined);
  }

  // The contents at the right: the entry of this section, which stays in view. CSS folds what is not around it.
  function mark(heading) {
    const now = heading ? entries.get(heading.closest("section").id) : null;
    if (now === entry) return;
    entry?.removeAttribute("aria-current");
    document.querySelectorAll(".toc-tree li.reading").forEach((one) => one.classList.remove("reading"));
    entry = now;
    if (!entry) return;
    entry.setAttribute("aria-current", "location");
    for (let one = entry.closest("li"); one; one = one.parentElement.closest("li")) one.classList.add("reading");
    const place = entry.getBoundingClientRect(), frame = contents.getBoundingClientRect();
    if (place.top < frame.top + 60 || place.bottom > frame.bottom - 60)
      contents.scrollTo({ top: contents.scrollTop + place.top - frame.top - frame.height / 3, behavior: "instant" });
  }

  const soon = () => { waiting ||= !!requestAnimationFrame(follow); };
  addEventListener("scroll", soon, { passive: true });
  addEventListener("resize", soon);
  follow();
  const here = document.querySelector(".book-nav [aria-current]"), rail = here?.closest(".sidebar-scroll");
  if (rail && here.offsetTop > rail.clientHeight - 40) rail.scrollTo({ top: here.offsetTop - rail.clientHeight / 2, behavior: "instant" });

  // -- keys: none of them while one types, and all of them can be turned off ----------------------------

  const KEYS = [["/", "search the book"], ["n", "next chapter"], ["p", "previous chapter"], ["?", "these keys"]];
  const off = () => { try { return localStorage.getItem("keys") === "off"; } catch { return false; } };
  let dialog;

  function showKeys() {
    if (!dialog) {
      dialog = document.createElement("dialog");
      dialog.className = "keys-overlay";
      dialog.setAttribute("aria-labelledby", "keys-title");
      dialog.innerHTML = `<h2 id="keys-title">Keys</h2><dl>${KEYS.map(([key, does]) => `<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`).join("")}</dl>
        <label><input type="checkbox"> Single keys work on these pages</label><form method="dialog"><button>Close</button></form>`;
      const box = dialog.querySelector("input");
      box.addEventListener("change", () => { try { localStorage.setItem("keys", box.checked ? "on" : "off"); } catch { /* this page only */ } });
      document.body.append(dialog);
    }
    dialog.querySelector("input").checked = !off();
    dialog.showModal();
  }

  const button = document.querySelector(".show-keys");
  button.hidden = false;
  button.addEventListener("click", showKeys);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || off()) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable], [role=slider]")) return;
    if (event.key === "?") { event.preventDefault(); showKeys(); }
    const to = { n: "next", p: "prev" }[event.key];
    const link = to && document.querySelector(`link[rel="${to}"]`);
    if (link) location.href = link.href;
  });
}
