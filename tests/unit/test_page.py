"""A report as Markdown with linked pictures and as HTML with embedded ones; text is escaped."""

import base64
import re
from html import unescape

import pytest

from tapas.escapes import shell_join
from tapas.page import (
    Charts,
    Command,
    Heading,
    Lists,
    Marked,
    Paragraph,
    Picture,
    Table,
    as_html,
    as_markdown,
)

PARTS = [
    Paragraph("a <b> & 'co'"),
    Heading("b <i>"),
    Command("tapas compare 'x & y' > z"),
    Table(("", "c <u>"), [["d | e", "f <s>"], ["g\nh", "<"]]),
    Picture("p.png", "what 'it' <shows>"),
    Paragraph("i <b>", "rule"),
    Paragraph("j", "note"),
    Lists("k <b>", {"l <i>": ["m", Marked("n <u>")]}),
]


def test_charts_are_inside_of_html_and_markdown_shows_a_picture():
    svgs = {"a <b>": "<svg></svg>"}
    page = as_html("T", [Charts(svgs)])
    assert "<figure><figcaption>a &lt;b&gt;</figcaption><svg></svg></figure>" in page
    with pytest.raises(ValueError, match=r"no picture for Markdown in place of a <b>\."):
        as_markdown("T", [Charts(svgs)])
    both = Charts(svgs, "small print", Picture("p.png", "words"))
    assert as_markdown("T", [both]) == "# T\n\n![words](p.png)\n"
    assert as_html("T", [both]) == page.replace(
        "</figure></div>", "</figure></div>\n<p class='note'>small print</p>"
    )


def test_a_table_of_words_is_aligned_to_the_left_and_needs_no_heading():
    table = Table(("", ""), [("a", "b")], words=True)
    assert as_markdown("T", [table]).endswith("|  |  |\n|---|---|\n| a | b |\n")
    page = as_html("T", [table])
    region = "tabindex='0' role='region' aria-label='T, table 1'"
    assert f"<div class='wide words' {region}><table><tbody>" in page


def test_rows_and_columns_are_named_for_screen_readers_and_what_is_wide_can_be_scrolled_by_keys():
    table = Table(("", "c"), [("r", "1"), ("", "2")])
    page = as_html("T", [Heading("<S>"), table, table, Picture("p", "q")], {"p": b""})
    assert "<thead><tr><td></td><th scope='col'>c</th></tr></thead>" in page
    assert "<tr><th scope='row'>r</th><td>1</td></tr>\n<tr><td></td><td>2</td></tr>" in page
    names = re.findall(r"tabindex='0' role='region' aria-label='([^']*)'", page)
    assert names == [f"&lt;S&gt;, {each}" for each in ("table 1", "table 2", "figure 3")]


def test_the_complete_markdown():
    assert as_markdown("T", PARTS) == (
        "# T\n\n"
        "a &lt;b> & 'co'\n\n"
        "## b &lt;i>\n\n"
        "```console\n$ tapas compare 'x & y' > z\n```\n\n"
        "|  | c &lt;u> |\n|---|---:|\n| d \\| e | f &lt;s> |\n| g\\\\nh | &lt; |\n\n"
        "![what 'it' &lt;shows>](p.png)\n\n"
        "> i &lt;b>\n\n"
        "j\n\n"
        "### k &lt;b>\n\nl &lt;i>:\n\n- m\n- **n &lt;u>**\n"
    )


def test_the_page_needs_no_other_file():
    page = as_html("T", PARTS, {"p.png": b"picture"})
    assert base64.b64encode(b"picture").decode() in page
    assert not re.search(r"(src|href)='?(?!'data:)[^>]*\.(png|css|js)", page)


def test_text_is_escaped_in_html():
    page = as_html("T <b>", PARTS, {"p.png": b"picture"})
    for tag in ("<b>", "<i>", "<u>", "<s>", "<shows>"):
        assert tag not in page
    text = unescape(re.sub(r"<[^>]*>", "\n", page))
    words = [
        "T <b>",
        "a <b> & 'co'",
        "b <i>",
        "x & y' > z",
        "c <u>",
        "d | e",
        "f <s>",
        "i <b>",
        "k <b>",
        "l <i>",
        "n <u>",
    ]
    places = [text.rindex(word) for word in words]
    assert places == sorted(places)
    assert "<p class='rule'>i &lt;b&gt;</p>" in page
    assert "<ol><li>m</li><li class=hit>n &lt;u&gt;</li></ol>" in page
    assert "alt='what &#x27;it&#x27; &lt;shows&gt;'" in page


HOSTILE = "x|`y`](javascript:z)<img src=1 onerror='a'>\"\n\n# h\t\x1b[2J\u202e\udcff ``` *b*"


def test_a_hostile_name_is_only_text_on_both_pages():
    parts = [
        Paragraph(HOSTILE),
        Paragraph(HOSTILE, "rule"),
        Heading(HOSTILE),
        Command(shell_join(["tapas", "compare", HOSTILE])),
        Table((HOSTILE, "b"), [[HOSTILE, HOSTILE]]),
        Picture("p.png", HOSTILE),
        Lists(HOSTILE, {HOSTILE: [HOSTILE, Marked(HOSTILE)]}),
    ]
    text = as_markdown(HOSTILE, parts)
    page = as_html(HOSTILE, parts, {"p.png": b"picture"})
    for written in (text, page):
        written.encode()
        assert not {"\t", "\x1b", "\u202e"} & set(written)
        assert "<img src=1" not in written
    assert page.count("<img") == 1
    lines = text.splitlines()
    assert sum(line.startswith("#") for line in lines) == 3  # title, heading and lists
    assert sum(line.startswith("```") for line in lines) == 2
    table = [line for line in lines if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in table] == [3, 3, 3]
    outside_code = re.sub(r"(?<!\\)`[^`]*`", "", text.replace("```", ""))
    assert len(re.findall(r"(?<!\\)\]\(", outside_code)) == 1  # of the picture
