"""A report as parts, written as Markdown or as one HTML page that needs no other file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #333; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem }
.lists ol { padding-left: 1.3rem; margin: .3rem 0 }
.hit { font-weight: 600; color: #b5224f } .note { color: #777; font-size: .9em }
img { max-width: 100% }
.wide { overflow-x: auto } .wide table { font-size: .85em }
th { vertical-align: bottom } td { white-space: nowrap }
.rule { border-left: 4px solid #b5224f; padding: .1rem 1rem; background: #faf6f7 }
pre { background: #f6f6f6; padding: .6rem 1rem; overflow-x: auto }
"""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; `kind` is empty, "note" for small print, "rule" for what to remember."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """What was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every row has as many cells as the heading."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG beside the page, by its name."""

    name: str
    text: str  # for those who cannot see it


class Marked(str):
    """An item of a list that stands out."""


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists side by side, each under its title."""

    name: str
    lists: Mapping[str, Sequence[str]]


Block = Heading | Paragraph | Command | Table | Picture | Lists


def as_markdown(title: str, parts: Sequence[Block]) -> str:
    """Pictures are linked; bars and angle brackets in cells are taken for text."""
    blocks = [f"# {title}"]
    for part in parts:
        match part:
            case Heading(text):
                blocks.append(f"## {_plain(text)}")
            case Paragraph(text, kind):
                blocks.append(f"> {_plain(text)}" if kind == "rule" else _plain(text))
            case Command(text):
                blocks.append(f"```console\n$ {text}\n```")
            case Table(heading, rows):
                lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (heading, *rows)]
                lines.insert(1, "|---" + "|---:" * (len(heading) - 1) + "|")
                blocks.append("\n".join(lines))
            case Picture(name, text):
                blocks.append(f"![{text}]({name})")
            case Lists(name, lists):
                blocks.append(f"### {_plain(name)}")
                for title, items in lists.items():
                    blocks += [f"{_plain(title)}:", "\n".join(map(_bullet, items))]
    return "\n\n".join(blocks) + "\n"


def as_html(title: str, parts: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """One page, its pictures within it."""
    blocks = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
    ]
    for part in parts:
        match part:
            case Heading(text):
                blocks.append(f"<h2>{escape(text)}</h2>")
            case Paragraph(text, kind):
                blocks.append(f"<p class='{kind}'>{escape(text)}</p>" if kind else _p(text))
            case Command(text):
                blocks.append(f"<pre>$ {escape(text)}</pre>")
            case Table(heading, rows):
                blocks.append(f"<div class='wide'>{_table(heading, rows)}</div>")
            case Picture(name, text):
                image = base64.b64encode(pictures[name]).decode()
                blocks.append(f"<img alt='{escape(text)}' src='data:image/png;base64,{image}'>")
            case Lists(name, lists):
                columns = "".join(_list(title, items) for title, items in lists.items())
                blocks.append(f"<h3>{escape(name)}</h3><div class='lists'>{columns}</div>")
    return "\n".join([*blocks, "</html>"]) + "\n"


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")


def _bullet(item: str) -> str:
    return f"- **{_plain(item)}**" if isinstance(item, Marked) else f"- {_plain(item)}"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _list(title: str, items: Sequence[str]) -> str:
    kinds = [" class=hit" if isinstance(item, Marked) else "" for item in items]
    lines = [f"<li{kind}>{escape(item)}</li>" for kind, item in zip(kinds, items, strict=True)]
    return f"<div>{escape(title)}<ol>{''.join(lines)}</ol></div>"
