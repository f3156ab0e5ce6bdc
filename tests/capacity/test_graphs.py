"""CUDA graph flags: which one decides the largest batch, and whether there is a graph."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import UsageError
from tests.capacity.launches import setup, sizes


@pytest.mark.parametrize(
    ("words", "batch", "setting"),
    [
        ([], 256, "--cuda-graph-max-bs-decode"),
        (["--tp", "4"], 512, "--cuda-graph-max-bs-decode"),
        (["--cuda-graph-max-bs-decode", "64"], 64, "--cuda-graph-max-bs-decode"),
        (["--cuda-graph-max-bs-decode", "0"], 0, "--cuda-graph-max-bs-decode"),
        (["--cuda-graph-bs-decode", "1", "32", "8"], 32, "--cuda-graph-bs-decode"),
        (
            ["--cuda-graph-bs-decode", "1", "32", "--cuda-graph-max-bs-decode", "64"],
            32,
            "--cuda-graph-bs-decode",
        ),
        (
            ["--cuda-graph-config", '{"decode":{"max_bs":16}}', "--cuda-graph-bs-decode", "1"],
            16,
            "--cuda-graph-config",
        ),
        (["--cuda-graph-config", '{"decode":{"max_bs":16,"bs":[1,2]}}'], 2, "--cuda-graph-config"),
        (["--cuda-graph-config", '{"decode":{"backend":"full"}}'], 256, "--cuda-graph-max-bs-decode"),
        (["--cuda-graph-config", '{"prefill":{"max_bs":9}}'], 256, "--cuda-graph-max-bs-decode"),
        (["--cuda-graph-config", '{"decode":{"max_bs":null,"bs":null}}'], 256, "--cuda-graph-max-bs-decode"),
        (["--disable-cuda-graph"], 256, "--cuda-graph-max-bs-decode"),
        (["--max-running-requests", "100"], 100, "--cuda-graph-max-bs-decode"),
        (
            ["--max-running-requests", "100", "--cuda-graph-max-bs-decode", "200"],
            200,
            "--cuda-graph-max-bs-decode",
        ),
        # the limit over all groups, before it is divided
        (
            ["--tp", "8", "--attn-dp-size", "8", "--max-running-requests", "300"],
            300,
            "--cuda-graph-max-bs-decode",
        ),
        # the limit that speculation sets comes too late to shrink the default
        (["--speculative-algorithm", "STANDALONE"], 256, "--cuda-graph-max-bs-decode"),
    ],
)
def test_largest_batch(words, batch, setting):
    graph = setup(*words).graph
    assert (graph.max_batch, graph.setting) == (batch, setting)


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        ([], True),
        (["--disable-cuda-graph"], False),
        (["--disable-decode-cuda-graph"], False),
        (["--disable-prefill-cuda-graph"], True),
        (["--cuda-graph-backend-decode", "disabled"], False),
        (["--cuda-graph-backend-decode", "full", "--disable-cuda-graph"], True),
        (["--cuda-graph-backend-prefill", "disabled"], True),
        (
            [
                "--cuda-graph-config",
                '{"decode":{"backend":"disabled"}}',
                "--cuda-graph-backend-decode",
                "full",
            ],
            False,
        ),
        (["--disaggregation-mode", "prefill"], False),
        (["--disaggregation-mode", "decode"], True),
    ],
)
def test_whether_there_is_a_graph(words, is_on):
    assert setup(*words).graph.is_on is is_on
    memory = sizes(*words).memory
    assert memory.total == memory.buffers + memory.workspace * (2 if is_on else 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "`--cuda-graph-config` is not JSON: "),
        ("[]", "`--cuda-graph-config` wants an object with sections"),
        ('{"decode":3}', "`--cuda-graph-config` wants an object with sections"),
        ('{"decod":{}}', "`--cuda-graph-config` has the section `decod`, which the server does not know"),
        (
            '{"decode":{"max-bs":3}}',
            "`--cuda-graph-config` has the key `max-bs`, which the server does not know",
        ),
        ('{"decode":{"max_bs":"3"}}', '`--cuda-graph-config` wants an integer for max_bs, found `"3"`'),
        ('{"decode":{"max_bs":true}}', "`--cuda-graph-config` wants an integer for max_bs, found `true`"),
        ('{"decode":{"max_bs":-3}}', "`--cuda-graph-config` is -3, it must be at least 0"),
        ('{"decode":{"bs":[]}}', "`--cuda-graph-config` wants a list of integers for bs, found `[]`"),
        ('{"decode":{"bs":[1,"2"]}}', "`--cuda-graph-config` wants a list of integers for bs"),
        ("[" * 100_000, "`--cuda-graph-config` is not JSON: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_json(value, message):
    with pytest.raises(UsageError) as caught:
        setup("--cuda-graph-config", value)
    assert str(caught.value).startswith(message)


def test_keys_that_resemble_nothing_are_left_to_the_server():
    assert setup("--cuda-graph-config", '{"decode":{"zzz":1,"max_bs":8}}').graph.max_batch == 8


def test_a_negative_batch():
    with pytest.raises(UsageError, match="`--cuda-graph-bs-decode` is -8, it must be at least 0"):
        setup("--cuda-graph-bs-decode", "-8")
