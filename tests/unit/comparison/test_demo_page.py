"""The page: every word it is given is on it, and none of them is taken for HTML."""

import re
from html import unescape

from tapas.comparison.demo_page import Page, Person, render


def test_every_word_is_shown_as_it_is():
    words = [f"{name} <b> & 'co'" for name in "abcdefghijkl"]
    page = Page(
        title=words[0],
        introduction=[words[1]],
        heading=["", words[2]],
        rows=[[words[3], words[4]]],
        remarks=[words[5]],
        curves_note=words[6],
        people_note=words[7],
        people=[Person(words[8], [words[9]], [(words[10], True)], [words[11]])],
    )
    shown = render(page, b"picture")
    assert "<b>" not in shown
    text = unescape(re.sub(r"<[^>]*>", "\n", shown))
    places = [text.rindex(word) for word in words]
    assert places == sorted(places)
    assert "<p class='note'>g &lt;b&gt; &amp; &#x27;co&#x27;</p>\n<h2>For three" in shown
