// "Diagnose a log": the engine of `ddplab diagnose`, ported, and the element that shows what it finds.
// The log never leaves the browser: nothing here asks the network for anything, and all text from a log
// is set as textContent. A test reads the same logs with both engines and compares the answers.
(() => {
"use strict";

// -- the engine: gallery/ddplab/diagnose/{reading,engine,ranking}.py, in the same order ------------------
// One function without outer names, because a worker is made from its source.

function makeEngine(data) {
  const BLOCK_CHARS = 1 << 21, AROUND = 400, NEAR = 20, NEAR_TRIES = 2000, RANKS_KEPT = 4096, GROUPS_KEPT = 64;
  const TEXT_KEPT = 600, REGEX_BEFORE = 1000, REGEX_AFTER = 4000, MESSAGE_LINES = 12, PREFIX_CHARS = 400;
  const TRACEBACK_LINES = 400, TRACEBACK_SPAN = 20000, SUMMARY_LINES = 30000, EVIDENCE_SHOWN = 3, SKEW_S = 2;

  // reading.py

  const ANSI = /\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])/g;
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const WARNS = /(?:[A-Za-z]*Warning: |\bWARNING\b|\[WARN(?:ING)?\])/;
  const ISO = /[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?[\])]?,?(?: - | \| |: |\s)/y;
  const GLUED = /\[rank(\d{1,6})\]:|\.cpp:\d{1,6}\] \[(?:PG [^\]]{0,120})?Rank (\d{1,6})\]/;
  const PREFIXES = [
    ["rank", /\[[Rr]ank[ :=]{0,2}(\d{1,6})\]:? ?/y],
    ["rank", /\[PG [^\]]{0,120}Rank (\d{1,6})\] ?/y],
    ["glog", /\[?([IWEF])(?:(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?(?: +\d+)? +[\w./<>+-]{1,200}:\d+\] ?/y],
    ["iso", ISO],
    ["syslog", new RegExp(`(${MONTHS.join("|")}) {1,2}(\\d{1,2}) (\\d\\d):(\\d\\d):(\\d\\d) \\S{1,80} \\S{1,80}: `, "y")],
    ["skip", /\[pod\/[^\]]{1,200}\] /y],
    ["skip", /\[\d{1,8}\] (?=\[rank)/y],
    ["skip", /[A-Za-z0-9][\w.-]*-\d+ +\| ?/y],
    ["label", /[\w.-]{1,80}:\d{1,9}:\d{1,9} \[(\d{1,3})\] (?=.{0,80}NCCL )/y],
    ["label", /\[(?:default|trainer|worker|proc|process|local_rank)?_?(\d{1,5})\]: ?/y],
    ["label", / {0,4}(\d{1,5}): /y],
    ["label", /\[\d{1,5},(\d{1,5})\]<std(?:out|err)>: ?/y],
  ];

  function readLine(raw) {
    let text = raw.includes("\x1b") ? raw.replace(ANSI, "") : raw;
    if (text[0] === "\r") text = text.slice(1);
    const front = text.slice(0, PREFIX_CHARS);
    let at = 0, rank = null, strong = false, time = null, level = "";
    for (let n = 0; n < 8; n++) {
      let kind = "", m = null;
      for (const [name, pattern] of PREFIXES) {
        pattern.lastIndex = at;
        if ((m = pattern.exec(front))) { kind = name; break; }
      }
      if (!m) break;
      at += m[0].length;
      if (kind === "rank") { rank = +m[1]; strong = true; }
      else if (kind === "label") rank = rank === null ? +m[1] : rank;
      else if (kind === "iso") time = time || isoTime(m);
      else if (kind === "syslog") time = time || localTime(MONTHS.indexOf(m[1]) + 1, m[2], m[3], m[4], m[5], "");
      else if (kind === "glog") {
        level = m[1];
        time = time || (m[2] ? localTime(m[2], m[3], m[4], m[5], m[6], m[7]) : null);
      }
    }
    const glued = rank === null ? GLUED.exec(front.slice(at)) : null;
    if (glued) { rank = +(glued[1] || glued[2]); strong = true; }
    const warning = level === "W" || (level === "" && WARNS.test(front));
    return { text, body: text.slice(at), rank, strong, time, warning, logged: time !== null || level !== "" };
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
    ISO.lastIndex = 0;
    const m = ISO.exec(text.trim() + " ");
    return m ? isoTime(m) : null;
  }

  function ranksOf(paths) {
    const ranks = paths.map((path) => {
      const m = /attempt_\d+\/(\d{1,6})\/[^/]+$/.exec(path) || /rank[_.-]?(\d{1,6})(?!.*rank[_.-]?\d)/i.exec(path);
      return m ? +m[1] : null;
    });
    if (paths.length > 1 && ranks.every((rank) => rank === null)) {
      const forms = paths.map((path) => /^(.*?)(\d{1,6})(\D*)$/.exec(path));
      if (forms.every((m) => m && m[1] === forms[0][1] && m[3] === forms[0][3])) {
        const numbers = forms.map((m) => +m[2]);
        if (new Set(numbers).size === numbers.length && Math.max(...numbers) < 2 * numbers.length) return numbers;
      }
    }
    return ranks;
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

  const HEADER = /^( *)(.{0,120}?)Traceback \(most recent call last\)(?::\s*$| ─)/;
  const FRAME = /^( +)File "([^"]{1,500})", line (\d{1,7})(?:, in (.{1,200}))?/;
  const RICH = /^\s*[│╭╰|]/, RICH_FRAME = /^(\s*)│ (\S[^│]{0,300}?):(\d{1,7}) in (\S{1,200})/;
  const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL"];
  const EXCEPTION = /^( *)((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: ?(.*)|\s*)$/;
  const SUFFIX = /(?:Error|Exception|Interrupt|Exit|Warning|Failure|Fault|Timeout|Iteration|Raised|Empty)$/;
  const FOREIGN = /[/\\](?:site-packages|dist-packages|torch|lib[/\\]python3\.\d+)[/\\]|^<(?!stdin|string|ipython)/;
  const FIELD = /^\s*(time|rank|exitcode)\s*: (.{1,200})/;
  const FAILED = /failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,5})/;
  const SPAWNED = /-- Process (\d{1,5}) terminated with the following error/;
  const WRAPPERS = ["ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "_RemoteTraceback"];
  const TRACEBACK = "Traceback (most recent call last)", CHAIN = "During handling of the above exception";
  const CAUSED = "The above exception was the direct cause", ROOT = "Root Cause (first observed failure)";
  const FAILURES = "Failures:", EXITCODE = "failed (exitcode: ", PROCESS = "-- Process ";
  const IGNORED = "Exception ignored in", THREAD = "Exception in thread ";
  const OUTERMOST = ["<module>", "_run_module_as_main", "_bootstrap"];

  const known = new Map(data.entries.map((entry) => [entry.id, entry]));
  const matches = data.entries.flatMap((entry) => entry.matches.map(([needle, regex, nearby]) => ({
    entry, needle, nearby, regex: regex ? new RegExp(regex) : null,
    weight: [...needle].length + (regex ? 20 : 0) + (nearby ? 20 : 0),
  })));
  const needles = [...matches.map((m) => m.needle), TRACEBACK, CHAIN, CAUSED, ROOT, FAILURES, EXITCODE, PROCESS];
  // One search for all needles
  const anyNeedle = new RegExp(needles.map((one) => one.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&")).join("|"), "g");
  const nearTries = new Array(matches.length).fill(0);
  const findings = { sources: [], found: new Map(), groups: new Map(), exits: [], agentExits: [] };
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
    let at = 0;
    while (at < text.length) {
      const take = BLOCK_CHARS - (buffer.length - scanned);
      buffer += text.slice(at, at + take);
      at += take;
      if (buffer.length - scanned >= BLOCK_CHARS) {
        scan(linesBack(buffer.length, scanned + BLOCK_CHARS / 2));
        const keep = linesBack(scanned, Math.max(0, scanned - BLOCK_CHARS / 2));
        buffer = buffer.slice(keep);
        scanned -= keep;
      }
    }
  }

  function finish() {
    endFile();
    return rankFindings();
  }

  function endFile() {
    scan(buffer.length);
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
    for (let n = 0; n < AROUND; n++) {
      const at = rfind(least, found - 1);
      if (at < 0) return least ? found : 0;
      found = at + 1;
    }
    return found;
  }

  function scan(end) {
    const begin0 = scanned;
    if (end <= begin0) return;
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
      readOne(begin, stop, lines.get(begin) || []);
      at = Math.min(stop + 1, end);
      if (at > stop) count(stop, at);
    }
    count(at, end);
    scanned = end;
  }

  function count(from, to) {
    for (let at = buffer.indexOf("\n", from); at >= 0 && at < to; at = buffer.indexOf("\n", at + 1))
      if (buffer[at + 1] !== "\r") number++;
  }

  function readOne(begin, stop, hits) {
    if (busy && number >= tidyAt) giveUpOld();
    const line = readLine(buffer.slice(begin, stop));
    const rank = rankOf(line);
    let lane = lanes.get(rank);
    if (!lane) {
      if (lanes.size >= RANKS_KEPT) return;
      lane = { open: [], closed: null, chained: null, spawned: null, summary: null, summaryLeft: 0, root: false };
      lanes.set(rank, lane);
    }
    if (lane.summary) summaryLine(lane, line);
    let hit = null;
    const own = hits.filter((index) => index >= matches.length).map((index) => needles[index]);
    const [frame, closed] = tracebackLine(lane, line, rank, begin, own.includes(TRACEBACK));
    if (frame) return;
    for (const index of hits) {
      if (index < matches.length && fits(index, line, rank, begin, stop)) {
        hit = hit || makeHit(line, closed ? closed.rank : rank, begin);
        note(index, hit);
        explain(lane, matches[index].entry, line, closed);
      }
    }
    let m;
    if (own.includes(CHAIN) || own.includes(CAUSED)) lane.chained = lane.closed ? lane.closed.group : null;
    if (own.includes(PROCESS) && (m = SPAWNED.exec(line.body))) lane.spawned = +m[1];
    if (own.includes(EXITCODE) && (m = FAILED.exec(line.body)) && findings.agentExits.length < RANKS_KEPT) {
      hit = hit || makeHit(line, rank, begin);
      findings.agentExits.push({ rank: +m[2], code: +m[1], hit, time: hit.time, codeHit: null });
    }
    if (own.includes(ROOT) || (own.includes(FAILURES) && line.body.trim() === FAILURES)) {
      if (!lane.summary) busy++;
      lane.root = own.includes(ROOT);
      const top = lane.root ? makeHit(line, rank, begin) : null;
      lane.summary = { rank: null, code: null, hit: top, time: null, codeHit: null };
      lane.summaryLeft = SUMMARY_LINES;
    }
  }

  function giveUpOld() {
    for (const lane of lanes.values()) {
      const kept = lane.open.filter((one) => number - one.start < TRACEBACK_SPAN);
      busy -= lane.open.length - kept.length;
      lane.open = kept;
    }
    tidyAt = number + Math.floor(TRACEBACK_SPAN / 4);
  }

  function rankOf(line) {
    return line.strong || source.rank === null ? line.rank : source.rank;
  }

  function makeHit(line, rank, begin) {
    return { source, number, rank, text: line.text.slice(0, TEXT_KEPT), time: line.time, warning: line.warning, begin };
  }

  function fits(index, line, rank, begin, stop) {
    const { entry, needle, regex, nearby } = matches[index];
    if (regex) {
      const near = Math.max(line.text.indexOf(needle), 0);
      if (!regex.test(line.text.slice(Math.max(near - REGEX_BEFORE, 0), near + REGEX_AFTER))) return false;
    }
    if (!nearby || line.text.includes(nearby)) return true;
    const found = findings.found.get(entry.id);
    if (found && found.ranks.has(rank)) return true;
    if (nearTries[index] >= NEAR_TRIES) return false;
    const above = linesBack(begin, 0);
    let below = stop;
    for (let n = 0; n < AROUND; n++) {
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
    let left = NEAR;
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
    if (!found.ranks.has(hit.rank) && found.ranks.size < RANKS_KEPT) found.ranks.set(hit.rank, timed(hit));
  }

  function timed(hit) {
    if (hit.time === null) {
      let left = NEAR;
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
    if (header && (m = HEADER.exec(body))) {
      let before = lane.chained;
      if (!before && m[2].startsWith("Original ") && lane.closed) before = lane.closed.group;
      if (lane.summary && lane.summary.rank !== null) rank = lane.summary.rank;
      if (lane.spawned !== null) rank = lane.spawned;
      const above = buffer.slice(rfind(0, Math.max(begin - 1, 0)) + 1, begin);
      if (lane.open.length >= 64) { lane.open.shift(); busy--; }
      lane.open.push({
        rank, indent: m[1].length, ignored: above.includes(IGNORED), start: number, logged: line.logged, linesLeft: TRACEBACK_LINES, inFrame: false,
        where: "", whereHit: null, anywhere: "", before, end: -1, group: null,
        outermost: lane.spawned !== null, thread: above.includes(THREAD),
      });
      lane.chained = null;
      lane.spawned = null;
      busy++;
      return [true, null];
    }
    if (!lane.open.length) return [false, null];
    const current = lane.open[lane.open.length - 1];
    if ((m = FRAME.exec(body) || RICH_FRAME.exec(body))) {
      const place = `${m[2]}:${m[3]}` + (m[4] ? ` in ${m[4].trim()}` : "");
      for (const one of lane.open) {
        one.inFrame = true;
        one.linesLeft = TRACEBACK_LINES;
        if (!one.anywhere && OUTERMOST.includes((m[4] || "").trim())) one.outermost = true;
        one.anywhere = place;
        if (!FOREIGN.test(m[2])) {
          one.where = place;
          one.whereHit = makeHit(line, one.rank, begin);
        }
      }
      return [true, null];
    }
    if (current.inFrame && RICH.test(body)) return [true, null];
    const indent = body.length - body.replace(/^ +/, "").length;
    if (current.inFrame && indent > current.indent && body.trim()) return [true, null];
    m = EXCEPTION.exec(body);
    if (m && indent === current.indent && !LEVELS.includes(m[2]) && line.logged <= current.logged
        && (SUFFIX.test(m[2]) || (current.inFrame && (rank !== null || m[2].includes("."))))) {
      lane.open.pop();
      busy--;
      lane.closed = current;
      current.end = number;
      current.strong = line.strong;
      close(current, m[2], m[3] || "", makeHit(line, current.rank, begin));
      return [false, current];
    }
    if (--current.linesLeft <= 0) { lane.open.pop(); busy--; }
    return [false, null];
  }

  function close(traceback, kind, message, hit) {
    const name = kind.split(".").pop();
    if (traceback.ignored || WRAPPERS.includes(name)) return;
    const where = traceback.where || traceback.anywhere;
    const key = JSON.stringify([name, message.slice(0, 120).replace(/\d+/g, "#"), where]);
    let group = findings.groups.get(key);
    if (!group) {
      if (findings.groups.size >= GROUPS_KEPT) return;
      group = {
        name, message: message.slice(0, TEXT_KEPT), where, ranks: new Map(), whereHit: null, count: 0,
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
    if (!group.ranks.has(hit.rank) && group.ranks.size < RANKS_KEPT) {
      group.ranks.set(hit.rank, timed(hit));
      if (traceback.whereHit && !group.whereHit) group.whereHit = traceback.whereHit;
    }
  }

  function explain(lane, entry, line, closed) {
    let traceback = closed;
    const apart = entry.role === "consequence" || SCHEDULER.some((name) => line.text.startsWith(name));
    if (!traceback && lane.closed && line.logged <= lane.closed.logged && !apart) {
      const close = MESSAGE_LINES * Math.max(1, Math.min(lanes.size, 64));
      if (number - lane.closed.end <= close) traceback = lane.closed;
    }
    if (traceback && traceback.group) traceback.group.explained.add(entry.id);
  }

  function summaryLine(lane, line) {
    const block = lane.summary, body = line.body;
    lane.summaryLeft--;
    if (body.startsWith("=====") || body.startsWith("-----") || lane.summaryLeft <= 0) {
      if (lane.root) {
        if (block.rank === null) return;
        if (findings.exits.length < RANKS_KEPT) findings.exits.push(block);
      }
      lane.summary = null;
      lane.root = false;
      busy--;
      return;
    }
    const m = FIELD.exec(body);
    let digits;
    if (!m) return;
    if (m[1] === "time") block.time = summaryTime(m[2]);
    else if (m[1] === "rank" && (digits = /^\d{1,6}/.exec(m[2]))) block.rank = +digits[0];
    else if (m[1] === "exitcode" && (digits = /^-?\d{1,4}/.exec(m[2]))) {
      block.code = +digits[0];
      if (block.hit) block.codeHit = makeHit(line, block.rank, 0);
    }
  }

  // ranking.py

  const FIRST = 0, CAUSE = 1, KILLED = 2, EXCEPT = 3, EXIT = 4, GENERIC = 5, CONSEQUENCE = 6, WARNING = 7, STOPPED = 8;
  const SCHEDULER = ["slurmstepd: ", "srun: "];
  const STOPS = ["KeyboardInterrupt", "SignalException", "SystemExit", "CalledProcessError"];
  const ENDED_FROM_OUTSIDE = [-15, 143];

  function rankFindings() {
    const root = rootExit();
    const found = [...entriesFound(), ...exceptions()];
    const ended = endedHow(root, found);
    if (ended) found.push(ended);
    order(found, root);
    preferEarlierException(found, root);
    raiseExplainers(found);
    found.sort((a, b) => a.kind - b.kind || a.place - b.place);
    return nest(found).map((one) => written(one, root));
  }

  function candidate(fields) {
    return { kind: 0, weight: 0, explains: [], entry: null, group: null, exit: null, place: 0, below: [], ...fields };
  }

  function rootExit() {
    let best = null;
    for (const one of findings.exits) {
      if (!best
          || (one.time && best.time && one.time.zoned === best.time.zoned && one.time.seconds < best.time.seconds)
          || (ENDED_FROM_OUTSIDE.includes(best.code) && !ENDED_FROM_OUTSIDE.includes(one.code))) best = one;
    }
    return best;
  }

  function entriesFound() {
    return [...findings.found.keys()].sort().map((id) => {
      const found = findings.found.get(id), entry = known.get(id);
      let kind = { cause: CAUSE, generic: GENERIC, consequence: CONSEQUENCE }[entry.role];
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
      const stopped = STOPS.includes(group.name);
      made.push(candidate({
        id: stopped ? "stopped" : "python-exception", role: "generic",
        kind: stopped ? STOPPED : group.thread ? GENERIC : EXCEPT,
        hits: [...group.ranks.values()], count: group.count, group,
      }));
    }
    return made;
  }

  function endedHow(root, found) {
    const one = root || findings.agentExits.find((exit) => !ENDED_FROM_OUTSIDE.includes(exit.code)) || null;
    if (!one || one.code === null || one.code === 0 || !one.hit) return null;
    const signal = one.code < 0 ? -one.code : one.code > 128 ? one.code - 128 : 0;
    const sudden = [9, 11, 7, 4].includes(signal);
    for (const other of found) {
      const ranks = new Set(other.hits.map((hit) => hit.rank));
      if (other.kind === CAUSE) {
        if (!sudden || !root || ranks.has(null) || ranks.has(root.rank)) return null;
      } else if (other.kind === EXCEPT || other.kind === GENERIC) {
        if (!sudden && (!root || ranks.has(null) || ranks.has(root.rank))) return null;
        if (sudden && (!root || ranks.has(root.rank))) return null;
      }
    }
    const names = { 9: "exit-killed", 11: "exit-segfault", 6: "exit-abort", 7: "exit-bus-error", 15: "exit-terminated" };
    const id = names[signal] || (signal > 0 && signal < 65 ? `exit-signal-${signal}` : "exit-code");
    if (found.some((other) => other.id === id)) return null;
    return candidate({
      id, role: "generic", kind: sudden ? KILLED : EXIT, hits: [one.codeHit || one.hit], count: 1, exit: one,
    });
  }

  function order(found, root) {
    const place = (hit) => findings.sources.indexOf(hit.source);
    const hits = found.filter((one) => !one.exit).flatMap((one) => one.hits);
    const isKnown = hits.every((hit) => hit.time) && new Set(hits.map((hit) => hit.time.zoned)).size <= 1;
    let byTime = false;
    if (isKnown) {
      let latest = 0;
      for (const hit of [...hits].sort((a, b) => place(a) - place(b) || a.number - b.number)) {
        byTime = byTime || hit.time.seconds < latest - SKEW_S;
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
    [...found].sort((a, b) => compare(key(a), key(b))).forEach((one, index) => { one.place = index; });
  }

  function preferEarlierException(found, root) {
    const causes = found.filter((one) => one.kind === CAUSE);
    const first = causes.length ? Math.min(...causes.map((one) => one.place)) : -1;
    const hits = causes.flatMap((one) => one.hits).filter((hit) => !SCHEDULER.some((name) => hit.text.startsWith(name)));
    const told = new Set(hits.map((hit) => hit.rank));
    for (const one of found) {
      if (one.kind !== EXCEPT || one.place >= first) continue;
      let ranks = one.hits.map((hit) => hit.rank).filter((rank) => rank !== null);
      if (!ranks.length) ranks = [null];
      const seen = root !== null && ranks.includes(root.rank);
      if ((one.group.uncaught || seen) && !ranks.some((rank) => told.has(rank))) one.kind = FIRST;
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

  function written(one, root) {
    const several = findings.sources.length > 1;
    const evidenceOf = (hit) => ({
      line_number: hit.number, rank: hit.rank, text: hit.text.trim(), source: several ? hit.source.name : "",
    });
    const evidence = one.hits.slice(0, EVIDENCE_SHOWN).map(evidenceOf);
    let ranks = [...new Set(one.hits.map((hit) => hit.rank))].filter((rank) => rank !== null).sort((a, b) => a - b);
    let rank = one.hits[0].rank !== null ? one.hits[0].rank : ranks.length ? ranks[0] : null;
    if (one.exit) {
      rank = one.exit.rank;
      ranks = rank === null ? [] : [rank];
    } else if (rank === null && root && one.kind <= GENERIC) rank = root.rank;
    const entry = one.entry || known.get(one.id), group = one.group;
    if (group && group.whereHit && group.whereHit.number !== one.hits[0].number) {
      evidence.splice(1, 0, evidenceOf(group.whereHit));
      evidence.length = Math.min(evidence.length, EVIDENCE_SHOWN);
    }
    const words = one.entry ? [entry.title, entry.cause, entry.fix, entry.collect]
      : group ? exceptionWords(group) : exitWords(one.id, one.exit, entry);
    return {
      id: one.id, title: words[0], role: one.role, rank, evidence, why: why(one, rank, ranks, root),
      cause: words[1], fix: words[2], page: entry ? entry.page : "diagnose.html", collect: words[3],
      count: one.count, ranks,
      followed: one.below.map((f) => ({
        id: f.id, title: f.entry ? f.entry.title : f.group ? f.group.name : f.id, count: f.count,
        evidence: evidenceOf(f.hits[0]),
      })),
    };
  }

  function ranksText(ranks) {
    const runs = [];
    for (const rank of ranks) {
      const last = runs[runs.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank; else runs.push([rank, rank]);
    }
    const parts = runs.slice(0, 6).map(([a, b]) => (a === b ? `${a}` : b > a + 1 ? `${a}–${b}` : `${a}, ${b}`));
    return `rank${ranks.length > 1 ? "s" : ""} ${parts.join(", ")}${runs.length > 6 ? ", …" : ""}`;
  }

  function why(one, rank, ranks, root) {
    const line = one.hits[0].number;
    if (one.exit) return `torchrun names it as the first failure (line ${line}), and nothing else in the log tells why.`;
    let said = `Seen ${one.count === 1 ? "once" : `${one.count} times`}`;
    if (ranks.length > 1) said += `, by ${ranksText(ranks)}; first by rank ${rank} in line ${line}.`;
    else if (ranks.length) said += `, by ${ranksText(ranks)} alone, first in line ${line}.`;
    else said += `, first in line ${line}; the lines do not say which rank.`;
    if (root && root.rank !== null) {
      if (ranks.includes(root.rank)) said += ` torchrun, too, saw rank ${root.rank} fail first.`;
      else if (!ranks.length) said += ` torchrun saw rank ${root.rank} fail first.`;
      else if (one.kind <= GENERIC) said += ` torchrun saw rank ${root.rank} fail first: look at its output, too.`;
    }
    return said;
  }

  function exceptionWords(group) {
    const message = group.message.trim();
    const short = [...message].length <= 100 ? message : [...message].slice(0, 99).join("") + "…";
    const name = message ? `${group.name}: ${short}` : group.name;
    const [title, text, fix, collect] = data.builtIn[STOPS.includes(group.name) ? "stopped" : "python-exception"];
    const place = group.where ? ` at \`${group.where}\`` : "";
    const chain = group.before ? ` It was raised while \`${group.before.name}\` was handled.` : "";
    const filled = text.replaceAll("{type}", () => group.name).replaceAll("{place}", () => place);
    return [title.replaceAll("{name}", () => name), filled + chain, fix, collect];
  }

  function exitWords(id, exit, entry) {
    let [title, cause, fix, collect] = data.builtIn[id] || data.builtIn["exit-signal"];
    if (entry) ({ cause, fix, collect } = entry);
    const who = exit.rank === null ? "A process" : `Rank ${exit.rank}`;
    const filled = title.replaceAll("{who}", who).replaceAll("{code}", `${exit.code}`);
    return [filled.replaceAll("{number}", id.replace("exit-signal-", "")), cause, fix, collect];
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
      let decoder = null, told = 0;
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
          const wide = { "255,254": "utf-16le", "254,255": "utf-16be" }[`${bytes[0]},${bytes[1]}`];
          if (!wide && isBinary(bytes)) throw new Error(`${names[index]} is not a text log, it holds binary data`);
          decoder = new TextDecoder(wide || "utf-8");
        }
        const text = decoder.decode(bytes, { stream: true });
        characters += text.length;
        feed(text);
        if (Date.now() - told > 100) {
          told = Date.now();
          progress(total ? done / total : 1);
          await new Promise((resume) => setTimeout(resume));
        }
      }
      if (decoder) feed(decoder.decode());
      else if (packed) throw new Error(`${names[index]} is an empty or damaged gzip file`);
    }
    return { characters, diagnoses: finish() };
  }

  return { diagnoseFiles, ranksText };
}

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
    worker.onmessage = ({ data: said }) => {
      if (said.answer) end(resolve, said.answer);
      else if (said.error) end(reject, new Error(said.error));
      else progress(said.part);
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
      this.results.append(make("ul", {}, ...this.data.nothingKnown.map((one) => make("li", {}, ...inline(one, true)))));
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
    if (entry) item.append(make("p", {}, make("a", { href: this.getAttribute("errors") + `#error-${one.id}` }, "In the error index")));
    return item;
  }
}

customElements.define("ddp-diagnose", DiagnoseLog);
})();
