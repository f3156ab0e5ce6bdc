"""Numbers as people and servers write them."""

from __future__ import annotations

import re

import pytest

from kvcanary_cli.capacity.numbers import parse_human_int, parse_int, parse_memory_mib, parse_switch


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16384", 16384),
        ("-1", -1),
        ("1_000", 1000),
        ("16k", 16_000),
        ("1.5k", 1500),
        ("1.001k", 1001),
        ("2M", 2_000_000),
        ("1G", 10**9),
        ("1T", 10**12),
        ("16Ki", 16_384),
        ("1Mi", 1_048_576),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        (" 16k ", 16_000),
    ],
)
def test_human_integers(text, value):
    assert parse_human_int(text) == value


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("16K", "wants an integer such as 16384, 16k or 16Ki, found `16K` (the unit is written k)"),
        ("1mi", "wants an integer such as 16384, 16k or 16Ki, found `1mi` (the unit is written Mi)"),
        ("1.5Ki", "takes no decimals before Ki, found `1.5Ki`"),
        ("1.0005k", "wants a whole number, found `1.0005k`"),
        ("1.5", "wants an integer such as 16384, 16k or 16Ki, found `1.5`"),
        ("k", "wants an integer such as 16384, 16k or 16Ki, found `k`"),
        ("", "wants an integer such as 16384, 16k or 16Ki, found ``"),
        ("-1k", "wants an integer such as 16384, 16k or 16Ki, found `-1k`"),
        ("1e6", "wants an integer such as 16384, 16k or 16Ki, found `1e6`"),
        ("9" * 5000, "has a number of 5,000 digits"),
        ("9" * 5000 + "k", "has a number of 5,001 digits"),
    ],
)
def test_what_is_no_human_integer(text, phrase):
    with pytest.raises(ValueError, match=f"^{re.escape(phrase)}$"):
        parse_human_int(text)


def test_plain_integers_know_no_units():
    with pytest.raises(ValueError, match=r"^wants an integer, found `16k`$"):
        parse_int("16k")


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("81559", 81559),
        ("81559MiB", 81559),
        ("80GiB", 81920),
        ("80Gi", 81920),
        ("80GB", 76293),
        ("1.5GiB", 1536),
        ("0.5 MiB", 0),
    ],
)
def test_memory(text, mib):
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "GiB", "-80GiB", "80XB", "80gib", "1e3", "9" * 5000])
def test_what_is_no_memory(text):
    with pytest.raises(ValueError, match="wants a size such as 81559MiB or 80GiB"):
        parse_memory_mib(text)


@pytest.mark.parametrize("word", ["true", "1", "yes", "y", "TRUE", " Y "])
def test_switched_on(word):
    assert parse_switch(word) is True


@pytest.mark.parametrize("word", ["false", "0", "no", "n", "False"])
def test_switched_off(word):
    assert parse_switch(word) is False


@pytest.mark.parametrize("word", ["", "on", "2"])
def test_neither_on_nor_off(word):
    with pytest.raises(ValueError, match="wants true, 1, yes, y or false, 0, no, n"):
        parse_switch(word)
