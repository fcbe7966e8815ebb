"""How names and values from outside are shown: in sentences, commands to copy, and Markdown."""

import os
import re
import shlex
from collections.abc import Iterable

# C0 and C1 controls, marks that change the direction of text, line ends, lone surrogates
UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
CODE = re.compile("(?<!`)(`[^`]+`)(?!`)")  # of Markdown
MARKUP = re.compile(r"[\\`*\[\]<~]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)")
LINE_START = re.compile(r"^(\d*)([#>+.)=-])")  # of a heading, quote, list or rule
MOST = 80  # characters of a value that are shown
MOST_OF_ERROR = 500
WIDE = 200  # characters at both ends of a sentence that is cut
LONG_VALUE = re.compile(r"'[^']{200,}'|\"[^\"]{200,}\"|[^\s'\"]{200,}")
PLAIN = re.compile(rb"[\w./ -]", re.ASCII)


def printable(words: object) -> str:
    r"""`words` on one line, with line ends and other control characters as Python writes them.

    >>> printable("one\ttwo\x1b[2J")
    'one\\ttwo\\x1b[2J'
    """
    return UNSAFE.sub(_escape, str(words))


def short(value: object) -> str:
    """`value` between quotes for a sentence; a long one is cut, and its length given.

    >>> short("milk"), short("m" * 1_000_000)[70:]
    ("'milk'", "mmmmmmmmmmm…' (1,000,000 characters)")
    """
    text = str(value)
    if len(text) <= MOST:
        return f"'{text}'"
    return f"'{text[:MOST]}…' ({len(text):,} characters)"


def shortened(words: str, most: int = MOST_OF_ERROR) -> str:
    """A sentence in which nothing is very long: values are cut, and if need be its middle.

    What is wrong stands at its beginning and the cure at its end.
    """
    if len(words) > most:
        words = LONG_VALUE.sub(lambda found: _cut(found[0]), words)
    if len(words) > most:
        left = f" … ({len(words):,} characters) … "
        words = words[:WIDE] + left + words[-WIDE:]
    return words


def _cut(value: str) -> str:
    quote = value[0] if value[0] in "'\"" else ""
    return f"{value[:MOST]}…{quote} ({len(value) - 2 * len(quote):,} characters)"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def shell_word(word: object) -> str:
    """`word` quoted for a shell, without control characters and backticks.

    >>> shell_word("two words"), shell_word("two\\nlines")
    ("'two words'", '"$(printf %b \\'two\\\\0012lines\\')"')
    """
    text = str(word)
    if printable(text) == text and "`" not in text:
        return shlex.quote(text)
    octal = "".join(chr(b) if PLAIN.match(bytes([b])) else f"\\0{b:03o}" for b in os.fsencode(text))
    return f"\"$(printf %b '{octal}')\""


def shell_path(path: object) -> str:
    """`path` quoted for a shell, as an argument that is not taken for an option."""
    return shell_word(not_an_option(str(path)))


def not_an_option(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def shell_join(words: Iterable[object]) -> str:
    """A command line of `words` that can be copied into a shell."""
    return " ".join(map(shell_word, words))


def markdown(text: object) -> str:
    r"""`text` as a line of Markdown: only code between backticks is markup, all else is shown.

    >>> markdown("# [a](b) *c* <d> `e_f`")
    '\\# \\[a\\](b) \\*c\\* &lt;d> `e_f`'
    """
    line = inline_markdown(text).lstrip()
    return LINE_START.sub(r"\1\\\2", line)


def inline_markdown(text: object) -> str:
    """As `markdown`, for text inside a line, such as a cell of a table."""
    parts = CODE.split(printable(text))  # texts and codes in turns
    parts[::2] = [MARKUP.sub(_show, part) for part in parts[::2]]
    return "".join(parts)


def _show(found: re.Match[str]) -> str:
    return {"<": "&lt;", "&": "&amp;"}.get(found[0], f"\\{found[0]}")
