// "Diagnose a log": an answer of the engine as elements, and as a report to copy.
// All text from a log is set as textContent.
// With _ext/explorers/diagnose_page.py.
(() => {
"use strict";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // strings become text nodes
  return element;
}

// Text from a log, with what cannot be seen written as an escape.
function inert(text) {
  return text.replace(/[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g,
    (c) => (c < "\x80" ? `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}` : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`));
}

// The color that the rank has in the whole book.
function colored(element, rank) {
  if (Number.isInteger(rank)) element.style.setProperty("--rank", `var(--rank-${rank % 8})`);
  return element;
}

// -- the little Markdown that our own texts use ---------------------------------------------------------------

// Roles become their text. What quotes a log is not trusted: no link, and a star in it is a star.
const MARKS = /\{[a-z:-]+\}`([^`<]*?)\s*(?:<[^`>]*>)?`|``?([^`]+)``?|\*\*([^*]+)\*\*|\*([^*\s](?:[^*]*[^*\s])?)\*|\[([^\]]+)\]\((https:\/\/[^)\s]+)\)/g;

function inline(text, trusted, code = (one) => [make("code", { class: "literal" }, one)]) {
  const parts = [];
  let at = 0;
  for (const m of text.matchAll(MARKS)) {
    parts.push(inert(text.slice(at, m.index)));
    if (m[1] !== undefined) parts.push(m[1]);
    else if (m[2] !== undefined) parts.push(...code(inert(m[2])));
    else if (!trusted) parts.push(inert(m[3] ?? m[0]));
    else if (m[3] !== undefined) parts.push(make("strong", {}, ...inline(m[3], true)));
    else if (m[4] !== undefined) parts.push(make("em", {}, ...inline(m[4], true)));
    else parts.push(make("a", { href: m[6] }, m[5]));
    at = m.index + m[0].length;
  }
  parts.push(inert(text.slice(at)));
  return parts;
}

function markdown(text, trusted, code) {
  const blocks = [];
  let paragraph = [], list = null, fence = null;
  const flush = () => {
    if (paragraph.length) blocks.push(make("p", {}, ...inline(paragraph.join(" "), trusted, code)));
    paragraph = [];
  };
  const close = () => { blocks.push(...copied(fence.join("\n"))); fence = null; };
  for (const line of text.split("\n")) {
    if (line.trim().startsWith("```")) {
      flush();
      if (fence) close(); else fence = [];
      list = null;
    } else if (fence) fence.push(line);
    else if (/^\s*(?:[-*]|\d+\.) /.test(line)) {
      flush();
      if (!list) blocks.push((list = make(/^\s*\d/.test(line) ? "ol" : "ul")));
      list.append(make("li", {}, ...inline(line.replace(/^\s*(?:[-*]|\d+\.) /, ""), trusted, code)));
    } else if (!line.trim()) { flush(); list = null; }
    else if (list && /^\s+/.test(line)) list.lastChild.append(" ", ...inline(line.trim(), trusted, code));
    else { list = null; paragraph.push(line.trim()); }
  }
  flush();
  if (fence) close();
  return blocks;
}

// -- what can be copied ------------------------------------------------------------------------------------

function copyButton(text, words = "Copy", about = "") {
  const button = make("button", { type: "button", class: "diagnose-copy", ...(about && { "aria-label": about }) }, words);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not copied: the browser forbids it";
    setTimeout(() => { button.textContent = words; }, 2000);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // an old browser, or a page without a secure context
    const field = make("textarea", { class: "diagnose-hidden", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

function copied(text) {
  return [make("div", { class: "diagnose-code" }, make("pre", { tabindex: "0" }, text), copyButton(text, "Copy", "Copy this code"))];
}

// A command, or a variable to set, which a reader types as it stands; of the texts "To be sure" only, since these look and change nothing.
const COMMAND = /^(?:[A-Z][A-Z0-9_]+=\S|(?:cat|ddplab|df|dmesg|getent|ibstat|ip|kubectl|ls|nc|nvidia-\S+|pip|ping|py-spy|python|sacct|ss|torchrun|ulimit) )/;
const command = (text) => [make("code", { class: "literal" }, text), ...(COMMAND.test(text) ? [" ", copyButton(text, "Copy", `Copy ${text}`)] : [])];

// -- an answer ----------------------------------------------------------------------------------------------

const label = (words) => make("p", { class: "diagnose-label" }, words);
const place = (line) => `${line.source ? `${inert(line.source)}:` : "line "}${line.line_number}${line.rank === null ? "" : `, rank ${line.rank}`}`;

function lines(one) {
  const shown = make("pre", { class: "diagnose-evidence", tabindex: "0" });
  for (const line of one.evidence) shown.append(make("span", { class: "diagnose-where" }, `${place(line)}  `), inert(line.text), "\n");
  return shown;
}

// A reason as a sentence of its own, also where the engine gives the part of one.
const sentence = (text) => text.replace(/^(?!torchrun)\p{Ll}/u, (letter) => letter.toUpperCase()).replace(/(?<![.!?])$/, ".");

// What all answers say below their titles.
function body(one, entry) {
  const part = (words, text, code) => (text ? [label(words), ...markdown(text, Boolean(entry), code)] : []);
  const found = [lines(one), ...part("Cause", one.cause), ...part("Fix", one.fix)];
  if (one.collect) found.push(make("div", { class: "diagnose-next" }, ...part("Run next, to be sure", one.collect, command)));
  if (one.followed.length) {
    found.push(label("What followed from it"), make("ul", {}, ...one.followed.map((f) => {
      const who = f.evidence.rank === null ? "" : `, first on rank ${f.evidence.rank}`;
      return make("li", {}, ...inline(f.title, false), ` (${f.count}×${who}, line ${f.evidence.line_number})`);
    })));
  }
  return found;
}

// -- the report ------------------------------------------------------------------------------------------------

const VERSIONS = {
  torch: /\b(?:py)?torch(?:[ _]version)?[ :=v]{1,3}(\d+\.\d+\.\d+[\w.+]*)/i,
  NCCL: /NCCL(?: |_)version[ :]{1,2}(\d+\.\d+[\w.+]*)/i,
  CUDA: /\bCUDA(?: |_)?version[ :=]{1,3}(\d+\.\d+[\w.]*)/i,
  Python: /\bpython(?:[ :=]{1,3})?(3\.\d+(?:\.\d+)?)/i,
};

// Those that the beginning of the log names.
function versions(text) {
  return Object.entries(VERSIONS).map(([name, pattern]) => [name, pattern.exec(text)]).filter(([, m]) => m).map(([name, m]) => `${name} ${m[1]}`);
}

// An answer as Markdown, for an issue or a message.
function report(answer, first, suspect, seen) {
  const code = (line) => `    ${place(line)}: ${inert(line.text)}`;
  const parts = [`**${inert(first.title)}** (\`${first.id}\`)`];
  if (suspect) parts.push(`Suspect: rank ${suspect.rank}. ${sentence(suspect.why)}`);
  if (!suspect || suspect.why !== first.why) parts.push(first.why);
  parts.push(first.evidence.map(code).join("\n"));
  for (const [words, text] of [["Cause", first.cause], ["Fix", first.fix], ["To be sure", first.collect]])
    if (text) parts.push(`${words}:`, text.trim());
  const others = [...first.followed.map((f) => `- ${inert(f.title)} (followed, ${f.count}×)`),
    ...answer.diagnoses.slice(1, 4).map((one) => `- ${inert(one.title)} (\`${one.id}\`)`)];
  if (others.length) parts.push("Also in the log:", others.join("\n"));
  if (seen.length) parts.push(`Versions that the log names: ${seen.join(", ")}`);
  return `${parts.join("\n\n")}\n`;
}

window.ddpDiagnose = { make, inert, colored, inline, markdown, sentence, body, copyButton, report, versions };
})();
