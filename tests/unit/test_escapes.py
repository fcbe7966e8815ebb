"""Names from outside are shown on one line, and commands with them can be copied into a shell."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas.escapes import markdown, printable, shell_join, shell_path, shell_word, shortened

NAMES = [
    "x[1]", "a*b?", "it's \"it\"", "two  words", "tab\there", "line\nbreak", "\x1b[2J\x07", "-dash",
    "😀 :smile:", "\u202eabc\u2066", "%s {} $HOME", "back\\slash\\n", "`id`", "$(id)", "~", "",
    os.fsdecode(b"\xff\xfe"), "東京\u3000タワー", "\x00\x9b31m"[1:], "a\u2028b",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tab\tline\nend\r", r"tab\tline\nend\r"),
        ("\x1b[2J\x07\x7f\x9b", r"\x1b[2J\x07\x7f\x9b"),
        ("\u202eabc\u2066\u200f\u2028", r"\u202eabc\u2066\u200f\u2028"),
        (os.fsdecode(b"r\xfcn"), r"r\xfcn"),
        ("\ud800", r"\ud800"),
        ("[red] :smile: 😀 👩‍🍳 東京\u3000塔 %s {} back\\slash", None),
    ],
)
def test_control_characters_are_shown_and_all_others_are_as_they_were(name, shown):
    assert printable(name) == (name if shown is None else shown)


@given(st.text())
def test_what_is_printable_is_one_line_and_stays_as_it_is(name):
    shown = printable(name)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    shown.encode()


def test_words_of_a_command_survive_a_shell():
    names = [name for name in NAMES if not name.endswith("\n")]
    command = shell_join(["printf", "%s\\0", *names])
    assert printable(command) == command
    assert "`" not in command
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(name) for name in names]


def test_a_path_is_never_taken_for_an_option():
    assert shell_path("-x") == "./-x"
    assert shell_path("a/-x") == "a/-x"
    assert shell_word("-x") == "-x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![x](javascript:y)", r"!\[x\](javascript:y)"),
        ("<b> &amp; a & b", "&lt;b> &amp;amp; a & b"),
        ("*a* _b_ c_d ~~e~~", r"\*a\* \_b\_ c_d \~\~e\~\~"),
        ("a\n\n# b\n| c", r"a\\n\\n# b\\n| c"),
        ("see `a_b [c](d)` there", "see `a_b [c](d)` there"),
        ("` `` ` [x](y) `", r"\` \`\` ` [x](y) `"),  # the last two are code
        ("`[x](y)", r"\`\[x\](y)"),
        ("# a", r"\# a"),
        ("  > a", r"\> a"),
        ("1. a", r"1\. a"),
        ("- a", r"\- a"),
        ("12 users, -1 to +2 (95 %)", "12 users, -1 to +2 (95 %)"),
    ],
)
def test_markdown_shows_a_name_as_it_is(text, shown):
    assert markdown(text) == shown


def test_long_sentences_keep_their_ends():
    value = "y" * 3_000
    assert shortened(f"a is '{value}'. Cure.") == f"a is '{'y' * 79}…' (3,000 characters). Cure."
    assert shortened(f"a is {value}. Cure.") == f"a is {'y' * 80}… (3,001 characters) Cure."
    cut = shortened(f"a is '{'it ' * 2_000}'s. " + "x y " * 2_000 + "Cure.")
    assert len(cut) < 500
    assert cut.startswith("a is 'it it")
    assert cut.endswith(" x y Cure.")
    assert shortened("word " * 99) == "word " * 99
