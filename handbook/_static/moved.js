// An old address leads on: that of a section to where its answer stands now, that of a page to the one in its place.
// With _ext/navigation/redirects.py.
"use strict";
const leadOn = () => {
  const section = document.getElementById(location.hash.slice(1));
  const page = document.querySelector(".moved-page a");
  const to = section?.matches(".moved") ? section.querySelector("a") : page;
  if (!to) return;
  to.hash ||= location.hash;
  location.replace(to.href);
};
addEventListener("hashchange", leadOn);
leadOn();
