// A figure in a dialog as large as the screen, where it can be enlarged and moved; Esc or Close goes back.
// With conf.py, figures.css.
"use strict";

const dialog = document.createElement("dialog");
dialog.className = "enlarged";
dialog.setAttribute("aria-label", "Figure, enlarged");
const bar = document.createElement("div");
bar.className = "enlarged-bar";
dialog.append(bar);
let figure, home, width;

function button(text, label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function scale(factor) {
  width = Math.min(Math.max(width * factor, innerWidth - 16), 4000);
  figure.style.width = `${width}px`;
}

// The drawing itself moves there and back: a copy would have its ids twice in the page.
function enlarge(holder) {
  figure = holder.querySelector("svg.figure");
  home = { holder, width: figure.style.width };
  holder.style.minHeight = `${holder.offsetHeight}px`;
  width = figure.getBoundingClientRect().width;
  dialog.append(figure);
  scale(1.4);
  dialog.showModal();
  dialog.scrollTo(0, 0);
}

dialog.addEventListener("close", () => {
  figure.style.width = home.width;
  home.holder.append(figure);
  home.holder.style.minHeight = "";
});
bar.append(
  button("−", "Smaller", () => scale(1 / 1.4)),
  button("+", "Larger", () => scale(1.4)),
  button("Close", "Close", () => dialog.close()),
);

for (const holder of document.querySelectorAll("article .figure-svg:has(svg.figure)")) {
  if (holder.closest(".opening, .explorer-instead")) continue; // drawn for a phone
  const place = document.createElement("div");
  place.className = "enlarge-place";
  const enlarger = button("Enlarge", "Enlarge the figure", () => enlarge(holder));
  enlarger.className = "enlarge";
  place.append(enlarger);
  holder.prepend(place);
  if (!dialog.isConnected) document.body.append(dialog);
}
