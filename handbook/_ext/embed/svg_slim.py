"""Make a drawing of matplotlib light: the same picture from a tenth of the elements and a quarter of the bytes.

matplotlib writes a group around everything, each bar and each tick as an element of its own, coordinates of the whole
page, and a clip around what lies inside anyway. Here shapes of one look become one path where nothing between them
could be covered, and coordinates count from the start of their shape.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_TOKEN = re.compile(r"[MLCQZz]|-?[\d.]+(?:e-?\d+)?")
_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3, "Z": 0}
_PLACES = 2  # a hundredth of a point is finer than any screen or printer
_PIXEL_SAFE = 0.5  # points around a shape for its antialiased edge

Point = tuple[float, float]
Segment = tuple[str, tuple[Point, ...]]
Box = tuple[float, float, float, float]


@dataclass
class Shape:
    """A path that was read: its subpaths, its look, and the box that it can reach."""

    subpaths: list[list[Segment]]
    style: dict[str, str]
    clip: str | None
    marker: str | None = None  # the symbol that it repeats
    boxes: list[Box] = field(default_factory=list)

    def __post_init__(self) -> None:
        points = [point for subpath in self.subpaths for _, some in subpath for point in some]
        reach = _PIXEL_SAFE
        if self.style.get("stroke", "none") != "none":  # a mitre reaches four half widths
            reach += 2 * float(self.style.get("stroke-width", "1").removesuffix("px"))
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self.boxes = [(min(xs) - reach, min(ys) - reach, max(xs) + reach, max(ys) + reach)]

    def visible(self) -> bool:
        """Whether it paints anything."""
        return self.style.get("fill") != "none" or self.style.get("stroke", "none") != "none"

    def may_overlap_itself(self, other: Shape) -> bool:
        """Whether one path of both looks like one upon the other, also where they overlap."""
        opaque = not {"opacity", "fill-opacity", "stroke-opacity"} & self.style.keys()
        lines = self.style.get("fill") == "none" and "stroke-dasharray" not in self.style
        spots = self.marker is not None and self.marker == other.marker  # of one winding
        one_paint = self.style.get("stroke", "none") in ("none", self.style.get("fill", "#000000"))
        return opaque and (lines or (spots and one_paint))

    def meets(self, other: Shape) -> bool:
        """Whether anything of one may lie upon anything of the other."""
        return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a in self.boxes for b in other.boxes)


def slim(svg: str) -> str:
    """The same drawing with fewer elements and bytes.

    Args:
        svg: what matplotlib wrote, from ``<svg``, with text as text.
    """
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(svg)
    defs = {name: element for element in root.iter() if (name := element.get("id"))}
    clips = {name: _clip_box(element) for name, element in defs.items() if element.tag == f"{_SVG}clipPath"}
    flat: list[ET.Element | Shape] = []
    _flatten(root, flat, defs, None)
    kept = ET.Element(f"{_SVG}svg", {name: value for name, value in root.attrib.items() if name != "version"})
    fonts = [_style(text).get("font-family") for text in root.iter(f"{_SVG}text")]
    font = next(filter(None, fonts), "sans-serif")
    kept.set("style", f"stroke-linejoin:round;font-family:{font}")  # what matplotlib says of every element
    drawn = [_element(one) if isinstance(one, Shape) else one for one in _merged(flat, clips)]
    text = "".join(ET.tostring(one, encoding="unicode") for one in drawn)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    stored = [element for name, element in defs.items() if name in used and element.tag != f"{_SVG}g"]
    for element in stored:
        for path in element.iter(f"{_SVG}path"):
            path.set("d", _written(_read_path(path.get("d", ""))))
            path.set("style", _style_text(_style(path)))
    if stored:
        store = ET.SubElement(kept, f"{_SVG}defs")
        store.extend(stored)
    kept.extend(drawn)
    return ET.tostring(kept, encoding="unicode")


def _flatten(parent: ET.Element, into: list[ET.Element | Shape], defs: dict[str, ET.Element], clip: str | None) -> None:
    """Collect what is drawn, in its order, without the groups around it."""
    for element in parent:
        kind = element.tag.removeprefix(_SVG)
        own_clip = element.get("clip-path") or clip
        if kind in ("defs", "metadata", "style", "clipPath"):
            continue
        if kind == "g" and not {"transform", "style", "opacity"} & element.attrib.keys():
            _flatten(element, into, defs, own_clip)
        elif kind == "path" and "transform" not in element.attrib:
            subpaths = _read_path(element.get("d", ""))
            shape = Shape(subpaths, _style(element), own_clip) if subpaths else None
            if shape and shape.visible():
                into.append(shape)
        elif kind == "use" and (marker := defs[element.get(_LINK, "#")[1:]]).tag == f"{_SVG}path":
            x, y = float(element.get("x", 0)), float(element.get("y", 0))
            moved = [
                [(command, tuple((px + x, py + y) for px, py in points)) for command, points in subpath]
                for subpath in _read_path(marker.get("d", ""))
            ]
            into.append(Shape(moved, {**_style(element), **_style(marker)}, own_clip, marker.get("id")))
        elif len(element) or kind != "g":
            into.append(_labels(element, own_clip))


def _labels(element: ET.Element, clip: str | None) -> ET.Element:
    """A label, or a group that moves labels: as it is, but for what says nothing."""
    if clip:
        element.set("clip-path", clip)
    if element.tag == f"{_SVG}g" and len(element) == 1 and element[0].tag == f"{_SVG}text":
        text = element[0]  # a formula: the group only moves it
        if not {"transform", "style"} & text.attrib.keys():
            text.attrib.update(element.attrib)
            element = text
    for one in element.iter():
        if "style" in one.attrib:
            one.set("style", _style_text({k: v for k, v in _style(one).items() if k != "font-family"}))
        if re.match(r"rotate\(-?0 ", one.get("transform", "")):
            del one.attrib["transform"]
        one.text = (one.text or "").strip() if len(one) else one.text
        _join_letters(one)
    return element


def _join_letters(text: ET.Element) -> None:
    """One element for the letters of a line of a formula, each with its own place."""
    kept: list[ET.Element] = []
    for letter in list(text):
        last = kept[-1] if kept else None
        same = last is not None and all(last.get(name) == letter.get(name) for name in ("y", "style"))
        if same and last is not None and len(letter.text or "") == 1 and not letter.tail:
            last.set("x", f"{last.get('x')} {letter.get('x')}")
            last.text = (last.text or "") + (letter.text or "")
            text.remove(letter)
        else:
            kept.append(letter)


def _merged(flat: list[ET.Element | Shape], clips: dict[str, Box | None]) -> list[ET.Element | Shape]:
    """Paint in the same order, but each shape with an earlier one of its look, if it covers nothing on the way."""
    done: list[ET.Element | Shape] = []
    for one in flat:
        if not isinstance(one, Shape):
            done.append(one)
            continue
        if one.clip and _inside(one.boxes[0], clips.get(one.clip.removeprefix("url(#").removesuffix(")"))):
            one.clip = None
        for earlier in reversed(done):
            if not isinstance(earlier, Shape):
                done.append(one)
                break
            meets = one.meets(earlier)
            if (earlier.style, earlier.clip) == (one.style, one.clip) and (
                not meets or one.may_overlap_itself(earlier)
            ):
                earlier.subpaths += one.subpaths
                earlier.boxes += one.boxes
                if earlier.marker != one.marker:
                    earlier.marker = None
                break
            if meets:
                done.append(one)
                break
        else:
            done.append(one)
    return done


def _inside(box: Box, clip: Box | None) -> bool:
    return clip is not None and clip[0] <= box[0] and clip[1] <= box[1] and box[2] <= clip[2] and box[3] <= clip[3]


def _clip_box(clip: ET.Element) -> Box | None:
    rect = clip.find(f"{_SVG}rect")
    if rect is None or len(clip) != 1:
        return None
    x, y, width, height = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def _style(element: ET.Element) -> dict[str, str]:
    pairs = (pair.partition(":") for pair in element.get("style", "").split(";") if pair.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _style_text(style: dict[str, str]) -> str:
    return ";".join(f"{name}:{value}" for name, value in style.items())


def _element(shape: Shape) -> ET.Element:
    attributes = {"d": _written(shape.subpaths)} | ({"clip-path": shape.clip} if shape.clip else {})
    return ET.Element(f"{_SVG}path", {**attributes, "style": _style_text(shape.style)})


def _read_path(data: str) -> list[list[Segment]]:
    """The subpaths of a path in matplotlib's commands, which are absolute.

    Raises:
        ValueError: another command.
    """
    subpaths: list[list[Segment]] = []
    tokens = _TOKEN.findall(data)
    at = 0
    while at < len(tokens):
        command = tokens[at].upper()
        if command not in _POINTS:
            raise ValueError(f"a path of matplotlib has no {tokens[at]!r} in {data[:60]!r}")
        numbers = [float(token) for token in tokens[at + 1 : at + 1 + 2 * _POINTS[command]]]
        points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        at += 1 + 2 * _POINTS[command]
        if command == "M":
            subpaths.append([(command, points)])
        elif command == "Z":
            subpaths[-1].append((command, ()))
        else:
            subpaths[-1].append((command, points))
    return [subpath for subpath in subpaths if len(subpath) > 1]


def _written(subpaths: list[list[Segment]]) -> str:
    """The path with each subpath counted from its start: what is equal has equal words, which compress to nothing."""
    return "".join(map(_one, subpaths))


def _one(subpath: list[Segment]) -> str:
    origin = subpath[0][1][0]
    words, at = f"M{_number(origin[0])}{_glued(_number(origin[1]))}", (0.0, 0.0)
    for command, points in subpath[1:]:
        to = [(round(x - origin[0], _PLACES), round(y - origin[1], _PLACES)) for x, y in points]
        steps = [(_number(x - at[0]), _number(y - at[1])) for x, y in to]
        if command == "Z":
            words += "z"
        elif command == "L" and steps[0][1] == "0":
            words += f"h{steps[0][0]}"
        elif command == "L" and steps[0][0] == "0":
            words += f"v{steps[0][1]}"
        else:
            first, *rest = [number for step in steps for number in step]
            words += command.lower() + first + "".join(map(_glued, rest))
        at = to[-1] if to else at
    return words


def _number(value: float) -> str:
    text = f"{value:.{_PLACES}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "0") else text.replace("-0.", "-.").removeprefix("0")


def _glued(number: str) -> str:
    return number if number.startswith("-") else f" {number}"
