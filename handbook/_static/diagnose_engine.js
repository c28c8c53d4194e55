// The engine of `ddplab diagnose`, in the browser: the control flow of gallery/ddplab/diagnose, file by file.
// Patterns, word lists, limits and texts are data, which the page gets from tables.toml and the entries.
// A test reads the same logs with both engines and compares the answers.
// With _ext/explorers/diagnose_page.py.
"use strict";

// One function without outer names, because a worker is made from its source.
window.makeDiagnoseEngine = function makeEngine(data) {
  const { limits, words, marks, why: sentences, answers, says, suspects, general } = data.tables;
  const pattern = (source, flags = "") => new RegExp(source, `u${flags}`);
  const patterns = Object.fromEntries(Object.entries(data.tables.patterns).map(([name, source]) => [name, pattern(source)]));
  const prefixes = data.tables.prefixes.map((one) => [one.kind, pattern(one.pattern, "y")]);
  const [factKinds, ends, errors] = ["facts", "ends", "errors"]
    .map((name) => data.tables[name].map((one) => ({ ...one, pattern: pattern(one.pattern) })));
  const escapes = pattern(data.tables.patterns.ansi, "g");

  // lines.py

  function readLine(raw) {
    let text = raw.includes("\x1b") ? raw.replace(escapes, "") : raw;
    text = text.replace(/^[\r\0]+|[\r\0]+$/g, "");
    const front = text.slice(0, limits.prefix_chars);
    let at = 0, rank = null, strong = false, time = null, level = "";
    for (let n = 0; n < limits.prefixes; n++) {
      let kind = "", m = null;
      for (const [name, prefix] of prefixes) {
        if (name === "logger" && time === null && level === "") continue;
        prefix.lastIndex = at;
        if ((m = prefix.exec(front))) { kind = name; break; }
      }
      if (!m || m[0] === "") break;
      at += m[0].length;
      if (kind === "rank") { rank = +m[1]; strong = true; }
      else if (kind === "label") rank = rank === null ? +m[1] : rank;
      else if (kind === "iso") time = time || isoTime(m);
      else if (kind === "syslog") time = time || localTime(words.months.indexOf(m[1]) + 1, m[2], m[3], m[4], m[5], "");
      else if (kind === "us") time = time || localTime(m[1], m[2], m[3], m[4], m[5], "");
      else if (kind === "level") level = level || m[1][0];
      else if (kind === "glog") {
        level = m[1];
        time = time || (m[2] ? localTime(m[2], m[3], m[4], m[5], m[6], m[7]) : null);
      }
    }
    const glued = rank === null ? patterns.glued.exec(front.slice(at)) : null;
    if (glued) { rank = +(glued[1] || glued[2]); strong = true; }
    const warning = level === "W" || (level === "" && patterns.warning.test(front));
    const logged = time !== null || level !== "";
    return { text, body: text.slice(at), rank, strong, time, warning, logged, severe: "ECF".includes(level || " ") };
  }

  function clock(hour, minute, second, fraction) {
    return hour * 3600 + minute * 60 + +second + (fraction ? +`0.${fraction}` : 0);
  }

  function localTime(month, day, hour, minute, second, fraction) {
    return { zoned: false, seconds: (+month * 31 + +day) * 86400 + clock(hour, minute, second, fraction) };
  }

  function isoTime([, year, month, day, hour, minute, second, fraction, zone]) {
    if (!zone) return localTime(month, day, hour, minute, second, fraction);
    const midnight = Date.UTC(+year, month - 1, +day);
    if (new Date(midnight).getUTCDate() !== +day || +month < 1 || +month > 12) return null;
    const offset = zone === "Z" ? 0 : (zone.slice(1, 3) * 60 + +zone.slice(-2)) * 60 * (zone[0] === "+" ? 1 : -1);
    return { zoned: true, seconds: midnight / 1000 + clock(hour, minute, second, fraction) - offset };
  }

  function summaryTime(text) {
    const iso = prefixes.find(([kind]) => kind === "iso")[1];
    iso.lastIndex = 0;
    const m = iso.exec(text.trim() + " ");
    return m ? isoTime(m) : null;
  }

  // unwrap.py

  let wrapped = ""; // not yet a whole piece

  function unwrapped(piece) {
    const text = wrapped + piece, most = limits.unwrap_chars, ready = [];
    let at = 0;
    while (text.length - at > most) {
      const end = text.lastIndexOf("\n", at + most - 1) + 1;
      ready.push(unwrap(text.slice(at, end > at ? end : at + most)));
      at = end > at ? end : at + most;
    }
    wrapped = text.slice(at);
    return ready.join("");
  }

  function unwrap(text) {
    let lines = text.split("\n");
    const width = lines.reduce((most, line) => Math.max(most, line.length), 0);
    if (text.includes('{"')) lines = lines.map((line) => unpacked(line, limits.json_depth));
    else if (limits.wrap_least <= width && width <= limits.wrap_most && isCut(lines, width)) lines = joined(lines, width);
    else return text;
    return lines.join("\n");
  }

  function unpacked(line, depth) {
    const m = line.includes('{"') && depth ? patterns.json.exec(line) : null;
    let content;
    try { content = m && JSON.parse(m[2]); } catch { return line; }
    if (!content) return line;
    const text = valueIn(content, words.json_text, limits.json_depth);
    const trace = valueIn(content, words.json_trace, limits.json_depth);
    if (!text && !trace) return line;
    const [time, level, rank] = [words.json_time, words.json_level, words.json_rank]
      .map((names) => names.map((name) => content[name]).find((one) => one !== undefined && one !== null));
    let front = m[1];
    if (typeof time === "string" && patterns.json_time.test(time)) front += `${time} `;
    if (typeof level === "string" && words.levels.includes(level.toUpperCase())) front += `${level.toUpperCase()} `;
    if (patterns.json_rank.test(String(rank))) front += `[${rank}]: `;
    const both = text && trace ? `${text}\n${trace}` : text || trace;
    const plain = both.replace(/\r\n?/g, "\n").replaceAll("\0", "").replace(/^\n+|\n+$/g, "");
    return plain.split("\n").slice(0, limits.json_lines).map((one) => unpacked(front + one, depth - 1)).join("\n\r");
  }

  function valueIn(content, names, depth) {
    for (const name of names) {
      let value = Object.hasOwn(content, name) ? content[name] : null;
      if (depth && value && typeof value === "object" && !Array.isArray(value)) value = valueIn(value, names, depth - 1);
      if (typeof value === "string" && value.trim()) return value;
    }
    return "";
  }

  function begins(line, above) {
    const stem = (one) => one.slice(0, 3).replace(/[0-9]/g, "0");
    const prefixed = () => prefixes.some(([, prefix]) => { prefix.lastIndex = 0; return prefix.test(line); });
    return !line || prefixed() || patterns.begins.test(line) || line[0] === "\r" || stem(line) === stem(above);
  }

  function isCut(lines, width) {
    const below = [];
    lines.slice(0, -1).forEach((line, at) => { if (line.length === width) below.push([line, lines[at + 1]]); });
    if (new Set(below.map(([line]) => line)).size < 2) return false;
    const rest = below.filter(([line, after]) => !begins(after, line));
    const odd = rest.filter(([, after]) => patterns.continues.test(after)).length;
    return rest.length >= 2 && 4 * rest.length >= 3 * below.length && 2 * odd >= rest.length;
  }

  function joined(lines, width) {
    const made = [];
    for (let at = 0; at < lines.length; ) {
      let end = at + 1;
      while (end < lines.length && end - at < limits.wrap_pieces && lines[end - 1].length === width
          && !begins(lines[end], lines[end - 1])) end++;
      made.push(lines.slice(at, end).join("") + "\0".repeat(end - at - 1));
      at = end;
    }
    return made;
  }

  // reading.py

  function ranksOf(paths) {
    const ranks = paths.map((path) => {
      const m = patterns.folder_rank.exec(path) || patterns.file_rank.exec(path);
      return m ? +m[1] : null;
    });
    if (paths.length > 1 && ranks.every((rank) => rank === null)) {
      const forms = paths.map((path) => patterns.file_number.exec(path));
      if (forms.every((m) => m && m[1] === forms[0][1] && m[3] === forms[0][3])) {
        const numbers = forms.map((m) => +m[2]);
        if (new Set(numbers).size === numbers.length && Math.max(...numbers) < 2 * numbers.length) return numbers;
      }
    }
    return ranks;
  }

  // encoding.py

  function encodingOf(head, name) {
    for (const { magic, at = 0, what, todo } of data.tables.packed) {
      const bytes = magic.match(/../g).map((two) => parseInt(two, 16));
      if (bytes.every((one, index) => head[at + index] === one))
        throw new Error(`${name} is ${what}, not a text log; ${fill(todo, { name })}`);
    }
    const marked = { "255,254": "utf-16le", "254,255": "utf-16be" }[`${head[0]},${head[1]}`];
    if (!marked && !wide(head) && isBinary(head))
      throw new Error(`${name} is not a text log, it holds binary data; give what the ranks printed`);
    return marked || wide(head) || "utf-8";
  }

  function wide(bytes) {
    const head = bytes.subarray(0, 4096), most = limits.utf16_part, least = 1 - limits.utf16_part;
    const part = (rest) => {
      const own = head.filter((_, at) => at % 2 === rest);
      return own.filter((one) => one === 0).length / Math.max(own.length, 1);
    };
    const [even, odd] = [part(0), part(1)];
    return odd > most && even < least ? "utf-16le" : even > most && odd < least ? "utf-16be" : "";
  }

  function isBinary(bytes) {
    const head = bytes.subarray(0, 65536);
    let odd = 0, length = 0;
    for (let at = 0; at < head.length; at++) {
      let end = at; // runs of zeros do not count
      while (head[end] === 0) end++;
      if (end - at >= 16) { at = end - 1; continue; }
      const b = head[at];
      length++;
      if (b < 32 && b !== 9 && b !== 10 && b !== 13 && b !== 8 && b !== 12 && b !== 27) odd++;
    }
    return odd * 20 > length && odd >= 2;
  }

  // engine.py

  const known = new Map(data.entries.map((entry) => [entry.id, entry]));
  const matches = data.entries.flatMap((entry) => entry.matches.map(([needle, regex, nearby, weight]) => ({
    entry, needle, nearby, weight, regex: regex ? pattern(regex) : null,
  })));
  const markNames = Object.values(marks);
  const runs = Object.keys(marks).filter((name) => name.startsWith("run_")).map((name) => marks[name]);
  const needles = [...matches.map((m) => m.needle), ...markNames, ...factKinds.map((one) => one.needle)];
  // One search for all needles
  const anyNeedle = new RegExp(needles.map((one) => one.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&")).join("|"), "g");
  const nearTries = new Array(matches.length).fill(0);
  const newFindings = (sources, started, firstLine) => ({
    sources, found: new Map(), groups: new Map(), exits: [], agentExits: [], started, firstLine, written: false,
    facts: new Map(), lastErrors: new Map(), ended: [], last: [], dismissed: new Set(), tails: [],
  });
  let findings = newFindings([], null, 1);
  const earlier = []; // runs that ended above in the same file
  let source = { name: "", rank: null };
  let buffer = "", scanned = 0, number = 1, held = "", lanes = new Map(), busy = 0, tidyAt = 0;

  function start(name, rank) {
    endFile();
    source = { name, rank };
    findings.sources.push(source);
  }

  function feed(piece) {
    if (!findings.sources.length) findings.sources.push(source);
    let text = held + piece.replaceAll("\0", "");
    held = "";
    if (text.endsWith("\r")) { text = text.slice(0, -1); held = "\r"; }
    if (text.includes("\r")) text = text.replaceAll("\r\n", "\n").replaceAll("\r", "\n\r");
    append(unwrapped(text));
  }

  function append(text) {
    let at = 0;
    while (at < text.length) {
      const take = limits.block_chars - (buffer.length - scanned);
      buffer += text.slice(at, at + take);
      at += take;
      if (buffer.length - scanned >= limits.block_chars) {
        scan(linesBack(buffer.length, scanned + limits.block_chars / 2));
        const keep = linesBack(scanned, Math.max(0, scanned - limits.block_chars / 2));
        buffer = buffer.slice(keep);
        scanned -= keep;
      }
    }
  }

  function finish() {
    endFile();
    return answerTo([...earlier, findings]);
  }

  function endFile() {
    append(unwrap(wrapped));
    wrapped = "";
    scan(buffer.length);
    noteEnd();
    for (const lane of lanes.values())
      if (lane.summary && lane.root && lane.summary.rank !== null) findings.exits.push(lane.summary);
    buffer = ""; scanned = 0; number = 1; held = ""; busy = 0; lanes = new Map(); tidyAt = 0;
  }

  // indexOf and lastIndexOf within [from, to), as Python's find and rfind
  function find(needle, from, to) {
    const at = buffer.indexOf(needle, from);
    return at >= 0 && at + needle.length <= to ? at : -1;
  }

  function rfind(from, to) {
    if (to <= from) return -1;
    const at = buffer.lastIndexOf("\n", to - 1);
    return at >= from ? at : -1;
  }

  function linesBack(position, least) {
    let found = position;
    for (let n = 0; n < limits.around; n++) {
      const at = rfind(least, found - 1);
      if (at < 0) return least ? found : 0;
      found = at + 1;
    }
    return found;
  }

  function scan(end) {
    const begin0 = scanned;
    if (end <= begin0) return;
    noteBeginning(begin0, end);
    const lines = new Map();
    const block = begin0 === 0 && end === buffer.length ? buffer : buffer.slice(begin0, end);
    anyNeedle.lastIndex = 0;
    for (let m; (m = anyNeedle.exec(block)); ) {
      const begin = m.index === 0 ? 0 : block.lastIndexOf("\n", m.index - 1) + 1;
      let stop = block.indexOf("\n", m.index);
      if (stop < 0) stop = block.length;
      const line = block.slice(begin, stop), on = [];
      for (let index = 0; index < needles.length; index++) if (line.includes(needles[index])) on.push(index);
      lines.set(begin0 + begin, on);
      anyNeedle.lastIndex = stop;
    }
    const starts = [...lines.keys()].sort((a, b) => a - b);
    let at = begin0, nextHit = 0;
    for (;;) {
      while (nextHit < starts.length && starts[nextHit] < at) nextHit++;
      const begin = busy ? at : nextHit < starts.length ? starts[nextHit] : end;
      if (begin >= end) break;
      count(at, begin);
      let stop = find("\n", begin, end);
      if (stop < 0) stop = end;
      const on = lines.get(begin) || [];
      readOne(begin, stop, on);
      at = Math.min(stop + 1, end);
      if (on.length && on[0] >= matches.length) at = runOfEqual(begin, at, end, limits.open_tracebacks);
      count(begin, at);
    }
    count(at, end);
    scanned = end;
  }

  function runOfEqual(begin, end, most, few) {
    const line = buffer.slice(begin, end), width = end - begin;
    if (!buffer.startsWith(line.repeat(few), end)) return end;
    while (end + width <= most && buffer.startsWith(line, end)) end += width;
    return end;
  }

  function count(from, to) {
    for (let at = buffer.indexOf("\n", from); at >= 0 && at < to; at = buffer.indexOf("\n", at + 1))
      if (buffer[at + 1] !== "\r") number++;
    for (let at = buffer.indexOf("\0", from); at >= 0 && at < to; at = buffer.indexOf("\0", at + 1)) number++;
  }

  function readOne(begin, stop, hits) {
    const own = hits.filter((index) => index >= matches.length).map((index) => needles[index]);
    if (own.some((mark) => runs.includes(mark))) startRun();
    if (busy && number >= tidyAt) giveUpOld();
    const line = readLine(buffer.slice(begin, stop));
    const rank = rankOf(line);
    let lane = lanes.get(rank);
    if (!lane) {
      if (lanes.size >= limits.ranks_kept) return;
      lane = { open: [], closed: null, chained: null, spawned: null, summary: null, summaryLeft: 0, root: false, lastError: 0 };
      lanes.set(rank, lane);
    }
    if (lane.summary) summaryLine(lane, line);
    let hit = null;
    if (lane.lastError) {
      if (--lane.lastError === 0) busy--;
      if (line.body.trim()) {
        if (lane.lastError) { lane.lastError = 0; busy--; }
        if (!findings.lastErrors.has(rank)) findings.lastErrors.set(rank, makeHit(line, rank, begin));
      }
    }
    const [frame, closed] = tracebackLine(lane, line, rank, begin, own.includes(marks.traceback));
    if (frame) return;
    for (const index of hits) {
      if (index < matches.length && fits(index, line, rank, begin, stop)) {
        hit = hit || makeHit(line, closed ? closed.rank : rank, begin);
        show(hit, line.text, matches[index].needle);
        note(index, hit);
        explain(lane, matches[index].entry, line, closed);
      }
    }
    let m;
    if (own.includes(marks.chain) || own.includes(marks.caused)) lane.chained = lane.closed ? lane.closed.group : null;
    if (own.includes(marks.process) && (m = patterns.spawned.exec(line.body))) lane.spawned = +m[1];
    if (own.includes(marks.exit_code) && (m = patterns.agent_exit.exec(line.body)) && findings.agentExits.length < limits.ranks_kept) {
      hit = hit || makeHit(line, rank, begin);
      findings.agentExits.push({ rank: +m[2], code: +m[1], hit, time: hit.time, codeHit: null });
    }
    if (own.includes(marks.root) || (own.includes(marks.failures) && line.body.trim() === marks.failures)) {
      if (!lane.summary) busy++;
      lane.root = own.includes(marks.root);
      const top = lane.root ? makeHit(line, rank, begin) : null;
      lane.summary = { rank: null, code: null, hit: top, time: null, codeHit: null };
      lane.summaryLeft = limits.summary_lines;
    }
    if (own.includes(marks.last_error)) {
      const rest = line.text.slice(line.text.indexOf(marks.last_error) + marks.last_error.length).trim();
      if (rest && !findings.lastErrors.has(rank)) findings.lastErrors.set(rank, makeHit(line, rank, begin));
      busy += (rest ? 0 : 1) - (lane.lastError ? 1 : 0);
      lane.lastError = rest ? 0 : limits.last_error_lines;
    }
    for (const index of hits) {
      const fact = index - matches.length - markNames.length;
      if (fact >= 0) noteFact(factKinds[fact], line, rank, begin);
    }
  }

  function startRun() {
    const old = findings;
    const over = old.exits.length || old.agentExits.length || [...old.groups.values()].some((group) => group.uncaught);
    if (old.sources.length !== 1 || !over) return;
    earlier.push(old);
    earlier.splice(0, earlier.length - limits.runs_kept);
    findings = newFindings(old.sources, old.started, number);
    lanes = new Map();
    busy = 0;
  }

  function noteBeginning(from, end) {
    findings.written = findings.written || /\S/.test(buffer.slice(from, end));
    if (number !== 1) return;
    let at = from;
    for (let n = 0; n < limits.first_lines; n++) {
      const stop = find("\n", at, end), { time } = readLine(buffer.slice(at, stop >= 0 ? stop : end));
      const { started } = findings;
      if (time && (!started || (time.zoned === started.zoned && time.seconds < started.seconds))) findings.started = time;
      if (time || stop < 0) break;
      at = stop + 1;
    }
  }

  function noteEnd() {
    const place = lastError();
    if (place) {
      const line = readLine(buffer.slice(...place)), hit = makeHit(line, rankOf(line), place[0]);
      const rest = buffer.slice(place[0]), many = (text) => rest.split(text).length - 1;
      hit.number = number - many("\n") + many("\n\r") - many("\0");
      const [name, message] = exceptionOf(line) || ["", line.body];
      if (hit.number >= findings.firstLine) findings.last.push({ hit, name, message });
    }
    const tail = buffer.slice(linesBack(buffer.length, 0)).split("\n").filter((line) => line.trim());
    findings.tails.push(tail.reverse().slice(0, limits.tail_lines));
  }

  function giveUpOld() {
    for (const lane of lanes.values()) {
      const kept = lane.open.filter((one) => number - one.start < limits.traceback_span);
      busy -= lane.open.length - kept.length;
      lane.open = kept;
    }
    tidyAt = number + Math.floor(limits.traceback_span / 4);
  }

  function rankOf(line) {
    return line.strong || source.rank === null ? line.rank : source.rank;
  }

  function makeHit(line, rank, begin) {
    const [text, body] = [line.text, line.body].map((one) => one.slice(0, limits.text_kept));
    return { source, number, rank, text, body, time: line.time, warning: line.warning, begin };
  }

  function show(hit, text, needle) {
    const at = text.indexOf(needle);
    if (at > 2 * limits.text_before)
      hit.text = hit.body = "…" + text.slice(at - limits.text_before).slice(0, limits.text_kept);
  }

  function fits(index, line, rank, begin, stop) {
    const { entry, needle, regex, nearby } = matches[index];
    if (regex) {
      const near = Math.max(line.text.indexOf(needle), 0);
      if (!regex.test(line.text.slice(Math.max(near - limits.regex_before, 0), near + limits.regex_after))) return false;
    }
    if (!nearby || line.text.includes(nearby)) return true;
    const found = findings.found.get(entry.id);
    if (found && found.ranks.has(rank)) return true;
    if (nearTries[index] >= limits.near_tries) return false;
    const above = linesBack(begin, 0);
    let below = stop;
    for (let n = 0; n < limits.around; n++) {
      const at = buffer.indexOf("\n", below + 1);
      if (at < 0) { below = buffer.length; break; }
      below = at;
    }
    if (find(nearby, above, below) < 0) return false;
    nearTries[index]++;
    return near(buffer.slice(above, begin).split("\n").slice(0, -1).reverse(), nearby, rank)
      || near(buffer.slice(stop + 1, below).split("\n"), nearby, rank);
  }

  function near(lines, text, rank) {
    let left = limits.near;
    for (const raw of lines) {
      const other = rank !== null ? rankOf(readLine(raw)) : null;
      if (other === null || other === rank) {
        if (raw.includes(text)) return true;
        if (--left === 0) return false;
      }
    }
    return false;
  }

  function note(index, hit) {
    const { entry, weight } = matches[index];
    let found = findings.found.get(entry.id);
    if (!found) {
      found = { ranks: new Map(), count: 0, weight: 0, onlyWarnings: true, last: null };
      findings.found.set(entry.id, found);
    }
    found.weight = Math.max(found.weight, weight);
    const [lastSource, lastNumber, lastBegin] = found.last || [];
    if (lastSource === source && lastNumber === number && lastBegin === hit.begin) return;
    found.last = [source, number, hit.begin];
    found.count++;
    found.onlyWarnings = found.onlyWarnings && hit.warning;
    if (!found.ranks.has(hit.rank) && found.ranks.size < limits.ranks_kept) found.ranks.set(hit.rank, timed(hit));
  }

  function timed(hit) {
    if (hit.time === null) {
      let left = limits.near;
      for (const raw of buffer.slice(linesBack(hit.begin, 0), hit.begin).split("\n").slice(0, -1).reverse()) {
        const line = readLine(raw), rank = rankOf(line);
        if (rank === null || hit.rank === null || rank === hit.rank) {
          if (line.time) { hit.time = line.time; break; }
          if (--left === 0) break;
        }
      }
    }
    return hit;
  }

  function tracebackLine(lane, line, rank, begin, header) {
    const body = line.body;
    let m;
    if (header && (m = patterns.traceback.exec(body))) {
      let before = lane.chained;
      if (!before && m[2].startsWith("Original ") && lane.closed) before = lane.closed.group;
      if (lane.summary && lane.summary.rank !== null) rank = lane.summary.rank;
      if (lane.spawned !== null) rank = lane.spawned;
      const above = buffer.slice(rfind(0, Math.max(begin - 1, 0)) + 1, begin);
      if (lane.open.length >= limits.open_tracebacks) { lane.open.shift(); busy--; }
      lane.open.push({
        rank, indent: m[1].length, ignored: patterns.ignored.test(above), start: number, logged: line.logged, linesLeft: limits.traceback_lines, inFrame: false,
        where: "", whereHit: null, anywhere: "", mostOpen: 1, times: 0, before, end: -1, group: null,
        outermost: lane.spawned !== null, thread: patterns.thread.test(above),
      });
      lane.chained = null;
      lane.spawned = null;
      if (lane.lastError) { lane.lastError = 0; busy--; }
      busy++;
      return [true, null];
    }
    if (!lane.open.length) return [false, null];
    const current = lane.open[lane.open.length - 1];
    if ((m = patterns.frame.exec(body) || patterns.rich_frame.exec(body) || patterns.cell_frame.exec(body))) {
      const place = `${m[2]}:${m[3]}` + (m[4] ? ` in ${m[4].trim()}` : "");
      for (const one of lane.open) {
        one.inFrame = true;
        one.linesLeft = limits.traceback_lines;
        if (!one.anywhere && words.outermost.includes((m[4] || "").trim())) one.outermost = true;
        one.times = place === one.anywhere ? one.times + 1 : 1;
        one.mostOpen = Math.max(one.mostOpen, lane.open.length);
        one.anywhere = place;
        if (!patterns.library_file.test(m[2])) {
          one.where = place;
          one.whereHit = makeHit(line, one.rank, begin);
        }
      }
      return [true, null];
    }
    if (current.inFrame && patterns.rich.test(body)) return [true, null];
    const indent = body.length - body.replace(/^ +/, "").length;
    if (current.inFrame && indent > current.indent && body.trim()) return [true, null];
    m = patterns.exception.exec(body);
    if (m && indent === current.indent && !words.levels.includes(m[2]) && line.logged <= current.logged
        && (patterns.exception_name.test(m[2]) || (current.inFrame && (rank !== null || m[2].includes("."))))) {
      lane.open.pop();
      busy--;
      lane.closed = current;
      current.end = number;
      current.strong = line.strong;
      if (current.times < current.mostOpen) { current.where = current.anywhere = ""; current.whereHit = null; }
      close(current, m[2], m[3] || "", makeHit(line, current.rank, begin));
      return [false, current];
    }
    if (--current.linesLeft <= 0) { lane.open.pop(); busy--; }
    return [false, null];
  }

  function close(traceback, kind, message, hit) {
    const name = kind.split(".").pop();
    if (traceback.ignored || words.wrappers.includes(name)) {
      if (findings.dismissed.size < limits.ranks_kept) findings.dismissed.add(`${hit.source.name}\n${hit.number}`);
      return;
    }
    const where = traceback.where || traceback.anywhere;
    const key = JSON.stringify([name, message.slice(0, 120).replace(/\d+/g, "#"), where]);
    let group = findings.groups.get(key);
    if (!group) {
      if (findings.groups.size >= limits.groups_kept) return;
      group = {
        name, message: message.slice(0, limits.text_kept), where, ranks: new Map(), whereHit: null, count: 0,
        uncaught: false, thread: traceback.thread, explained: new Set(), before: null, after: null,
      };
      findings.groups.set(key, group);
    }
    group.count++;
    group.uncaught = group.uncaught || traceback.strong || traceback.outermost;
    group.thread = group.thread && traceback.thread;
    traceback.group = group;
    if (traceback.before && traceback.before !== group) {
      group.before = group.before || traceback.before;
      traceback.before.after = traceback.before.after || group;
    }
    if (!group.ranks.has(hit.rank) && group.ranks.size < limits.ranks_kept) {
      group.ranks.set(hit.rank, timed(hit));
      if (traceback.whereHit && !group.whereHit) group.whereHit = traceback.whereHit;
    }
  }

  function explain(lane, entry, line, closed) {
    let traceback = closed;
    const apart = entry.role === "consequence" || words.scheduler.some((name) => line.text.startsWith(name));
    if (!traceback && lane.closed && line.logged <= lane.closed.logged && !apart) {
      const close = limits.message_lines * Math.max(1, Math.min(lanes.size, 64));
      if (number - lane.closed.end <= close) traceback = lane.closed;
    }
    if (traceback && traceback.group) traceback.group.explained.add(entry.id);
  }

  function summaryLine(lane, line) {
    const block = lane.summary, body = line.body;
    lane.summaryLeft--;
    if (patterns.summary_end.test(body) || lane.summaryLeft <= 0) {
      if (lane.root) {
        if (block.rank === null) return;
        if (findings.exits.length < limits.ranks_kept) findings.exits.push(block);
      }
      lane.summary = null;
      lane.root = false;
      busy--;
      return;
    }
    let m;
    if ((m = patterns.summary_time.exec(body))) block.time = summaryTime(m[1]);
    else if ((m = patterns.summary_rank.exec(body))) block.rank = +m[1];
    else if ((m = patterns.summary_exit_code.exec(body))) {
      if (block.code !== +m[1] && findings.ended.length < limits.ranks_kept)
        findings.ended.push({ rank: block.rank, code: +m[1], hit: makeHit(line, block.rank, 0) });
      block.code = +m[1];
      if (block.hit) block.codeHit = makeHit(line, block.rank, 0);
    }
  }

  // facts.py

  function noteFact({ kind, pattern: numbers }, line, rank, begin) {
    const m = numbers.exec(line.text), group = patterns.process_group.exec(line.text);
    if (!m) return;
    if (kind === "init" || kind === "unused") rank = +m[1];
    const key = JSON.stringify([group ? group[1] : "", rank, kind === "init" ? m[3] : ""]);
    if (!findings.facts.has(kind)) findings.facts.set(kind, new Map());
    const kept = findings.facts.get(kind);
    if (kept.has(key) || kept.size >= limits.ranks_kept) return;
    kept.set(key, { hit: timed(makeHit(line, rank, begin)), values: m.slice(1).map((one) => one || ""), group: group ? group[1] : "" });
  }

  const factsOf = (kind) => [...(findings.facts.get(kind) || new Map()).values()];

  function factsByRank(kind) {
    const groups = new Map();
    for (const fact of factsOf(kind)) {
      if (fact.hit.rank === null) continue;
      if (!groups.has(fact.group)) groups.set(fact.group, new Map());
      const own = groups.get(fact.group);
      if (!own.has(fact.hit.rank)) own.set(fact.hit.rank, fact);
    }
    return [...groups.values()].reduce((best, one) => (one.size > best.size ? one : best), new Map());
  }

  function worldSize() {
    const said = ["came", "init"].flatMap((kind) => factsOf(kind).map((one) => +one.values[1]));
    return Math.max(0, ...said, ...factsOf("counted").map((one) => +one.values[0]));
  }

  function unfinished() {
    const [began, ended] = ["START", "COMPLETE"]
      .map((word) => new Set(factsOf("init").filter((one) => one.values[2] === word).map((one) => +one.values[0])));
    return [...began].filter((rank) => !ended.has(rank)).sort((a, b) => a - b);
  }

  const sorted = (numbers) => [...numbers].sort((a, b) => a - b);
  const numberOf = (fact) => (fact.values[0] ? +fact.values[0] : null);

  function whatOf({ values: [, operation, elements] }) {
    return elements && words.same_sizes.includes(operation) ? `${operation} of ${elements} elements` : operation;
  }

  function ranksAt(ranks, place) { // from what they wait in to who waits there
    const places = new Map();
    for (const rank of ranks) {
      if (!places.has(place(rank))) places.set(place(rank), []);
      places.get(place(rank)).push(rank);
    }
    return places;
  }

  function factSentences() {
    const said = [], waits = factsByRank("timeout");
    const places = ranksAt(sorted(waits.keys()), (rank) => {
      const n = numberOf(waits.get(rank));
      return whatOf(waits.get(rank)) + (n === null ? "" : ` #${n}`);
    });
    const who = [...places].map(([what, ranks]) => [what, ranksText(ranks)]);
    if (who.length === 1)
      said.push(fill(says.timeouts, { who: who[0][1][0].toUpperCase() + who[0][1].slice(1), what: who[0][0] }));
    else if (who.length)
      said.push(fill(says.diverged, { each: who.slice(0, 4).map(([what, ranks]) => `${ranks}: ${what}`).join("; ") }));
    const least = Math.min(...factsOf("timeout").map((one) => +one.values[4]));
    if (0 < least && least < limits.short_timeout_ms) said.push(fill(says.short, { seconds: Math.floor(least / 1000) }));
    for (const [kind, came, expected] of [["came", 0, 1], ["counted", 1, 0]])
      for (const { values } of factsOf(kind).slice(-1))
        if (values[came] !== values[expected]) said.push(fill(says.came, { came: values[came], expected: values[expected] }));
    for (const { values } of factsOf("unused").slice(0, 4))
      said.push(fill(says.unused, { rank: values[0], indices: values[1].trim().split(/\s+/).slice(0, 20).join(", ") }));
    for (const { values } of factsOf("port").slice(0, 1)) said.push(fill(says.port, { port: values[0] }));
    for (const { values } of factsOf("interface").slice(0, 1)) said.push(fill(says.interface, { interface: values[0] }));
    return said;
  }

  // suspect.py

  function suspectOf(best, root) {
    const waiting = !best || best.kind > GENERIC || (best.entry && best.entry.family === "peer");
    return (waiting ? null : reporting(best, root)) || byNumbers();
  }

  function reporting(best, root) {
    const line = best.hits[0].number, { exit } = best;
    if (exit) return exit.rank === null ? null : { rank: exit.rank, why: fill(suspects.exit, { code: exit.code, line }) };
    const ranks = [...new Set(best.hits.map((hit) => hit.rank))].filter((rank) => rank !== null);
    const what = `“${shortened(best.entry ? best.entry.title : best.group ? best.group.name : best.id, 80)}”`;
    if (root && root.rank !== null && (ranks.includes(root.rank) || !ranks.length))
      return { rank: root.rank, why: fill(suspects.root, { what, line }) };
    if (ranks.length !== 1) return null;
    const others = best.below.some((one) => one.hits.some((hit) => hit.rank !== null && hit.rank !== ranks[0]));
    return { rank: ranks[0], why: fill(others ? suspects.first : suspects.alone, { what, line }) };
  }

  function byNumbers() {
    for (const kind of ["absent", "unfinished"])
      for (const { hit, values } of factsOf(kind)) {
        const ranks = values[0].replaceAll(",", " ").trim().split(/\s+/);
        if (ranks.length === 1 && ranks[0]) return { rank: +ranks[0], why: fill(suspects[kind], { number: values[1], line: hit.number }) };
      }
    const waits = factsByRank("timeout");
    return diverged(waits) || behind(waits) || silent(waits);
  }

  function diverged(waits) {
    for (const [number, ranks] of ranksAt(sorted(waits.keys()), (rank) => numberOf(waits.get(rank)))) {
      const places = ranksAt(ranks, (rank) => whatOf(waits.get(rank)));
      const alone = [...places.keys()].filter((what) => places.get(what).length === 1);
      if (number === null || places.size !== 2 || alone.length !== 1) continue;
      const [rank] = places.get(alone[0]), others = [...places.keys()].find((what) => what !== alone[0]);
      return { rank, why: fill(suspects.diverged, { own: alone[0], others, line: waits.get(rank).hit.number }) };
    }
    return null;
  }

  function behind(waits) {
    const work = [...factsByRank("work")];
    const counts = [
      ["enqueued", work.map(([rank, one]) => [+one.values[0], rank, one])],
      ["completed", work.map(([rank, one]) => [+one.values[1], rank, one])],
      ["waits", [...waits].filter(([, one]) => numberOf(one) !== null).map(([rank, one]) => [numberOf(one), rank, one])],
    ];
    for (const [kind, all] of counts) {
      const [first, second] = all.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      if (second && first[0] < second[0])
        return { rank: first[1], why: fill(suspects[kind], { own: first[0], others: second[0], line: first[2].hit.number }) };
    }
    return null;
  }

  function silent(waits) {
    const world = Math.max(worldSize(), ...[...waits.keys()].map((rank) => rank + 1)), missing = [];
    for (let rank = 0; rank < Math.min(world, waits.size + 2); rank++) if (!waits.has(rank)) missing.push(rank);
    if (waits.size !== world - 1 || missing.length !== 1) return null;
    return { rank: missing[0], why: fill(suspects.silent, { world }) };
  }

  // nothing.py

  function lastError() {
    let best = [-1, -1];
    for (const mark of words.last_marks) {
      let at = buffer.length;
      for (let n = 0; n < limits.last_tries && at > 0; n++) {
        at = at >= mark.length ? buffer.lastIndexOf(mark, at - mark.length) : -1;
        if (at < 0 || at < best[0]) break;
        const begin = at > 0 ? buffer.lastIndexOf("\n", at - 1) + 1 : 0;
        let stop = buffer.indexOf("\n", at);
        if (stop < 0) stop = buffer.length;
        if (begin > best[0] && looksLikeError(readLine(buffer.slice(begin, stop)), isAtEnd(stop))) best = [begin, stop];
        at = begin;
      }
    }
    return best[0] >= 0 ? best : null;
  }

  function isAtEnd(stop) {
    const rest = [];
    for (let at = stop; rest.length <= limits.last_lines + 1; ) {
      const end = buffer.indexOf("\n", at);
      rest.push(buffer.slice(at, end < 0 ? buffer.length : end));
      if (end < 0) break;
      at = end + 1;
    }
    return rest.length <= limits.last_lines + 1 && !rest.some((one) => exceptionOf(readLine(one)));
  }

  function looksLikeError(line, atEnd) {
    const named = exceptionOf(line);
    if (named) return !words.wrappers.includes(named[0]);
    return line.severe || errors.some((one) => (atEnd || !one.at_end) && one.pattern.test(line.body));
  }

  function exceptionOf(line) {
    const m = patterns.exception.exec(line.body);
    if (!m || m[2].endsWith("Warning") || !patterns.exception_name.test(m[2])) return null;
    return [m[2].split(".").pop(), m[3] || ""];
  }

  function nothingFound() {
    let kind = findings.written ? "no-error" : "empty", end = "", more = "";
    const hang = (one) => { kind = "hang"; end = one.end; more = one.collect; };
    for (const raw of findings.tails.flat()) {
      const one = kind === "hang" ? null : ends.find((other) => other.pattern.test(readLine(raw).text));
      if (one) hang(one);
    }
    const stuck = unfinished();
    if (stuck.length) hang(ends.find((one) => one.end.includes("NCCL")));
    const { title, text, collect } = data.tables.nothing[kind];
    const said = stuck.length ? ` ${fill(says.stuck, { who: ranksText(stuck) })}` : "";
    return { kind, title: fill(title, { end }), text: text + said, collect: [more, ...collect].filter(Boolean) };
  }

  // candidates.py

  // best first, as class Kind
  const [FIRST, CAUSE, KILLED, EXCEPTION, EXIT, GENERIC, CONSEQUENCE, WARNING, STOPPED] = Array(9).keys();
  const TERMINATED = [-15, 143];

  function candidate(fields) {
    return { kind: 0, weight: 0, explains: [], entry: null, group: null, exit: null, last: null, place: 0, below: [], ...fields };
  }

  function rootExit() {
    let best = null;
    for (const one of findings.exits) {
      if (!best
          || (one.time && best.time && one.time.zoned === best.time.zoned && one.time.seconds < best.time.seconds)
          || (TERMINATED.includes(best.code) && !TERMINATED.includes(one.code))) best = one;
    }
    return best;
  }

  function entriesFound() {
    return [...findings.found.keys()].sort().map((id) => {
      const found = findings.found.get(id), entry = known.get(id);
      let kind = { cause: CAUSE, generic: GENERIC, consequence: CONSEQUENCE, warning: WARNING }[entry.role];
      const explains = entry.explains.some((other) => findings.found.has(other));
      if (found.onlyWarnings && kind !== CONSEQUENCE && !explains) kind = WARNING;
      return candidate({
        id, role: entry.role, kind, weight: found.weight, hits: [...found.ranks.values()], count: found.count,
        explains: entry.explains, entry,
      });
    });
  }

  function exceptions() {
    const made = [];
    for (const group of findings.groups.values()) {
      if (group.explained.size) continue;
      const chain = [group];
      for (let one = group.before; one && !chain.includes(one) && chain.length < 8; one = one.before) chain.push(one);
      for (let one = group.after; one && !chain.includes(one) && chain.length < 16; one = one.after) chain.push(one);
      if (chain.some((other) => [...other.explained].some((id) => known.get(id).role === "cause"))) continue;
      if (group.after && !group.after.explained.size && group.after !== group) continue;
      const stopped = words.stops.includes(group.name);
      made.push(candidate({
        id: stopped ? "stopped" : "python-exception", role: "generic",
        kind: stopped ? STOPPED : group.thread ? GENERIC : EXCEPTION,
        hits: [...group.ranks.values()], count: group.count, group,
      }));
    }
    return made;
  }

  function firstExit(root, found) {
    const one = root || findings.agentExits.find((exit) => !TERMINATED.includes(exit.code)) || null;
    if (!one || one.code === null || one.code === 0 || !one.hit) return null;
    const number = one.code < 0 ? -one.code : one.code > 128 ? one.code - 128 : 0;
    const signal = data.tables.signals.find((known) => known.number === number);
    const sudden = Boolean(signal && signal.sudden);
    for (const other of found) {
      const ranks = new Set(other.hits.map((hit) => hit.rank)), ofRoot = !root || ranks.has(root.rank);
      if (other.kind === CAUSE) {
        if (!sudden || ofRoot || ranks.has(null)) return null;
      } else if ((other.kind === EXCEPTION || other.kind === GENERIC) && (ofRoot || (!sudden && ranks.has(null)))) return null;
    }
    const id = signal ? signal.id : number > 0 && number <= 64 ? `exit-signal-${number}` : "exit-code";
    if (found.some((other) => other.id === id)) return null;
    return candidate({
      id, role: "generic", kind: sudden ? KILLED : EXIT, hits: [one.codeHit || one.hit], count: 1, exit: one,
    });
  }

  function lastLines(found) {
    const name = (hit) => `${hit.source.name}\n${hit.number}`;
    const seen = new Set([...findings.dismissed, ...found.flatMap((one) => one.hits.map(name))]);
    const one = findings.last.find(({ hit }) => !seen.has(name(hit)));
    const id = one && one.name ? "python-exception" : "last-error";
    const kind = one && !one.name && found.some((other) => other.role === "cause") ? WARNING : GENERIC;
    return one ? [candidate({ id, role: "generic", kind, hits: [one.hit], count: 1, last: one })] : [];
  }

  // ranking.py

  function answerTo(all) {
    const each = [...all].reverse().map((one) => {
      findings = one;
      return [one, ranked()];
    });
    const [found, top] = each.find(([, some]) => some.some((one) => one.kind <= GENERIC)) || each[0];
    findings = found;
    const root = rootExit(), diagnoses = top.map((one) => written(one, root));
    if (top.length) diagnoses[0].why = [diagnoses[0].why, ...saidOf(top[0], all)].join(" ");
    const fails = top.some((one) => one.role !== "warning");
    return {
      diagnoses, suspect: suspectOf(fails ? top[0] : null, root), timeline: timeline(top),
      nothing: fails ? null : nothingFound(),
    };
  }

  function saidOf(best, all) {
    const said = best.kind === CONSEQUENCE || best.entry ? factSentences() : [];
    const [lastHit] = findings.lastErrors.values();
    if (lastHit && best.id.startsWith("nccl-") && best.role === "generic")
      said.push(fill(says.last_error, { text: shortened(lastHit.text.trim(), 200) }));
    if (all.indexOf(findings) > 0) said.push(fill(says.earlier, { line: findings.firstLine }));
    return said;
  }

  function putBefore(one, others) {
    one.place = Math.min(one.place, ...others.map((other) => other.place - 1));
  }

  function preferLastError(found) {
    const lines = new Set([...findings.lastErrors.values()].map((hit) => `${hit.source.name}\n${hit.number}`));
    for (const one of found) {
      if (!one.entry || !one.hits.some((hit) => lines.has(`${hit.source.name}\n${hit.number}`))) continue;
      const generic = found.filter((other) => other.role === "generic" && other.id.startsWith("nccl-") && other !== one);
      one.explains = [...one.explains, ...generic.map((other) => other.id)];
      putBefore(one, generic);
    }
  }

  function ranked() {
    const root = rootExit();
    const found = [...entriesFound(), ...exceptions()];
    const exited = firstExit(root, found);
    if (exited) found.push(exited);
    if (found.every((one) => one.kind === WARNING)) found.push(...lastLines(found));
    order(found, root);
    preferLastError(found);
    preferEarlierException(found, root);
    raiseExplainers(found);
    found.sort((a, b) => a.kind - b.kind || (a.role === "warning") - (b.role === "warning") || a.place - b.place);
    return nest(found);
  }

  function order(found, root) {
    const place = (hit) => findings.sources.indexOf(hit.source);
    const hits = found.filter((one) => !one.exit).flatMap((one) => one.hits);
    const isKnown = hits.every((hit) => hit.time) && new Set(hits.map((hit) => hit.time.zoned)).size <= 1;
    let byTime = false;
    if (isKnown) {
      let latest = 0;
      for (const hit of [...hits].sort((a, b) => place(a) - place(b) || a.number - b.number)) {
        byTime = byTime || hit.time.seconds < latest - limits.skew_s;
        latest = Math.max(latest, hit.time.seconds);
      }
    }
    const blind = findings.sources.length > 1 && !isKnown;
    const moment = (hit) => [
      byTime && hit.time ? hit.time.seconds : 0,
      !blind || !root || hit.rank === root.rank ? 0 : 1,
      place(hit),
      hit.number,
    ];
    const compare = (a, b) => {
      for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
      return 0;
    };
    for (const one of found) one.hits.sort((a, b) => compare(moment(a), moment(b)));
    const key = (one) => [...moment(one.hits[0]), -one.weight, one.id];
    [...found].sort((a, b) => compare(key(a), key(b))).forEach((one, index) => { one.place = 2 * index; });
    for (const one of found) {
      if (!one.hits.every((hit) => words.scheduler.some((name) => hit.text.startsWith(name)))) continue;
      putBefore(one, found.filter((other) => one.explains.includes(other.id)));
    }
  }

  function preferEarlierException(found, root) {
    const causes = found.filter((one) => one.kind === CAUSE);
    const first = causes.length ? Math.min(...causes.map((one) => one.place)) : -1;
    const hits = causes.flatMap((one) => one.hits).filter((hit) => !words.scheduler.some((name) => hit.text.startsWith(name)));
    const reporting = new Set(hits.map((hit) => hit.rank));
    for (const one of found) {
      if (one.kind !== EXCEPTION || one.place >= first) continue;
      let ranks = one.hits.map((hit) => hit.rank).filter((rank) => rank !== null);
      if (!ranks.length) ranks = [null];
      const seen = root !== null && ranks.includes(root.rank);
      if ((one.group.uncaught || seen) && !ranks.some((rank) => reporting.has(rank))) one.kind = FIRST;
    }
  }

  function raiseExplainers(found) {
    for (let n = 0; n < 4; n++)
      for (const one of found)
        for (const other of found)
          if (one.explains.includes(other.id) && EXIT <= other.kind && other.kind < one.kind && one.place < other.place)
            one.kind = other.kind;
  }

  function nest(found) {
    const above = (p, c) => p.kind < c.kind || (p.kind === c.kind && p.place < c.place);
    const top = [], owner = new Map();
    for (const one of found) {
      let parent = found.find((p) => p !== one && p.explains.includes(one.id) && above(p, one)) || null;
      if (!parent && (one.kind === CONSEQUENCE || one.kind === STOPPED) && found[0].kind <= GENERIC) parent = found[0];
      if (parent) owner.set(one, parent); else top.push(one);
    }
    for (const one of found) {
      if (!owner.has(one)) continue;
      let parent = owner.get(one);
      for (let n = 0; owner.has(parent) && n < found.length; n++) parent = owner.get(parent);
      parent.below.push(one);
    }
    return top;
  }

  // timeline.py

  function timeline(top) {
    const made = new Map(), kinds = ["error", "consequence", "warning", "fact"];
    const add = (kind, hit, text) => {
      const key = JSON.stringify([hit.source.name, hit.number, hit.rank]), { started } = findings;
      const seconds = hit.time && started && hit.time.zoned === started.zoned
        ? Math.floor((hit.time.seconds - started.seconds) * 1000 + 0.5) / 1000 : null;
      const line = shortened(text.replace(/[ \t]+/g, " ").replace(/^[ \r]+|[ \r]+$/g, ""), limits.timeline_chars);
      if (!made.has(key)) made.set(key, { rank: hit.rank, line: hit.number, seconds, text: line, kind });
    };
    for (const best of top)
      for (const one of [best, ...best.below]) {
        const kind = { [CONSEQUENCE]: "consequence", [WARNING]: "warning" }[one.kind] || (one === best ? "error" : "consequence");
        for (const hit of one.hits) add(kind, hit, hit.body);
      }
    for (const kept of findings.facts.values()) for (const { hit } of kept.values()) add("fact", hit, hit.body);
    for (const hit of findings.lastErrors.values()) add("fact", hit, hit.body);
    for (const { rank, code, hit } of findings.ended) add("fact", hit, fill(says.exited, { rank: rank === null ? "None" : rank, code }));
    const order = (one) => kinds.indexOf(one.kind), rankOrder = (one) => (one.rank === null ? -1 : one.rank);
    return [...made.values()].sort((a, b) => order(a) - order(b) || a.line - b.line).slice(0, limits.timeline_kept)
      .sort((a, b) => a.line - b.line || rankOrder(a) - rankOrder(b) || order(a) - order(b));
  }

  // answers.py

  function written(one, root) {
    const several = findings.sources.length > 1;
    const evidenceOf = (hit) => ({
      line_number: hit.number, rank: hit.rank, text: hit.text.trim(), source: several ? hit.source.name : "",
    });
    const evidence = one.hits.slice(0, limits.evidence_shown).map(evidenceOf);
    let ranks = [...new Set(one.hits.map((hit) => hit.rank))].filter((rank) => rank !== null).sort((a, b) => a - b);
    let rank = one.hits[0].rank !== null ? one.hits[0].rank : ranks.length ? ranks[0] : null;
    if (one.exit) {
      rank = one.exit.rank;
      ranks = rank === null ? [] : [rank];
    } else if (rank === null && root && one.kind <= GENERIC) rank = root.rank;
    const entry = one.entry || known.get(one.id), group = one.group;
    if (group && group.whereHit && group.whereHit.number !== one.hits[0].number) {
      evidence.splice(1, 0, evidenceOf(group.whereHit));
      evidence.length = Math.min(evidence.length, limits.evidence_shown);
    }
    const text = group ? ofException(one.id, group) : one.exit ? ofExit(one.id, one.exit) : one.last ? ofLast(one.id, one.last) : {};
    if (entry) {
      const { title, cause, fix, collect } = entry;
      Object.assign(text, { title: one.exit ? text.title : title, cause, fix, collect });
    }
    return {
      id: one.id, role: one.role, rank, evidence, why: why(one, rank, ranks, root) + (one.last ? sentences.last : ""),
      page: entry ? entry.page : "repair/diagnose.html", count: one.count, ranks,
      followed: one.below.map((f) => ({
        id: f.id, title: f.entry ? f.entry.title : f.group ? f.group.name : f.id, count: f.count,
        evidence: evidenceOf(f.hits[0]),
      })),
      ...text,
    };
  }

  function ranksText(ranks) {
    const runs = [];
    for (const rank of ranks) {
      const last = runs[runs.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank; else runs.push([rank, rank]);
    }
    const parts = runs.slice(0, limits.runs_shown).map(([a, b]) => (a === b ? `${a}` : b > a + 1 ? `${a}–${b}` : `${a}, ${b}`));
    return `rank${ranks.length > 1 ? "s" : ""} ${parts.join(", ")}${runs.length > limits.runs_shown ? ", …" : ""}`;
  }

  function fill(template, values) {
    return template.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  function why(one, rank, ranks, root) {
    let text = sentences.exit;
    if (!one.exit) {
      text = one.count === 1 ? sentences.once : sentences.often;
      if (ranks.length && one.hits.some((hit) => hit.rank === null)) text += sentences.some_lines;
      else text += ranks.length > 1 ? sentences.several_ranks : ranks.length ? sentences.one_rank : sentences.no_rank;
      if (root && root.rank !== null) {
        if (ranks.includes(root.rank)) text += sentences.root_too;
        else if (!ranks.length) text += sentences.root;
        else if (one.kind <= GENERIC) text += sentences.other_root;
      }
    }
    const line = one.hits[0].number;
    return fill(text, { count: one.count, ranks: ranksText(ranks), rank, line, root: root && root.rank });
  }

  function ofException(id, group) {
    const message = group.message.trim();
    const name = message ? `${group.name}: ${shortened(message, 100)}` : group.name;
    const place = group.where ? fill(sentences.place, { where: group.where }) : "";
    const text = {};
    for (const [key, one] of Object.entries(answers[id])) text[key] = fill(one, { name, type: group.name, place });
    if (Object.hasOwn(general, group.name)) text.cause += ` ${general[group.name]}`;
    if (group.before) text.cause += fill(sentences.while_handling, { before: group.before.name });
    return text;
  }

  function shortened(text, most) {
    const letters = [...text];
    return letters.length <= most ? text : letters.slice(0, most - 1).join("") + "…";
  }

  function ofLast(id, { hit, name, message }) {
    if (name) return ofException(id, { name, message, where: "" });
    const { what, next } = errors.find((one) => one.pattern.test(message)) || errors[errors.length - 1], text = {};
    for (const [key, one] of Object.entries(answers[id])) text[key] = fill(one, { name: shortened(hit.text.trim(), 100), what, next });
    return text;
  }

  function ofExit(id, exit) {
    const text = answers[id] || answers["exit-signal"], signal = data.tables.signals.find((one) => one.id === id);
    const who = exit.rank === null ? "A process" : `Rank ${exit.rank}`;
    const title = signal ? signal.title : text.title;
    return { ...text, title: fill(title, { who, code: exit.code, number: id.replace("exit-signal-", "") }) };
  }

  // files: read_text of reading.py

  async function diagnoseFiles(files, progress) {
    const names = files.map((file) => file.webkitRelativePath || file.name || "");
    const ranks = ranksOf(names);
    const total = files.reduce((sum, file) => sum + file.size, 0);
    let done = 0, characters = 0;
    for (const [index, file] of files.entries()) {
      start(names[index], ranks[index]);
      const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
      const packed = head[0] === 0x1f && head[1] === 0x8b;
      const counter = new TransformStream({
        transform(chunk, controller) { done += chunk.byteLength; controller.enqueue(chunk); },
      });
      let stream = file.stream().pipeThrough(counter);
      if (packed) stream = stream.pipeThrough(new DecompressionStream("gzip"));
      const reader = stream.getReader();
      let decoder = null, reportedAt = 0;
      for (;;) {
        let chunk;
        try {
          chunk = await reader.read();
        } catch (error) {
          if (packed) break; // cut off while it was copied: what came before is worth reading
          throw new Error(`${names[index]} cannot be read: ${error}`);
        }
        if (chunk.done) break;
        const bytes = chunk.value;
        if (!decoder && bytes.length) {
          if (!packed && bytes.every((one) => one === 0)) continue; // a log that was emptied begins so
          decoder = new TextDecoder(encodingOf(bytes, names[index]));
        }
        const text = decoder.decode(bytes, { stream: true });
        characters += text.length;
        feed(text);
        if (Date.now() - reportedAt > 100) {
          reportedAt = Date.now();
          progress(total ? done / total : 1);
          await new Promise((resume) => setTimeout(resume));
        }
      }
      if (decoder) feed(decoder.decode());
      else if (packed) throw new Error(`${names[index]} is an empty or damaged gzip file`);
    }
    return { characters, ...finish() };
  }

  return { diagnoseFiles };
};
