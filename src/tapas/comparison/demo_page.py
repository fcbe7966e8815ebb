"""One HTML page about runs on one log: curves, tables and recommendations; no other file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tapas.comparison.figure_style import COLOURS, as_png, blank_figure, label_ends, plain
from tapas.training.journal import read_journal

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #333; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left }
.household { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem }
.household ol, .household ul { padding-left: 1.3rem; margin: .3rem 0 }
.hit { font-weight: 600; color: #b5224f } .note { color: #777; font-size: .9em }
img { max-width: 100% }
"""


@dataclass(frozen=True, slots=True)
class Person:
    """A user to look at: what they took last, what we recommend, what they took next."""

    name: str
    recent: Sequence[str]
    recommended: Sequence[tuple[str, bool]]  # words, and whether it was among the next
    following: Sequence[str]


@dataclass(frozen=True, slots=True)
class Page:
    """All that the page says."""

    title: str
    introduction: Sequence[str]
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]
    curves_note: str
    people_note: str
    people: Sequence[Person]


def render(page: Page, curves: bytes) -> str:
    image = base64.b64encode(curves).decode()
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(page.title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(page.title)}</h1>",
        *(f"<p>{escape(words)}</p>" for words in page.introduction),
        "<h2>How good the lists are</h2>",
        _table(page.heading, page.rows),
        *(f"<p class='note'>{escape(words)}</p>" for words in page.remarks),
        "<h2>While training</h2>",
        f"<img alt='MAP@20 on validation against steps' src='data:image/png;base64,{image}'>",
        f"<p class='note'>{escape(page.curves_note)}</p>",
        "<h2>For three of them</h2>",
        f"<p class='note'>{escape(page.people_note)}</p>",
        *(_person(person) for person in page.people),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _person(person: Person) -> str:
    def items(words: Sequence[str]) -> str:
        return "".join(f"<li>{escape(word)}</li>" for word in words)

    recommended = "".join(
        f"<li{' class=hit' if hit else ''}>{escape(word)}</li>" for word, hit in person.recommended
    )
    return (
        f"<h3>{escape(person.name)}</h3><div class='household'>"
        f"<div>took last<ul>{items(person.recent)}</ul></div>"
        f"<div>recommended<ol>{recommended}</ol></div>"
        f"<div>took next<ul>{items(person.following)}</ul></div></div>"
    )


def draw_curves(journals: Mapping[str, Path]) -> bytes:
    """MAP@20 on validation against steps, a line for each run; a PNG."""
    figure = blank_figure(8, 4)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.7, top=0.93, bottom=0.14)
    plain(axes)
    labels = []
    for name, path in journals.items():
        lines = [line for line in read_journal(path) if line["event"] == "evaluate"]
        steps, values = [x["step"] for x in lines], [x["map@20"] for x in lines]
        axes.plot(steps, values, color=COLOURS[name], linewidth=2, marker="o", markersize=4)
        labels.append((f"{values[-1]:.4f}  {name}", values[-1], COLOURS[name]))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training steps")
    axes.set_title("MAP@20 on validation", loc="left", fontsize=11)
    label_ends(axes, labels)
    return as_png(figure)
