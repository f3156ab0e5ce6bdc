"""Start-up logs: what they state, how they are decorated, and where they and the formula disagree."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.audit import audit
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.server_log import read_log
from kvcanary_cli.errors import InputError

SIZES = (
    "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=2048, context_len=131072, available_gpu_mem=7.52 GB"
)
INSTALLED = (
    "install_canary: disaggregation_mode=null config=CanaryConfig(mode='log', ring_capacity=1024) "
    "capacities=CanaryLaunchCapacities(per_forward_verify_capacity=1200000, "
    "per_forward_write_req_capacity=2048, per_forward_write_entry_capacity=8192) groups=['full'] window=0 num_steps=1"
)


def write(tmp_path, *lines: str) -> str:
    path = tmp_path / "server.log"
    path.write_text("\n".join(["INFO: started", *lines, "INFO: ready"]) + "\n", encoding="utf-8")
    return str(path)


def values(facts) -> dict[str, int]:
    names = ("tokens", "swa_tokens", "running", "context", "chunk", "max_prefill", "write_req", "write_entry")
    return {
        name: getattr(facts, name).value for name in (*names, "verify") if getattr(facts, name) is not None
    }


ALL = {
    "tokens": 400_000,
    "running": 2048,
    "context": 131_072,
    "chunk": 8192,
    "max_prefill": 16_384,
    "write_req": 2048,
    "write_entry": 8192,
    "verify": 1_200_000,
}


@pytest.mark.parametrize(
    "decorate",
    [
        lambda line: line,
        lambda line: f"[2026-11-30 17:20:00] {line}",
        lambda line: f"[2026-11-30 17:20:00 TP0] {line}",
        lambda line: f"\x1b[32m[2026-11-30 17:20:00 DP1 TP3]\x1b[0m \x1b[1m{line}\x1b[0m",
        lambda line: f"2026-11-30T17:20:00.123Z stdout F [2026-11-30 17:20:00 TP0] {line}\r",
        lambda line: line.replace("=", " = "),
        lambda line: line.replace("=4", "=\x1b[36m4").replace("000,", "000\x1b[0m,"),
    ],
    ids=["plain", "time", "rank", "colours", "container", "spaces", "coloured-numbers"],
)
def test_decorations(tmp_path, decorate):
    facts = read_log(write(tmp_path, decorate(SIZES), decorate(INSTALLED)))
    assert values(facts) == ALL
    assert facts.tokens.source.endswith("server.log:2")
    assert facts.verify.source.endswith("server.log:3")


def test_ranks_and_restarts(tmp_path):
    facts = read_log(
        write(
            tmp_path,
            f"[10:00:00 TP0] {SIZES.replace('400000', '1')}",
            f"[11:00:00 TP0] {SIZES}",
            f"[11:00:00 TP1] {SIZES.replace('400000', '399000')}",
            f"[11:00:00 TP0] {INSTALLED}",
        )
    )
    assert facts.ranks == ("TP0", "TP1")
    # the server takes the smallest pool
    assert facts.tokens.value == 399_000
    assert facts.differing == (("tokens", (399_000, 400_000)),)


def test_a_window_pool(tmp_path):
    facts = read_log(
        write(tmp_path, "Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288")
    )
    assert values(facts) == {"tokens": 375_360, "swa_tokens": 300_288}


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff\xfe\x00 junk\n" + SIZES.encode() + b" \xff\n")
    assert values(read_log(str(path)))["tokens"] == 400_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing here", "3 lines hold no start-up line of a server"),
        ("max_total_num_tokens=99999999999999999999", "is no size that a server can have"),
        ("max_total_num_tokens=-5", "is no size that a server can have"),
    ],
)
def test_logs_that_say_nothing(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_log(write(tmp_path, text))
    assert str(tmp_path) in caught.value.where


def test_a_missing_log(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_log(str(tmp_path / "absent.log"))


def audited(tmp_path, *lines: str, command: list[str] | None = None, **options):
    return audit(make_request(from_log=write(tmp_path, *lines), command=command, **options))


def ids(result) -> set[str]:
    return {finding.rule.id for finding in result.findings}


def test_a_log_alone_is_enough(tmp_path):
    result = audited(tmp_path, SIZES, INSTALLED)
    assert (result.sizes.write_req, result.sizes.write_entry, result.sizes.verify) == (2048, 8192, 1_200_000)
    assert ids(result) == {"verify-share"}
    assert result.setup.inputs["pool_tokens"].origin == "log"
    assert result.setup.inputs["chunked_prefill_size"].origin == "log"


@pytest.mark.parametrize(
    ("before", "after", "name", "logged", "computed"),
    [
        ("max_running_requests=2048", "max_running_requests=2000", "max_running_requests", 2000, 2048),
        ("write_entry_capacity=8192", "write_entry_capacity=4096", "write_entry_capacity", 4096, 8192),
        ("verify_capacity=1200000", "verify_capacity=1200003", "verify_capacity", 1_200_003, 1_200_000),
    ],
)
def test_where_log_and_formula_disagree_the_log_counts(tmp_path, before, after, name, logged, computed):
    result = audited(tmp_path, SIZES.replace(before, after), INSTALLED.replace(before, after))
    assert (name, logged, computed) in result.sizes.differing
    text = next(finding.hit.text for finding in result.findings if finding.rule.id == "log-differs")
    assert f"{name} is {logged:,} in the log and {computed:,} by flags and formula" in text


def test_a_smaller_capacity_in_the_log_is_judged(tmp_path):
    small = INSTALLED.replace("write_entry_capacity=8192", "write_entry_capacity=4096")
    assert "entry-chunk" in ids(audited(tmp_path, SIZES, small))


def test_flags_beat_the_log_and_the_log_beats_the_config(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "pool: {tokens: 5000, context_length: 4096}\nargs: {chunked-prefill-size: 1024}\n", encoding="utf-8"
    )
    result = audited(tmp_path, SIZES, INSTALLED, config_path=str(config))
    assert result.setup.pool.tokens == 400_000
    assert result.setup.pool.context_length == 131_072
    assert result.setup.prefill.chunk == 8192
    flags = ["--chunked-prefill-size", "32768"]
    result = audited(tmp_path, SIZES, INSTALLED, config_path=str(config), command=flags)
    assert result.setup.prefill.chunk == 32_768
    assert ("chunked_prefill_size", 8192, 32_768) in result.sizes.differing
    # another launch than that of the log: its capacities don't hold
    assert result.sizes.write_entry == 16_384
    assert {"entry-chunk", "log-differs"} <= ids(result)


def test_fixes_of_a_launch_with_a_log_pass(tmp_path):
    result = audited(tmp_path, SIZES, INSTALLED, command=["--chunked-prefill-size", "32768"])
    assert [" ".join(change.text for change in fix.changes) for fix in result.fixes] == [
        "--chunked-prefill-size 16384",
        "--max-prefill-tokens 32768",
    ]
