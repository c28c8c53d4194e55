// Remembers which edition the reader has chosen, and leads from the default edition's pages to it.
// Without this script, or where nothing can be kept, the switch is a row of links.
// With _ext/embed/edition_switch.py.
{
  const kept = {
    get: () => { try { return localStorage.getItem("edition"); } catch { return null; } },
    set: (name) => { try { localStorage.setItem("edition", name); } catch { /* no choice is kept */ } },
  };
  const others = new Map(document.currentScript.dataset.others.split(" ").map((one) => one.split("=")));
  const chosen = others.get(kept.get());
  if (chosen) location.replace(chosen + location.search + location.hash);

  addEventListener("click", (event) => {
    const link = event.target.closest?.(".edition-switch a[data-edition]");
    if (!link) return;
    kept.set(link.dataset.edition);
    // Stay in the section that is being read.
    const above = [...document.querySelectorAll("article section[id]")].filter((s) => s.getBoundingClientRect().top < 120);
    link.search = location.search;
    link.hash = above.length > 1 ? above.at(-1).id : "";
  });
}
