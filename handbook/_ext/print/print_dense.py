"""What print sets in two columns, and what it leaves to the web book: matter that is looked up, not read through."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

from .print_tree import classes, parents, replace, walk

# Of an error entry, how it was reproduced and where the documentation is; a reference to a page of this book stays.
_ON_THE_WEB = ("Run", "Each rank", "To be sure")
_GRADE = re.compile(r"ddplab grade (\S+) ")
_LOOKED_UP = {
    "error-entry",
    "glossary",
    "citation-list",
    "claim-group",
    "claim-row",
    "asked-questions",
    "further-reading",
}


def condense(page: ET.Element) -> None:
    """Shorten error entries, solutions and the evidence of cards, then set what is looked up in columns."""
    owner = parents(page)
    exercise = ""
    for element in list(walk(page)):
        names = classes(element)
        if element.tag == "pre" and (graded := _GRADE.match("".join(element.itertext()))):
            exercise = graded[1]
        elif element.tag == "details" and exercise and _title(element) == "Solution":
            _name_file(element, f"gallery/exercises/{exercise}/solution.py")
        if "error-entry" in names:
            _shorten_entry(element)
        elif "card-evidence" in names:
            _name_places(element)
        elif element.tag == "table" and "claims" in names:
            replace(owner[element], element, _claim_list(element))
        elif "lab-cards" in names:
            _run_on(owner[element], element)
        elif "web-only" in names:
            replace(owner[element], element, None)
    _columns(page)


def _shorten_entry(entry: ET.Element) -> None:
    """An entry keeps its message, the versions, the cause, the fix and the pages of this book to read."""
    for part in list(entry):
        label = part.find("strong") if part.tag == "p" and not (part.text or "").strip() else None
        said = label.text if label is not None else ""
        if said == "Read":
            _keep_inside(part)
        if said in _ON_THE_WEB or (said == "Read" and part.find("a") is None):
            entry.remove(part)


def _run_on(section: ET.Element, cards: ET.Element) -> None:
    """Of a chapter's labs the titles, one after the other, below a small heading; the rest is in the companion."""
    heading = section[0]
    heading.tag = "p"
    heading.set("class", "rubric")
    for number in [part for part in heading if "section-number" in classes(part)]:
        replace(heading, number, None)
    for card in cards:
        card[:] = [line for line in card if "lab-card-title" in classes(line)]


def _keep_inside(line: ET.Element) -> None:
    """Of a row of links, those inside of the book."""
    inside = [link for link in line if link.tag in {"a", "span"} and "external" not in classes(link)]
    for link in inside:
        link.tail = " · "
    if inside:
        inside[-1].tail = None
    line[:] = [line[0], *inside]


def _title(fold: ET.Element) -> str:
    summary = fold.find("summary")
    return "" if summary is None else "".join(summary.itertext()).strip()


def _name_file(solution: ET.Element, path: str) -> None:
    """The program of a solution is read beside one's own, on a screen: print names its file."""
    for holder in list(walk(solution)):
        for block in [child for child in holder if "highlight" in child.get("class", "")]:
            named = ET.Element("p")
            ET.SubElement(named, "code").text = path
            replace(holder, block, named)


def _name_places(evidence: ET.Element) -> None:
    """The labs and sections that a card rests on; its claims stand in those sections."""
    for line in evidence.findall("p"):
        links = [link for link in line if link.tag in {"a", "span"}]
        kept = [link for link in links if "proof-" not in link.get("href", "")]
        if links and kept:
            for link in kept[:-1]:
                link.tail = " · "
            kept[-1].tail = None
            line[:] = kept


def _claim_list(table: ET.Element) -> ET.Element:
    """The claims as a list: what is said, on which page, where it holds if not everywhere, on how many ranks."""
    listed = ET.Element("div", {"class": "claim-list"})
    ET.SubElement(listed, "p").text = "Here, a claim that names no backend holds on any."
    for body in table.iter("tbody"):
        for row in body.iter("tr"):
            cells = row.findall("td")
            if cells:
                line = ET.SubElement(listed, "p", {"class": "claim-row", "id": row.get("id", "")})
                for place in cells[0].findall("a")[-1:]:
                    place[:], place.text = [], ""  # its page number says enough
                # what is said stands in the line itself: in a box of its own, WeasyPrint cuts names where the line ends
                line.text = cells[0].text
                line.extend(cells[0])
                for cell in cells[1:]:
                    text = (cell.text or "").removeprefix("on any backend").removeprefix("; ")
                    if text or cell.text != "on any backend":
                        line.append(cell)
                        cell.tag, cell.text = "span", f" {text}"
            else:
                title = ET.SubElement(listed, "p", {"class": "claim-group", "id": body.get("id", "")})
                title.text = "".join(row.itertext())
    return listed


def _columns(owner: ET.Element) -> None:
    """Runs of cards, entries and the like become the content of a box of two columns."""
    for dense, run in [(dense, list(run)) for dense, run in itertools.groupby(list(owner), _is_looked_up)]:
        if not dense or (len(run) == 1 and "card" in classes(run[0])):
            for element in run:
                _columns(element)
            continue
        short = all("quiz" in classes(element) for element in run)
        box = ET.Element("div", {"class": "two-columns even" if short else "two-columns"})
        owner.insert(list(owner).index(run[0]), box)
        for element in run:
            owner.remove(element)
        box[:] = run


def _is_looked_up(element: ET.Element) -> bool:
    """Whether it is a card, a term, a function of the kit, or a section of nothing but such, cards excepted."""
    if classes(element) & {"card", *_LOOKED_UP}:
        return True
    if element.tag == "section" and element.find("h1") is None:
        within = [child for child in element if not re.fullmatch("h[1-6]", child.tag)]
        return bool(within) and all(_is_looked_up(child) and "card" not in classes(child) for child in within)
    return element.tag == "dl" and "py" in classes(element)
