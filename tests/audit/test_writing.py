"""`write_dump` inside a server: what it takes and refuses, without torch or numba; and dumps that are asked for."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.recorders.dump_signal import install_signal_dump
from kvcanary_cli.trace.dump import DumpSource, write_dump
from kvcanary_cli.trace.safetensors import open_safetensors
from tests.audit.dumps import World, failing
from tests.cli import ROOT, call, python


def test_neither_torch_nor_numba_is_imported():
    done = python(
        "-c",
        "import sys, kvcanary_cli.trace.dump, kvcanary_cli.recorders.dump_signal\n"
        "print({'torch', 'triton', 'numba', 'typer', 'rich'} & {m.partition('.')[0] for m in sys.modules})",
    )
    assert (done.code, done.out, done.err) == (0, "set()\n", "")


def test_torch_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    world = World()
    arguments = world.arguments()
    plain = world.write(tmp_path / "plain")
    arguments["canary"] = {
        name: torch.from_numpy(buffer).view(torch.uint8) for name, buffer in world.canary.items()
    }
    for name in ("req_to_token", "seq_lens", "expected_tokens", "expected_lens"):
        arguments[name] = torch.from_numpy(arguments[name])
    sources = [
        DumpSource(**{**{f: getattr(s, f) for f in s.__slots__}, "tensor": torch.from_numpy(s.tensor)})
        for s in arguments["sources"]
    ]
    # a layer's buffer as a server has it: [slots, heads, dim] of BF16
    v = sources[1].tensor.view(torch.bfloat16).reshape(64, 4, 6)
    arguments["sources"] = [
        sources[0],
        DumpSource(name="v", tensor=v, num_bytes_per_token=48, read_bytes=32, half="v"),
    ]
    write_dump(tmp_path / "torch", **arguments)
    one, other = open_safetensors(str(tmp_path / "plain")), open_safetensors(str(tmp_path / "torch"))
    assert one.metadata == other.metadata
    for name in one.tensors:
        assert (one.bytes_of(name) == other.bytes_of(name)).all(), name
    assert failing(plain) == failing(str(tmp_path / "torch")) == set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"canary": {"tail_k": np.zeros((4, 4), np.int64)}},
            "'tail_k' is no buffer of a canary, known are head_k",
        ),
        ({"canary": {"tail_k_full": np.zeros((4, 4), np.int32)}}, "is I32 [4, 4], I64 [slots, 4 or more]"),
        ({"seq_lens": np.zeros(3, np.int64)}, "the tensors don't agree about the number of rows"),
        ({"hash_mode": "some"}, "is 'some', known are none, partial, all"),
        (
            {"sources": [DumpSource(name="k", tensor=np.zeros(8), num_bytes_per_token=16, read_bytes=16)]},
            "source 'k' has shape [8]",
        ),
        (
            {
                "sources": [
                    DumpSource(name="k", tensor=np.zeros((64, 3)), num_bytes_per_token=24, read_bytes=16)
                ]
            },
            "has num_bytes_per_token 24, a positive multiple of 16 is expected",
        ),
        (
            {
                "sources": [
                    DumpSource(name="k", tensor=np.zeros((64, 4)), num_bytes_per_token=16, read_bytes=32)
                ]
            },
            "has read_bytes 32, at most num_bytes_per_token=16",
        ),
    ],
)
def test_what_is_refused(tmp_path, changes, words):
    with pytest.raises(InputError, match=re.escape(words)):
        World().write(tmp_path / "d", **changes)
    assert not list(tmp_path.iterdir())


def test_only_the_hashed_bytes_are_needed(tmp_path, capsys):
    world = World()
    short = DumpSource(
        name="k", tensor=world.kv["k"].reshape(64, 32)[:, :16], num_bytes_per_token=16, read_bytes=16
    )
    dumped = world.write(tmp_path / "d", sources=[short, world.arguments()["sources"][1]])
    assert call(capsys, "audit", dumped, "--device", "cpu").code == 0


def test_the_example_of_the_docs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "dump-format.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import numpy.*?)```", text, re.DOTALL)
    exec(compile(example, "dump-format.md", "exec"), {})
    done = call(capsys, "audit", "small.safetensors", "--device", "cpu")
    assert done.code == 0
    assert done.out.endswith("rows=1 checked=6 unchecked=verify_token exit=0\n")


@pytest.fixture
def asked():
    made = []

    def install(callback, **options):
        made.append(install_signal_dump(callback, **options))
        return made[-1]

    yield install
    for one in reversed(made):
        one.remove()


def test_a_signal_waits_for_the_next_poll(asked):
    calls = []
    dumps = asked(lambda number, reason: calls.append((number, reason)))
    assert not dumps.poll()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert dumps.is_wanted
    assert calls == []
    assert dumps.poll()
    assert not dumps.poll()
    os.kill(os.getpid(), signal.SIGUSR2)
    dumps.request("violation")
    dumps.poll()
    assert calls == [(1, "signal"), (2, "signal")]


def test_the_handler_before_is_called_and_comes_back(asked):
    calls = []
    first = asked(lambda number, reason: calls.append("first"))
    second = asked(lambda number, reason: calls.append("second"))
    os.kill(os.getpid(), signal.SIGUSR2)
    assert second.poll()
    assert first.poll()
    second.remove()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (second.poll(), first.poll()) == (False, True)
    first.remove()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    assert calls == ["second", "first", "first"]


def test_a_callback_that_fails_is_logged_and_no_more(asked, caplog):
    def fail(number, reason):
        raise OSError("disk full")

    dumps = asked(fail)
    dumps.request("violation")
    with caplog.at_level(logging.WARNING, "kvcanary"):
        assert not dumps.poll()
    assert "the dump failed: disk full; the engine is not affected" in caplog.text
    assert dumps.num_written == 0


def test_no_more_dumps_than_the_limit(asked, caplog):
    calls = []
    dumps = asked(lambda number, reason: calls.append(number), limit=2)
    for _ in range(5):
        dumps.request("violation")
        dumps.poll()
    assert calls == [1, 2]
    assert "2 were written, the limit" in caplog.text


def test_other_threads_take_no_signal():
    errors = []

    def run():
        dumps = install_signal_dump(lambda number, reason: errors.append(reason), number=None)
        dumps.request("violation")
        dumps.poll()
        try:
            install_signal_dump(lambda number, reason: None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors[0] == "violation"
    assert "in the main thread only" in errors[1]
