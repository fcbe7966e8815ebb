"""A report as parts, written as Markdown or as one HTML page that needs no other file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tapas.comparison.demo_page import STYLE

MORE_STYLE = """
body { max-width: 72rem } .wide { overflow-x: auto } .wide table { font-size: .85em }
th { vertical-align: bottom } td { white-space: nowrap }
.rule { border-left: 4px solid #b5224f; padding: .1rem 1rem; background: #faf6f7 }
pre { background: #f6f6f6; padding: .6rem 1rem; overflow-x: auto }
"""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph; `kind` is empty, "note" for small print, "rule" for what to remember."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """What was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; every row has as many cells as the heading."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG beside the page, by its name."""

    name: str
    text: str  # for those who cannot see it


Part = Heading | Words | Command | Grid | Picture


def as_markdown(title: str, parts: Sequence[Part]) -> str:
    """Pictures are linked; bars and angle brackets in cells are taken for text."""
    blocks = [f"# {title}"]
    for part in parts:
        match part:
            case Heading(text):
                blocks.append(f"## {_plain(text)}")
            case Words(text, kind):
                blocks.append(f"> {_plain(text)}" if kind == "rule" else _plain(text))
            case Command(text):
                blocks.append(f"```console\n$ {text}\n```")
            case Grid(heading, rows):
                lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (heading, *rows)]
                lines.insert(1, "|---" + "|---:" * (len(heading) - 1) + "|")
                blocks.append("\n".join(lines))
            case Picture(name, text):
                blocks.append(f"![{text}]({name})")
    return "\n\n".join(blocks) + "\n"


def as_html(title: str, parts: Sequence[Part], pictures: Mapping[str, bytes]) -> str:
    """One page, its pictures within it."""
    blocks = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{STYLE}{MORE_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
    ]
    for part in parts:
        match part:
            case Heading(text):
                blocks.append(f"<h2>{escape(text)}</h2>")
            case Words(text, kind):
                blocks.append(f"<p class='{kind}'>{escape(text)}</p>" if kind else _p(text))
            case Command(text):
                blocks.append(f"<pre>$ {escape(text)}</pre>")
            case Grid(heading, rows):
                blocks.append(f"<div class='wide'>{_table(heading, rows)}</div>")
            case Picture(name, text):
                image = base64.b64encode(pictures[name]).decode()
                blocks.append(f"<img alt='{escape(text)}' src='data:image/png;base64,{image}'>")
    return "\n".join([*blocks, "</html>"]) + "\n"


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
