"""The messages in C++ and CUDA sources of torch, NCCL and gloo: what is between the quotes of a check, throw or log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# How many arguments stand before the message, by what raises or logs it. The order is that in which they are tried.
ERRORS = {
    r"TORCH_CHECK_WITH(?:_MSG)?": 2,
    r"TORCH_CHECK(?:_VALUE|_TYPE|_INDEX|_NOT_IMPLEMENTED)?": 1,
    r"TORCH_INTERNAL_ASSERT": 1,
    r"REDUCER_CHECK": 2,
    r"AT_ERROR|C10_THROW_ERROR\(\w+|C10D_THROW_ERROR|invalidArgument|assert\w+Size|throw [\w:]+": 0,
    r"GLOO_ENFORCE_\w+": 2,
    r"GLOO_ENFORCE": 1,
    r"GLOO_THROW\w*|GLOO_\w+_EXCEPTION": 0,
    r"c10::str|fmt::format": 0,
}
WARNINGS = {r"TORCH_WARN(?:_ONCE)?|C10D_WARNING|C10D_ERROR|GLOO_WARN|GLOO_ERROR": 0}
NCCL = {r"(?<![\w_])(?:WARN|ERR)": 0}
STREAM = re.compile(r"(?:LOG\((?:ERROR|WARNING|FATAL)\)|\bstd::cerr|\bss|\boss|Msg|msg)\s*<<")
ASSIGNED = re.compile(
    r"(?:std::string|auto|char\s?\*)\s+(?:const )?\w+\s*(?:=|\()\s*(?=\")|return\s*(?=\")|Msg\s*=\s*(?=\")"
)
LITERAL = re.compile(r'(?:u8|L)?"((?:[^"\\]|\\.)*)"')
RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.S)
COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.S)
ESCAPES = {"n": "\n", "t": " ", '"': '"', "\\": "\\", "'": "'"}
PRINTF = re.compile(r"%[-+ #0]*\d*(?:\.\d+|\.\*)?(?:hh|h|ll|l|z|j)?[diouxXcspfgeE]")
HOLE = "\0"


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), text, flags=re.S)


def _clean(source: str) -> str:
    source = RAW.sub(lambda m: '"' + m[2].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"', source)
    source = COMMENT.sub(lambda m: m[1] or " ", source)
    return re.sub(r"\\\n", " ", source).replace("PRIu64", '"%d"').replace("PRIx64", '"%d"').replace("PRId64", '"%d"')


def _end(source: str, at: int, closing: str) -> int:
    """Where the bracket that was open before ``at`` closes (``)``), or the statement ends (``;``)."""
    depth = 0
    while at < len(source):
        char = source[at]
        if char == '"':
            found = LITERAL.match(source, at)
            at = found.end() if found else at + 1
            continue
        if char == "'" and re.match(r"'(?:[^'\\]|\\.)'", source[at : at + 4]):
            at += source[at : at + 4].rindex("'") + 1
            continue
        if depth == 0 and char == closing:
            return at
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return at
        at += 1
    return at


def _arguments(text: str, separators: str) -> list[str]:
    parts, start, at = [], 0, 0
    while at < len(text):
        at = min((_end(text, at, one) for one in separators), default=len(text))
        parts.append(text[start:at])
        at += 1
        if text[at - 1 : at] == "<" and text[at : at + 1] == "<":
            at += 1
        start = at
    return parts


def _message(parts: list[str]) -> str:
    """Literals joined, with a hole for each expression."""
    out = ""
    for part in parts:
        if '"' in part and (call := re.fullmatch(r"\s*(?:::)?[\w:]+(?<!if)\((.*)\)\s*", part, re.S)):
            inner = _arguments(call[1], ",")
            if len(inner) > 1 and "?" not in LITERAL.sub("", part):
                out += _message(inner)
                continue
        rest = LITERAL.sub("", part).strip()
        texts = [_plain(one) for one in LITERAL.findall(part)]
        if not texts:
            out += HOLE if part.strip() and "std::endl" not in part and "__" not in part else ""
        elif not rest or re.fullmatch(r"[\s\w:()+]*", rest):
            chunk = ""
            for literal in re.finditer(r'"(?:[^"\\]|\\.)*"|[^"]+', part):
                one = literal[0]
                chunk += (
                    _plain(one[1:-1]) if one.startswith('"') else HOLE if re.search(r"\w\s*\+|\+\s*\w", one) else ""
                )
            out += chunk
        elif "?" in rest:
            out += texts[0]
        else:
            out += HOLE if len("".join(texts)) < 20 else "".join(texts)
    return out


def messages(path: Path, nccl: bool = False) -> Iterator[tuple[str, str]]:
    """What the file can print: kind (``error``, ``warning``, ``assert``) and text, holes as ``{}``."""
    source = _clean(path.read_text(errors="replace"))
    taken: list[tuple[int, int]] = []
    heads = [(k, n, "warning") for k, n in (NCCL if nccl else WARNINGS).items()]
    heads += [] if nccl else [(k, n, "assert" if "INTERNAL" in k else "error") for k, n in ERRORS.items()]
    for pattern, skipped, kind in heads:
        for head in re.finditer(rf"\b(?:{pattern})\s*[({{,]", source):
            line = source[source.rfind("\n", 0, head.start()) + 1 : head.start()]
            if "#define" in line or any(a <= head.start() < b for a, b in taken):
                continue
            end = _end(source, head.end(), ")")
            taken.append((head.start(), end))
            parts = _arguments(source[head.end() : end], ",")[skipped:]
            text = _message(parts[:1] if nccl else parts)
            yield kind, _holes(text)
    if nccl:
        for one in re.finditer(r'return (?:LITERAL|")((?:[^"\\]|\\.)*)";', source):
            yield "result", _holes(_plain(one[1]))
        return
    for pattern in (STREAM, ASSIGNED):
        for head in pattern.finditer(source):
            if any(a <= head.start() < b for a, b in taken):
                continue
            end = _end(source, head.end(), ";")
            taken.append((head.start(), end))
            text = source[head.end() : end]
            yield "warning" if "WARN" in head[0] else "error", _holes(_message(_split_stream(text)))


def _split_stream(text: str) -> list[str]:
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            found = LITERAL.match(text, at)
            at = found.end() if found else at + 1
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 and text.startswith("<<", at):
            parts.append(text[start:at])
            at = start = at + 2
            continue
        at += 1
    return [*parts, text[start:]]


def _holes(text: str) -> str:
    text = PRINTF.sub(HOLE, text).replace("%%", "%")
    text = re.sub(r"\{[^{}\n]{0,12}\}", HOLE, text)
    text = re.sub(rf"{HOLE}+", HOLE, text)
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip().split("\n")).replace(HOLE, "{}")
