"""Words of a launch command, by argparse's rules: the server's own parser decides what is right."""

from __future__ import annotations

import argparse

import pytest

from kvcanary_cli.capacity.arguments import Arguments, parse_words
from kvcanary_cli.capacity.flags import flag_table
from kvcanary_cli.capacity.origin import COMMAND_LINE, Origin, Place
from kvcanary_cli.capacity.tables import find_version, read_table
from kvcanary_cli.errors import InputError, KvCanaryError, UsageError

TABLE = flag_table(find_version("0.5.23"))
OLD = flag_table(find_version("0.5.18"))


def parse(*words: str, table=TABLE, place: Place = COMMAND_LINE) -> Arguments:
    return parse_words(words, table, place)


def values(*words: str, table=TABLE) -> dict[str, object]:
    return {name: given.value for name, given in parse(*words, table=table).values.items()}


def refusal(*words: str, table=TABLE) -> str:
    with pytest.raises(UsageError) as caught:
        parse(*words, table=table)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tp-size", "8"], {"--tp-size": 8}),
        (["--tp-size=8"], {"--tp-size": 8}),
        (["--tp", "8"], {"--tp-size": 8}),
        (["--tp=8"], {"--tp-size": 8}),
        (["--tensor-parallel-size", "8"], {"--tp-size": 8}),
        (["--dp", "2"], {"--dp-size": 2}),
        (["--ep", "4"], {"--ep-size": 4}),
        (["--model", "m"], {"--model-path": "m"}),
        (["--tp", "2", "--tensor-parallel-size", "4"], {"--tp-size": 4}),
        (["--chunked-prefill-size", "-1"], {"--chunked-prefill-size": -1}),
        (["--max-total-tokens", "1Mi"], {"--max-total-tokens": 1_048_576}),
        (["--max-prefill-tokens", "16k"], {"--max-prefill-tokens": 16_000}),
        (["--mem-fraction-static", "0.8"], {"--mem-fraction-static": 0.8}),
        (["--disable-radix-cache"], {"--disable-radix-cache": True}),
        (["--cuda-graph-bs-decode", "1", "2", "4"], {"--cuda-graph-bs-decode": (1, 2, 4)}),
        (["--cuda-graph-bs-decode", "1", "--tp", "2"], {"--cuda-graph-bs-decode": (1,), "--tp-size": 2}),
        (["--model-checksum"], {"--model-checksum": True}),
        (["--model-checksum", "abc"], {"--model-checksum": "abc"}),
        (["--api-key", "-"], {"--api-key": "-"}),
        (["--api-key="], {"--api-key": ""}),
        (
            ['--cuda-graph-config={"decode": {"max_bs": 4}}'],
            {"--cuda-graph-config": '{"decode": {"max_bs": 4}}'},
        ),
        (["--cuda-graph-config", '{"decode": {}}'], {"--cuda-graph-config": '{"decode": {}}'}),
        (["--no-speculative-enable-w4a4-mxfp4-megamoe"], {"--speculative-enable-w4a4-mxfp4-megamoe": False}),
        ([], {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_accepted(words, expected):
    assert values(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--pp", "2"],
            "ambiguous option: --pp could match --pp-async-batch-depth, --pp-max-micro-batch-size, --pp-size",
        ),
        (
            ["--cuda-graph-max-bs", "8"],
            "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
            "--cuda-graph-max-bs-prefill",
        ),
        (["--page"], "ambiguous option: --page could match --page-size, --paged-experts-num-resident"),
        (["--tp"], "`--tp` needs a value"),
        (["--tp", "--dp", "2"], "`--tp` needs a value"),
        (["--max-total-tokens", "-1k"], "`--max-total-tokens` needs a value"),
        (["--cuda-graph-bs-decode"], "`--cuda-graph-bs-decode` needs at least one value"),
        (["--tp", "eight"], "`--tp` wants an integer, found `eight`"),
        (["--tp", "8k"], "`--tp` wants an integer, found `8k`"),
        (
            ["--max-total-tokens", "16K"],
            "`--max-total-tokens` wants an integer such as 16384, 16k or 16Ki, "
            "found `16K` (the unit is written k)",
        ),
        (["--mem-fraction-static", "x"], "`--mem-fraction-static` wants a number, found `x`"),
        (["--kv-canary", "on"], "`--kv-canary` takes none, log, raise, found `on`"),
        (["--disable-radix-cache=1"], "`--disable-radix-cache` is a switch and takes no value, found `1`"),
        (
            ["--disable-radix-cache", "1"],
            "`1` after `--disable-radix-cache` is neither a flag nor the value of one",
        ),
        (["8"], "`8` is neither a flag nor the value of one"),
        (["-tp", "8"], "`-tp` is not a flag of the server, all of which begin with two dashes"),
        (["--", "--tp", "8"], "a second `--` stands inside the launch command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused(words, message):
    assert refusal(*words) == message


def test_one_dash_gets_the_flag_with_two_as_hint():
    with pytest.raises(UsageError) as caught:
        parse("-tp", "8")
    assert caught.value.hint == "did you mean `--tp`?"


def test_unknown_flags_are_kept_with_their_values_passed_over():
    found = parse("--new-thing", "3", "4", "--tp", "2", "--other=x", "--new-thing", "5")
    assert found.unknown == ("--new-thing", "--other")
    assert {name: given.value for name, given in found.values.items()} == {"--tp-size": 2}


def test_older_releases_take_graph_flags_without_a_phase():
    assert values("--cuda-graph-max-bs", "8", table=OLD) == {"--cuda-graph-max-bs-decode": 8}
    assert values("--cuda-graph-bs", "1", "2", table=OLD) == {"--cuda-graph-bs-decode": (1, 2)}


def test_the_place_of_a_value_is_kept():
    given = parse("--tp", "8", place=Place(file="a.yaml", line=3)).values["--tp-size"]
    assert (given.spelled, given.place.origin, given.place.name(given.spelled)) == (
        "--tp",
        Origin.FILE,
        "a.yaml: --tp",
    )
    with pytest.raises(InputError) as caught:
        parse("--tp", "x", place=Place(file="a.yaml", line=3))
    assert str(caught.value) == "a.yaml:3: `--tp` wants an integer, found `x`"


def test_arguments_on_top_of_others():
    low, high = parse("--tp", "2", "--dp", "2", "--a-new-one"), parse("--tp", "4", "--b-new-one")
    both = high.over(low)
    assert {name: given.value for name, given in both.values.items()} == {"--tp-size": 4, "--dp-size": 2}
    assert both.unknown == ("--a-new-one", "--b-new-one")


TYPES = {"int": int, "float": float}


def stock_parser() -> argparse.ArgumentParser:
    """A parser as the server builds it, from the same table."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for row in read_table("flags"):
        names = row["flags"].split(" ")
        if row["takes"] == "switch":
            parser.add_argument(*names, action="store_true", dest=names[0])
            continue
        nargs = {"value": None, "list": "+", "optional": "?"}[row["takes"]]
        parser.add_argument(
            *names,
            type=TYPES.get(row["type"], str),
            nargs=nargs,
            dest=names[0],
            const="on" if nargs == "?" else None,
        )
    return parser


@pytest.fixture(scope="module")
def stock():
    return stock_parser()


COMMANDS = [
    "--tp 8 --dp 2",
    "--tp=8 --dp=2 --tp 4",
    "--chunked-prefill-size -1",
    "--chunked-prefill-size=-1",
    "--mem-fraction-static .5",
    "--disable-radix --tp 2",
    "--cuda-graph-bs-d 1 2 4 --tp 2",
    "--cuda-graph-bs-d=7",
    "--pp 2",
    "--page 1",
    "--tp",
    "--tp x",
    "--disable-radix-cache=1",
    "--model-checksum --tp 2",
    "--model-checksum x",
    "--model m --model-path n",
    "--speculative-draft-model d",
    "--enable-dp-attention --dp-size 8",
    "--api-key -x",
    "--api-key -5",
    "--api-key -5.5",
    "--api-key - --tp 1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_agrees_with_argparse(stock, command, capsys):
    words = command.split(" ")
    try:
        namespace = vars(stock.parse_args(words))
    except (SystemExit, argparse.ArgumentError):
        with pytest.raises(KvCanaryError):
            parse(*words)
        return
    ours = {name: list(v) if isinstance(v, tuple) else v for name, v in values(*words).items()}
    theirs = {name: value for name, value in namespace.items() if value not in (None, False)}
    if "--model-checksum" in ours and ours["--model-checksum"] is True:
        ours["--model-checksum"] = "on"
    assert ours == theirs
