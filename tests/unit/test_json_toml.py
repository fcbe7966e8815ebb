"""Whatever is wrong with a text is a ValueError: depth, digits, bytes, names."""

import json

import pytest

from tapas.json_toml import MAX_DEPTH, parse_json, parse_toml

TOO_DEEP = "nested more than 100 levels deep"


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 200_000])
def test_deep_json_is_refused(opening, levels):
    closing = "".join({"[": "]", "{": "}"}.get(c, "") for c in reversed(opening))
    text = opening * levels + "1" + closing * levels
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_json(text)
    with pytest.raises(ValueError, match=r"nested more|Expecting value"):
        parse_json(opening * levels)


def test_values_up_to_the_limit_are_read():
    value: object = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value, {}]
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json("[" + "[]," * 500 + "{}]") == [[]] * 500 + [{}]  # wide, not deep


@pytest.mark.parametrize("text", [b"\xff", b'"\xe9"', "", "[1", "9" * 10_000])
def test_other_mistakes_are_value_errors(text):
    with pytest.raises(ValueError, match=r"codec|Expecting|delimiter|digits"):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 50_000, "x = " + "[" * 150 + "]" * 150, "a." * 5_000 + "b = 1"]
)
def test_deep_toml_is_refused(text):
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_toml(text)


@pytest.mark.parametrize(
    "number", ["9" * 10_000, "0x" + "f" * 100_000, str(2**63), str(-(2**63) - 1)]
)
def test_integers_of_more_than_64_bits_are_refused(number):
    with pytest.raises(ValueError, match="an integer has more than 64 bits"):
        parse_toml(f"[a]\nx = [1, {number}]")


def test_integers_of_64_bits_are_read():
    assert parse_toml(f"x = [{-(2**63)}, {2**63 - 1}]") == {"x": [-(2**63), 2**63 - 1]}


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00\\ud83d", "\\udcff"])
def test_half_a_character_is_refused(half):
    words = r"a text has half a character, such as \\ud83d without \\ude00"
    for text in (f'"{half}"', f'[{{"a": "b{half}"}}]', f'{{"{half}": 1}}'):
        with pytest.raises(ValueError, match=words):
            parse_json(text)
    assert parse_json('"\\ud83d\\ude00 \\\\ud83d"') == "😀 \\ud83d"


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"b": {"c": 1, "a": 1, "a": 2}}]'])
def test_a_name_twice_in_one_object_is_refused(text):
    with pytest.raises(ValueError, match=r"^an object has 'a' twice$"):
        parse_json(text)
    assert parse_json('[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]
