"""Every message of the server is recognised, its numbers read, and the advice made with them."""

from __future__ import annotations

import inspect

import pytest

from kvcanary_cli.explain.advice import advise
from kvcanary_cli.explain.families import FAMILIES, Match, find, nearest_template, read, read_shape, templates
from kvcanary_cli.explain.index import codes
from kvcanary_cli.kernels import messages
from tests.explain.server_lines import CASES

PREFIX = "kv-canary: "


def read_text(text: str) -> Match:
    body = text.removeprefix(PREFIX)
    found = read(body) or read_shape(body)
    assert found is not None
    return found


def test_every_text_of_the_server_has_a_family():
    texts = {
        name
        for name, function in vars(messages).items()
        if inspect.isfunction(function) and function.__module__ == messages.__name__
    }
    # `broken_rule` is ours, in the manner of the server's
    assert len(FAMILIES) == len(texts - {"broken_rule"})
    assert {family.id for family in FAMILIES} < {case.family for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_a_message_is_read_whole(name):
    case = CASES[name]
    found = read_text(case.text)
    assert (found.family, found.numbers, found.words) == (case.family, case.numbers, case.words)
    assert found.text == case.text


@pytest.mark.parametrize("name", CASES)
def test_advice_has_the_numbers_of_the_message(name):
    case = CASES[name]
    found = read_text(case.text)
    advice = advise(found)
    assert [change for change, _ in advice.changes] == case.changes
    assert list(advice.pages) == case.pages
    assert set(advice.pages) <= set(codes())
    said = " ".join(advice.what)
    for value in case.numbers.values():
        assert f"{value:,}" in said or name in ("token-ids", "plan-batch below zero")
    assert all(sentence.endswith(".") for sentence in advice.what)


def test_a_batch_of_the_token_check_is_one_less_than_its_offsets():
    found = read_text(messages.scatter_batch(600))
    assert advise(found).what[0].startswith("A step of 600 requests needs 601 offsets")


def test_an_old_flag_names_its_release():
    old = read_text(CASES["write-requests of an old release"].text)
    new = read_text(CASES["write-requests"].text)
    assert (advise(old).version, advise(new).version) == ("0.5.18", None)
    assert any("up to 0.5.18" in sentence for sentence in advise(old).what)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.family in templates()])
def test_a_message_without_prefix_or_behind_other_words(name):
    case = CASES[name]
    found = find(f"ValueError: {case.text.removeprefix(PREFIX)}")
    assert found is not None
    assert (found.family, found.numbers) == (case.family, case.numbers)


def test_the_advice_of_a_message_may_be_cut_off():
    found = read("forward_batch.batch_size=600 exceeds pre-allocated write_req_capacity=512; raise --cuda-gr")
    assert found is not None
    assert (found.numbers, found.words) == ({"batch_size": 600, "write_req_capacity": 512}, {})


@pytest.mark.parametrize(
    "text",
    ["", "all is well", "bs= exceeds write_req_capacity=", "x" * 5000, "must be " * 500, "a=1 " * 500],
)
def test_other_texts_are_none(text):
    assert read(text) is None
    assert read_shape(text) is None
    assert find(text) is None


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("a batch of 600 is over write_req_capacity", "kv-canary: bs=... exceeds write_req_capacity=..."),
        (
            "token count=12 > write_entry_capacity, raise --chunked-prefill-size",
            "kv-canary: forward_batch token count=... exceeds pre-allocated write_entry_capacity=...; raise "
            "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
        ),
        ("the tensor is not contiguous", "kv-canary: ... must be contiguous"),
        ("the quick brown fox is at home", None),
        ("", None),
    ],
)
def test_the_nearest_message_shares_its_rare_words(text, near):
    assert nearest_template(text) == near


@pytest.mark.parametrize(
    ("body", "pages"),
    [
        ("verify entries=400 exceeds verify_capacity=300", ("C4",)),
        ("padded token count=9000 exceeds capacity=8192", ("C2",)),
        ("padded bs=9 exceeds capacity=8", ("C1",)),
        ("depth=9 exceeds limit=8", ()),
    ],
)
def test_a_need_and_a_room_lead_to_the_page_of_their_sort(body, pages):
    assert advise(read_text(body)).pages == pages
