// The settings of reveal.js for all decks, and `?dark` or `?light` in the address to choose a scheme.
// With slides/conf.py.
const asked = new URLSearchParams(location.search);
for (const scheme of ["dark", "light"]) {
  if (asked.has(scheme)) document.documentElement.style.colorScheme = scheme;
}
const shape = window.innerHeight / window.innerWidth;
const upright = shape > 1; // a phone: as much on a slide, set in a column
const deckConfig = {
  width: upright ? 660 : 1280,
  height: upright ? Math.round(660 * shape) : Math.round(1280 * Math.min(Math.max(shape, 9 / 16), 3 / 4)), // 16:9 to 4:3
  margin: 0,
  minScale: 0.1,
  maxScale: 4,
  center: false,
  hash: true,
  navigationMode: "linear",
  slideNumber: "c/t",
  transition: "none",
  backgroundTransition: "none",
  controlsTutorial: false,
  scrollActivationWidth: null,
  pdfSeparateFragments: false,
};
