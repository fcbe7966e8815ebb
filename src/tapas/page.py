"""Reports made of blocks, written as Markdown or as one HTML file with its pictures inside."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

from tapas.charts import STYLE as CHART_STYLE
from tapas.escapes import inline_markdown, markdown, printable

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #333; --faint: #6b6b6b; --line: #e5e5e5;
        --box: #f6f6f6; --rule: #faf6f7; --hit: #b5224f; --shade: rgba(0, 0, 0, .22) }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #16181c; --text: #dcdcdc; --faint: #9a9a9a; --line: #33363c; --box: #212429;
          --rule: #2a2025; --hit: #f0739a; --shade: rgba(255, 255, 255, .25) }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
       max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line) }
thead th { vertical-align: bottom } tbody th { font-weight: normal } td { white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal;
                                 min-width: 9rem }
.wide { overflow-x: auto; margin: 1rem 0; font-size: .9em; background:
    linear-gradient(to right, var(--page) 30%, transparent) left / 3rem 100%,
    linear-gradient(to left, var(--page) 30%, transparent) right / 3rem 100%,
    linear-gradient(to right, var(--shade), transparent) left / .8rem 100%,
    linear-gradient(to left, var(--shade), transparent) right / .8rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top;
                       overflow-wrap: break-word }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem }
.lists ol { padding-left: 1.8rem; margin: .3rem 0 } .lists .note { margin: .3rem 0 }
.hit { font-weight: 600; color: var(--hit) } .note { color: var(--faint); font-size: .9em }
.card { background: #fff; padding: .5rem; border-radius: .4rem; overflow-x: auto }
.card img { width: 100%; min-width: 40rem; display: block }
.swipe { display: none }
.rule { border-left: 4px solid var(--hit); padding: .1rem 1rem; background: var(--rule) }
pre { background: var(--box); padding: .6rem 1rem; white-space: pre-wrap;
      overflow-wrap: anywhere }
@media (max-width: 42rem) {
  .card { direction: rtl } /* begins at its right end, with the labels of the lines */
  .swipe { display: block }
}
@media (max-width: 40rem) {
  .wide { font-size: .75em } th, td { padding: .3rem .25rem } td { white-space: normal }
  th:first-child, td:first-child { min-width: 5rem }
}
@media print {
  :root { color-scheme: light } body { font-size: 11pt; margin: 0 auto; padding: 0 }
  h2, figcaption { break-after: avoid }
  tr, pre, .rule { break-inside: avoid } .swipe { display: none }
  .wide, .card { overflow: visible; background: none } .card img { min-width: 0 }
  .wide { font-size: .75em } th, td { padding: .2rem .35rem; white-space: normal }
  th:first-child, td:first-child { min-width: 8rem }
  tbody th, .words td { overflow-wrap: anywhere }
}
"""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`kind` is empty, "note" for small print, or "rule" for the conclusion."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, such as the one that made the report."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has as many cells as the heading, the first of which says what the row is about.

    `words` are aligned to the left.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, by its file name."""

    name: str
    text: str  # the alternative text


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts of `tapas.charts` side by side, each under its title, with a `note` below.

    Markdown has `picture` instead, which has its own note.
    """

    svgs: Mapping[str, str]
    note: str = ""
    picture: Picture | None = None


class Marked(str):
    """A highlighted item of a list."""


class Subheading(str):
    """A line between two groups of items of a list."""


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists side by side, each under its title."""

    name: str
    lists: Mapping[str, Sequence[str]]


Block = Heading | Paragraph | Command | Table | Picture | Charts | Lists


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    """Pictures are linked. In texts only code between backticks is markup."""
    texts = [f"# {markdown(title)}"]
    for block in blocks:
        match block:
            case Heading(text):
                texts.append(f"## {markdown(text)}")
            case Paragraph(text, kind):
                texts.append(f"> {markdown(text)}" if kind == "rule" else markdown(text))
            case Command(text):
                texts.append(f"```console\n$ {printable(text)}\n```")
            case Table(heading, rows, words):
                lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (heading, *rows)]
                other = "|---" if words else "|---:"
                lines.insert(1, "|---" + other * (len(heading) - 1) + "|")
                texts.append("\n".join(lines))
            case Picture(name, text):
                texts.append(f"![{inline_markdown(text)}]({name})")
            case Charts(svgs, picture=None):
                raise ValueError(f"no picture for Markdown in place of {', '.join(svgs)}.")
            case Charts(picture=Picture(name, text)):
                texts.append(f"![{inline_markdown(text)}]({name})")
            case Lists(name, lists):
                texts.append(f"### {markdown(name)}")
                for title, items in lists.items():
                    texts += [f"{markdown(title)}:", "\n".join(map(_bullet, items))]
    return "\n\n".join(texts) + "\n"


def as_html(
    title: str, blocks: Sequence[Block], pictures: Mapping[str, bytes] = MappingProxyType({})
) -> str:
    """One page that contains its pictures; light or dark as the reader's system is."""
    texts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{_html(title)}</title><style>{STYLE}{CHART_STYLE}</style>",
        f"<main><h1>{_html(title)}</h1>",
    ]
    section, num_wide = title, 0
    for block in blocks:
        match block:
            case Heading(text):
                section, num_wide = text, 0
                texts.append(f"<h2>{_html(text)}</h2>")
            case Paragraph(text, kind):
                texts.append(f"<p class='{kind}'>{_html(text)}</p>" if kind else _p(text))
            case Command(text):
                texts.append(f"<pre>$ {_html(text)}</pre>")
            case Table(heading, rows, words):
                num_wide += 1
                kind = "wide words" if words else "wide"
                texts.append(_scrolled(kind, f"{section}, table {num_wide}", _table(heading, rows)))
            case Picture(name, text):
                image = base64.b64encode(pictures[name]).decode()
                source = f"data:image/png;base64,{image}"
                texts.append("<p class='note swipe'>The figure scrolls sideways.</p>")
                num_wide += 1
                image = f"<img alt='{_html(text)}' src='{source}'>"
                texts.append(_scrolled("card", f"{section}, figure {num_wide}", image))
            case Charts(svgs, note):
                figures = (
                    f"<figure><figcaption>{_html(name)}</figcaption>{svg}</figure>"
                    for name, svg in svgs.items()
                )
                texts.append(f"<div class='charts'>{''.join(figures)}</div>")
                texts += [f"<p class='note'>{_html(note)}</p>"] * bool(note)
            case Lists(name, lists):
                columns = "".join(_list(title, items) for title, items in lists.items())
                texts.append(f"<h3>{_html(name)}</h3><div class='lists'>{columns}</div>")
    return "\n".join([*texts, "</main></html>"]) + "\n"


def _html(text: str) -> str:
    return escape(printable(text))


def _p(text: str) -> str:
    return f"<p>{_html(text)}</p>"


def _scrolled(kind: str, label: str, content: str) -> str:
    """What may be wider than the page; with the focus in it, the arrow keys scroll it."""
    focus = f"tabindex='0' role='region' aria-label='{_html(label)}'"
    return f"<div class='{kind}' {focus}>{content}</div>"


def _bullet(item: str) -> str:
    if isinstance(item, Subheading):
        return f"\n{markdown(item)}\n"
    return f"- **{inline_markdown(item)}**" if isinstance(item, Marked) else f"- {markdown(item)}"


def _cell(text: str) -> str:
    return inline_markdown(text).replace("|", "\\|")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(_head_cell(cell, "col") for cell in heading) if any(heading) else ""
    body = "\n".join(
        f"<tr>{_head_cell(name, 'row')}"
        + "".join(f"<td>{_html(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    top = f"<thead><tr>{head}</tr></thead>\n" if head else ""
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _head_cell(text: str, scope: str) -> str:
    """The name of a column or row; what is empty names nothing."""
    return f"<th scope='{scope}'>{_html(text)}</th>" if text else "<td></td>"


def _list(title: str, items: Sequence[str]) -> str:
    lines = []
    for item in items:
        if isinstance(item, Subheading):
            lines.append(f"</ol><p class='note'>{_html(item)}</p><ol>")
        else:
            kind = " class=hit" if isinstance(item, Marked) else ""
            lines.append(f"<li{kind}>{_html(item)}</li>")
    return f"<div>{_html(title)}<ol>{''.join(lines)}</ol></div>".replace("<ol></ol>", "")
