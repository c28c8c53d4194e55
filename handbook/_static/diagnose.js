// "Diagnose a log": the element that reads a log and shows what the engine finds.
// The log never leaves the browser: nothing here asks the network for anything, and all text from a log
// is set as textContent.
(() => {
"use strict";
const makeEngine = window.makeDiagnoseEngine;

// -- a worker, so that the page stays responsive and Cancel is one call ----------------------------------

function run(data, files, progress) {
  let stop = () => {};
  const answer = new Promise((resolve, reject) => {
    stop = () => reject(new DOMException("cancelled", "AbortError"));
    const here = () => makeEngine(data).diagnoseFiles(files, progress).then(resolve, reject);
    let worker;
    try {
      const source = `${makeEngine}
        onmessage = ({ data: { data, files } }) => makeEngine(data)
          .diagnoseFiles(files, (part) => postMessage({ part }))
          .then((answer) => postMessage({ answer }), (error) => postMessage({ error: error.message }));`;
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      worker = new Worker(url);
      URL.revokeObjectURL(url);
    } catch {
      here();
      return;
    }
    const end = (settle, value) => { worker.terminate(); settle(value); };
    stop = () => end(reject, new DOMException("cancelled", "AbortError"));
    worker.onerror = (event) => { event.preventDefault(); worker.terminate(); here(); };
    worker.onmessage = ({ data: message }) => {
      if (message.answer) end(resolve, message.answer);
      else if (message.error) end(reject, new Error(message.error));
      else progress(message.part);
    };
    worker.postMessage({ data, files });
  });
  return { answer, stop: () => stop() };
}

// -- the element ------------------------------------------------------------------------------------------

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

// The little Markdown that our own texts use: code, bold, links to https, roles (as their text).
function inline(text, trusted) {
  const parts = [];
  const pattern = /\{[a-z:-]+\}`([^`<]*?)\s*(?:<[^`>]*>)?`|`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\((https:\/\/[^)\s]+)\)/g;
  let at = 0;
  for (const m of text.matchAll(pattern)) {
    parts.push(inert(text.slice(at, m.index)));
    if (m[1] !== undefined) parts.push(m[1]);
    else if (m[2] !== undefined) parts.push(make("code", {}, inert(m[2])));
    else if (m[3] !== undefined) parts.push(make("strong", {}, m[3]));
    else parts.push(trusted ? make("a", { href: m[5] }, m[4]) : inert(m[0]));
    at = m.index + m[0].length;
  }
  parts.push(inert(text.slice(at)));
  return parts;
}

function markdown(text, trusted) {
  const blocks = [];
  let paragraph = [], list = null, fence = null;
  const flush = () => {
    if (paragraph.length) blocks.push(make("p", {}, ...inline(paragraph.join(" "), trusted)));
    paragraph = [];
  };
  for (const line of text.split("\n")) {
    if (line.trim().startsWith("```")) {
      flush();
      if (fence) { blocks.push(make("pre", { tabindex: "0" }, fence.join("\n"))); fence = null; } else fence = [];
      list = null;
    } else if (fence) fence.push(line);
    else if (/^\s*(?:[-*]|\d+\.) /.test(line)) {
      flush();
      if (!list) blocks.push((list = make("ul")));
      list.append(make("li", {}, ...inline(line.replace(/^\s*(?:[-*]|\d+\.) /, ""), trusted)));
    } else if (!line.trim()) { flush(); list = null; }
    else if (list && /^\s+/.test(line)) list.lastChild.append(" ", ...inline(line.trim(), trusted));
    else { list = null; paragraph.push(line.trim()); }
  }
  flush();
  if (fence) blocks.push(make("pre", { tabindex: "0" }, fence.join("\n")));
  return blocks;
}

class DiagnoseLog extends HTMLElement {
  connectedCallback() {
    if (this.data) return;
    this.data = JSON.parse(this.querySelector('script[type="application/json"]').textContent);
    this.text = make("textarea", { id: "diagnose-text", rows: "7", spellcheck: "false", autocomplete: "off" });
    this.file = make("input", { type: "file", id: "diagnose-file", multiple: "" });
    this.go = make("button", { type: "button" }, "Diagnose the text");
    this.cancel = make("button", { type: "button", hidden: "" }, "Cancel");
    this.bar = make("progress", { max: "1", value: "0", hidden: "", "aria-label": "Part of the log that was read" });
    this.state = make("p", { class: "diagnose-state", role: "status" });
    this.results = make("div", { class: "diagnose-results" });
    const drop = make("div", { class: "diagnose-drop" },
      make("label", { for: "diagnose-file" }, "Or choose log files, or drop them here (plain or .gz; a file per rank is fine)"),
      this.file);
    this.append(make("div", { class: "diagnose-form" },
      make("label", { for: "diagnose-text" }, "Paste what the ranks printed"), this.text,
      make("div", { class: "diagnose-row" }, this.go, this.cancel, this.bar), drop, this.state), this.results);
    this.classList.add("diagnose-ready");

    this.go.addEventListener("click", () => this.start([new Blob([this.text.value])]));
    this.file.addEventListener("change", () => this.file.files.length && this.start([...this.file.files]));
    this.cancel.addEventListener("click", () => this.job && this.job.stop());
    this.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("diagnose-over"); });
    this.addEventListener("dragleave", () => drop.classList.remove("diagnose-over"));
    this.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("diagnose-over");
      if (event.dataTransfer.files.length) this.start([...event.dataTransfer.files]);
      else this.text.value = event.dataTransfer.getData("text/plain");
    });
  }

  async start(files) {
    if (this.job) this.job.stop();
    this.results.replaceChildren();
    if (files.every((file) => file.size === 0)) {
      this.state.textContent = "There is no text yet: paste a log, or choose a file that is not empty.";
      return;
    }
    const job = (this.job = run(this.data, files, (part) => { this.bar.value = part; }));
    this.cancel.hidden = this.bar.hidden = false;
    this.bar.value = 0;
    this.state.textContent = "Reading…";
    let answer = null;
    try {
      answer = await job.answer;
      if (this.job === job) this.show(answer);
    } catch (error) {
      if (this.job === job)
        this.state.textContent = error.name === "AbortError" ? "Cancelled." : `${inert(error.message)}.`;
    }
    if (this.job !== job) return;
    this.job = null;
    this.cancel.hidden = this.bar.hidden = true;
    this.dispatchEvent(new CustomEvent("diagnosed", { detail: answer }));
  }

  show({ characters, diagnoses }) {
    const count = characters.toLocaleString("en");
    if (!diagnoses.length) {
      this.state.textContent = `Nothing in the log is known to the handbook (${count} characters read). What to collect next:`;
      this.results.append(make("ul", {}, ...this.data.tables.nothing_known.map((one) => make("li", {}, ...inline(one, true)))));
      return;
    }
    const answers = diagnoses.length === 1 ? "1 diagnosis" : `${diagnoses.length} diagnoses`;
    this.state.textContent = `${answers} from ${count} characters. First: ${inert(diagnoses[0].title)}.`;
    const list = make("ol", { class: "diagnose-list" });
    for (const one of diagnoses.slice(0, 10)) list.append(this.diagnosis(one));
    this.results.append(list);
  }

  diagnosis(one) {
    const entry = this.data.entries.some((known) => known.id === one.id);
    const rank = one.rank === null ? "" : `, rank ${one.rank}${one.ranks.length > 1 ? " first" : ""}`;
    const lines = make("pre", { class: "diagnose-evidence", tabindex: "0" });
    for (const line of one.evidence) {
      const where = `${line.source ? `${inert(line.source)}:` : "line "}${line.line_number}`;
      const who = line.rank === null ? "" : ` rank ${line.rank}`;
      lines.append(make("span", { class: "diagnose-where" }, `${where}${who}  `), inert(line.text), "\n");
    }
    const part = (label, text) => (text ? [make("p", { class: "diagnose-label" }, label), ...markdown(text, entry)] : []);
    const item = make("li", { "data-id": one.id },
      make("h3", {}, ...inline(one.title, entry)),
      make("p", { class: "diagnose-id" }, make("code", {}, one.id), rank), lines,
      make("p", {}, one.why), ...part("Cause", one.cause), ...part("Fix", one.fix), ...part("To be sure", one.collect));
    if (one.followed.length) {
      item.append(make("p", { class: "diagnose-label" }, "What followed from it"), make("ul", {}, ...one.followed.map((f) => {
        const who = f.evidence.rank === null ? "" : `, first on rank ${f.evidence.rank}`;
        return make("li", {}, ...inline(f.title, false), ` (${f.count}×${who}, line ${f.evidence.line_number})`);
      })));
    }
    if (entry) item.append(make("p", {}, make("a", { href: `${this.getAttribute("errors")}${one.id}.html` }, "Its page")));
    return item;
  }
}

customElements.define("ddp-diagnose", DiagnoseLog);
})();
