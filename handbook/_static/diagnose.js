// "Diagnose a log": the element that reads a log and shows what the engine finds.
// The log never leaves the browser: nothing here asks the network for anything.
// With _ext/explorers/diagnose_page.py, diagnose.css.
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

const { make, inert, colored, inline, markdown, sentence, body, copyButton, report, versions, timeline } = window.ddpDiagnose;
const KEPT = "diagnose-text"; // the key in the tab's own storage
const HEAD = 1 << 18; // bytes of the first log that are looked through for versions

class DiagnoseLog extends HTMLElement {
  connectedCallback() {
    if (this.data) return;
    const [data, logs] = [...this.querySelectorAll('script[type="application/json"]')].map((one) => JSON.parse(one.textContent));
    this.data = data;
    const part = (name) => this.querySelector(name);
    this.text = part("textarea");
    this.file = part("input[type=file]");
    this.cancel = part(".diagnose-cancel");
    this.bar = part("progress");
    this.keep = part(".diagnose-keep input");
    this.state = part(".diagnose-state");
    this.results = part(".diagnose-results");
    const drop = part(".diagnose-drop");
    this.classList.add("diagnose-ready");

    const read = () => { this.store(); this.start([new Blob([this.text.value])]); };
    part(".diagnose-go").addEventListener("click", read);
    for (const [number, chip] of this.querySelectorAll(".diagnose-try").entries())
      chip.addEventListener("click", () => { this.text.value = logs[number]; read(); });
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
    const kept = this.kept((storage) => storage.getItem(KEPT));
    this.keep.checked = typeof kept === "string";
    if (kept) this.text.value = kept;
    this.keep.addEventListener("change", () => this.store(true));
    this.text.addEventListener("change", () => this.store());
  }

  // Some browsers give a page from a file no storage, and none has room for everything.
  kept(act) {
    try { return act(sessionStorage); } catch { return undefined; }
  }

  store(asked = false) {
    if (!this.keep.checked) {
      if (asked) this.kept((storage) => storage.removeItem(KEPT));
      return;
    }
    const done = this.kept((storage) => { storage.setItem(KEPT, this.text.value); return true; });
    if (done) return;
    this.keep.checked = false;
    this.kept((storage) => storage.removeItem(KEPT));
    this.state.textContent = "The browser cannot keep this text: it is too long, or this page has no storage.";
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
      const head = await files[0].slice(0, HEAD).text();
      if (this.job === job) this.show(answer, versions(head));
    } catch (error) {
      if (this.job === job)
        this.state.textContent = error.name === "AbortError" ? "Cancelled." : `${inert(error.message)}.`;
    }
    if (this.job !== job) return;
    this.job = null;
    this.cancel.hidden = this.bar.hidden = true;
    this.dispatchEvent(new CustomEvent("diagnosed", { detail: answer }));
  }

  show(answer, seen) {
    const { diagnoses, suspect, nothing } = answer, count = answer.characters.toLocaleString("en");
    if (nothing) {
      this.state.textContent = `${nothing.title} (${count} characters read).`;
      this.results.append(...markdown(nothing.text, true), ...markdown(nothing.collect.map((one) => `- ${one}`).join("\n"), true));
      if (diagnoses.length) this.results.append(make("h3", {}, "Notices in it, which explain no failure"), ...diagnoses.map((one) => this.other(one)));
      return;
    }
    const [first, ...others] = diagnoses;
    const answers = others.length ? `${diagnoses.length} diagnoses` : "1 diagnosis";
    this.state.textContent = `${answers} from ${count} characters. First: ${inert(first.title)}.`;
    const verdict = this.verdict(first, suspect, report(answer, first, suspect, seen));
    this.results.append(verdict);
    if (answer.timeline.length > 1) this.results.append(timeline(answer.timeline, suspect));
    if (others.length) this.results.append(make("h3", {}, "If that is not it"), ...others.slice(0, 9).map((one) => this.other(one)));
    verdict.focus({ preventScroll: true });
    verdict.scrollIntoView();
  }

  entry(one) {
    return this.data.entries.find((known) => known.id === one.id);
  }

  title(one) {
    return inline(one.title, Boolean(this.entry(one)));
  }

  verdict(one, suspect, text) {
    const who = suspect ? [colored(make("strong", { class: "diagnose-rank" }, `Suspect: rank ${suspect.rank}`), suspect.rank), " "] : [];
    const words = one.role === "consequence" ? "A consequence; its cause is not in this log" : "Most likely";
    return make("article", { class: "diagnose-verdict", "data-id": one.id, tabindex: "-1", "aria-labelledby": "diagnose-title" },
      make("p", { class: "diagnose-label" }, words), make("h2", { id: "diagnose-title" }, ...this.title(one)),
      ...(suspect ? [make("p", { class: "diagnose-why" }, ...who, ...inline(sentence(suspect.why), false))] : []),
      make("p", { class: suspect ? "diagnose-seen" : "diagnose-why" }, ...inline(one.why, false)),
      ...body(one, this.entry(one)),
      make("p", { class: "diagnose-row" }, copyButton(text, "Copy report"), ...this.page(one)));
  }

  other(one) {
    const rank = one.rank === null ? "" : `, rank ${one.rank}${one.ranks.length > 1 ? " first" : ""}`;
    return make("details", { class: "diagnose-other", "data-id": one.id },
      make("summary", {}, ...this.title(one), make("span", { class: "diagnose-where" }, rank)),
      make("p", {}, ...inline(one.why, false)), ...body(one, this.entry(one)), make("p", {}, ...this.page(one)));
  }

  page(one) {
    return this.entry(one) ? [make("a", { href: `${this.getAttribute("errors")}${one.id}.html` }, "Its page, with what each rank shows")] : [];
  }
}

customElements.define("ddp-diagnose", DiagnoseLog);
})();
