"""When dumps are written and what is in them, with stand-ins for SGLang's objects."""

from __future__ import annotations

import os
import signal
import threading
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from kvcanary_cli.recorders import dumps as module
from kvcanary_cli.recorders import pool_facts
from kvcanary_cli.recorders.dump_contents import Moment, expected_tokens, read_contents, written_lengths
from kvcanary_cli.recorders.dumps import Dumps
from kvcanary_cli.settings import DumpSettings
from kvcanary_cli.trace.safetensors import open_safetensors


class Mode(int):
    name = "MODE"


def request(rid, row, committed, prompt=(5, 6, 7), output=()):
    kv = SimpleNamespace(req_pool_idx=row, kv_committed_len=committed)
    return SimpleNamespace(rid=rid, kv=kv, origin_input_ids=array("q", prompt), output_ids=array("q", output))


def runner(rows=8, width=16):
    return SimpleNamespace(
        is_draft_worker=False,
        forward_pass_id=41,
        canary_manager=None,
        req_to_token_pool=SimpleNamespace(req_to_token=np.arange(rows * width).reshape(rows, width)),
        token_to_kv_pool_allocator=SimpleNamespace(page_size=4),
    )


def batch(rows=(), lens=(), mode=2, prefix=None):
    return SimpleNamespace(
        forward_mode=Mode(mode),
        req_pool_indices=np.array(rows, np.int64),
        seq_lens=np.array(lens, np.int64),
        extend_prefix_lens_cpu=prefix,
    )


@pytest.fixture
def dumping(tmp_path, monkeypatch):
    """Hooks that dump into a folder; no process of SGLang has ranks here."""
    monkeypatch.setattr(pool_facts, "read_ranks", lambda: {"dp_rank": 0, "tp_rank": 1, "pp_rank": 0})
    made = []

    def start(limit=3):
        made.append(Dumps(DumpSettings(folder=str(tmp_path / "dumps"), limit=limit)))
        return made[-1], tmp_path / "dumps"

    before = signal.getsignal(signal.SIGUSR2)
    yield start
    for each in made:
        each.stop()
    assert signal.getsignal(signal.SIGUSR2) == before


def forward(hooks, one, the_batch, report=None):
    hooks.before_forward(one, the_batch)
    if report is not None:
        report()
    hooks.after_forward(None, one, the_batch)


def reporter(is_raised=False, logged=1):
    return SimpleNamespace(is_raised=is_raised, _last_logged_write_index=logged)


@pytest.mark.parametrize(
    ("mode", "prefix", "is_done", "expected"),
    [
        (2, None, False, {2: 4, 3: 6, 5: 9}),
        (2, None, True, {2: 5, 3: 7, 5: 9}),
        (1, [0, 6], False, {3: 6, 5: 9}),
        (1, [0, 6], True, {2: 5, 3: 7, 5: 9}),
        (7, None, False, {2: 5, 3: 7, 5: 9}),
    ],
)
def test_rows_of_the_batch_count_what_is_written_and_others_what_is_committed(
    mode, prefix, is_done, expected
):
    reqs = {2: request("a", 2, 5), 3: request("b", 3, 7), 5: request("c", 5, 9)}
    moment = Moment(runner=runner(), batch=batch([2, 3, 0, 99], [5, 7, 1, 1], mode, prefix), is_done=is_done)
    lens, rids = written_lengths(moment, reqs)
    assert {row: int(lens[row]) for row in np.flatnonzero(lens)} == expected
    assert rids == {row: reqs[row].rid for row in expected}


def test_table_is_as_wide_as_the_longest_row_and_no_narrower_than_a_length_that_is_too_long():
    reqs = {2: request("a", 2, 5)}
    found = read_contents(Moment(runner=runner(), batch=batch()), reqs, with_kv=False)
    assert found["req_to_token"].shape == (8, 5)
    reqs[2].kv.kv_committed_len = 40
    found = read_contents(Moment(runner=runner(), batch=batch()), reqs, with_kv=False)
    assert found["req_to_token"].shape == (8, 16)
    assert found["seq_lens"][2] == 40


def test_tokens_are_expected_as_far_as_they_are_known_and_written():
    reqs = {
        1: request("a", 1, 5, (5, 6, 7), (8, 9, 10)),
        2: request("b", 2, 5, (5, 6), (8,)),
        3: request("image", 3, 2, (1 << 40, 6), (8,)),
    }
    found = expected_tokens(reqs, np.array([0, 5, 5, 2]), 5)
    assert found["expected_lens"].tolist() == [0, 5, 3, 0]
    assert found["expected_tokens"].tolist() == [[0] * 5, [5, 6, 7, 8, 9], [5, 6, 8, 0, 0], [0] * 5]


def test_a_signal_is_answered_at_the_next_forward_by_the_target_model(dumping):
    hooks, folder = dumping()
    hooks.after_pool()
    os.kill(os.getpid(), signal.SIGUSR2)
    one = runner()
    draft = runner()
    draft.is_draft_worker = True
    forward(hooks, draft, batch())
    assert list(folder.iterdir()) == []
    hooks.after_alloc([2], one.req_to_token_pool, [request("a", 2, 5)])
    hooks.after_alloc([3], one.req_to_token_pool, [gone := request("gone", 3, 5)])
    hooks.after_alloc([4], one.req_to_token_pool, [moved := request("moved", 4, 5)])
    hooks.after_alloc([5], SimpleNamespace(), [request("elsewhere", 5, 5)])
    hooks.after_alloc(None, one.req_to_token_pool, [request("refused", None, 0)])
    hooks.before_free(one.req_to_token_pool, gone)
    moved.kv = None
    forward(hooks, one, batch([2], [5]))
    forward(hooks, one, batch([2], [5]))
    (path,) = folder.iterdir()
    assert path.name.startswith(f"dp0-tp1-pp0-{os.getpid()}-")
    assert path.name.endswith("-1.safetensors")
    metadata = open_safetensors(str(path)).metadata
    assert metadata["rids"] == '{"2": "a"}'
    assert metadata["page_size"] == "4"
    for words in ('"reason": "signal"', '"step": 41', '"taken": "before the step"', '"canary": "off"'):
        assert words in metadata["about"]


def test_the_first_violation_alone_is_dumped(dumping):
    hooks, folder = dumping()
    one = runner()

    def report():
        hooks.around_report(lambda *args, **options: None, reporter(), outer_step_counter=3)

    forward(hooks, one, batch([2], [5]), report)
    forward(hooks, one, batch([2], [6]), report)
    (path,) = folder.iterdir()
    assert path.name.startswith("violation-dp0-tp1-pp0-")
    assert '"taken": "after the step"' in open_safetensors(str(path)).metadata["about"]


def test_a_report_with_nothing_to_tell_dumps_nothing(dumping):
    hooks, folder = dumping()
    forward(hooks, runner(), batch(), lambda: hooks._reported(reporter(logged=0)))
    assert list(folder.iterdir()) == []


def test_a_signal_in_the_violating_forward_gets_a_dump_of_its_own(dumping):
    hooks, folder = dumping()

    def report():
        os.kill(os.getpid(), signal.SIGUSR2)
        hooks._reported(reporter())

    forward(hooks, runner(), batch([2], [5]), report)
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == ["dp0", "violation"]


def test_what_the_report_raises_passes_through(dumping):
    hooks, folder = dumping()

    def raising(*args, **options):
        raise RuntimeError("violation")

    one = runner()
    hooks.before_forward(one, batch([2], [5]))
    with pytest.raises(RuntimeError, match="violation"):
        hooks.around_report(raising, reporter(is_raised=True, logged=0), outer_step_counter=3)
    assert len(list(folder.iterdir())) == 1


def test_a_violation_outside_of_a_forward_waits_for_the_next(dumping):
    hooks, folder = dumping()
    hooks._reported(reporter())
    assert list(folder.iterdir()) == []
    forward(hooks, runner(), batch([2], [5]))
    assert len(list(folder.iterdir())) == 1


def test_violation_and_signals_share_the_limit(dumping, caplog):
    hooks, folder = dumping(limit=2)
    one = runner()
    for _ in range(3):
        hooks.after_pool()
        os.kill(os.getpid(), signal.SIGUSR2)
        forward(hooks, one, batch([2], [5]))
    forward(hooks, one, batch([2], [5]), lambda: hooks._reported(reporter()))
    assert len(list(folder.iterdir())) == 2
    assert caplog.text.count("the limit") == 2


def test_a_dump_that_fails_is_logged_and_does_not_count(dumping, monkeypatch, caplog):
    hooks, folder = dumping(limit=1)
    hooks.after_pool()
    one = runner()
    broken = batch([2], [5])
    broken.seq_lens = None
    os.kill(os.getpid(), signal.SIGUSR2)
    forward(hooks, one, broken)
    assert "the dump failed" in caplog.text
    assert list(folder.iterdir()) == []
    os.kill(os.getpid(), signal.SIGUSR2)
    forward(hooks, one, batch([2], [5]))
    assert len(list(folder.iterdir())) == 1


def test_a_hook_that_fails_ends_dumping_and_nothing_else(dumping, caplog):
    hooks, folder = dumping()
    hooks.after_pool()
    hooks.after_alloc([2], object(), [SimpleNamespace()])
    assert "no more dumps" in caplog.text
    hooks.after_alloc([2], object(), [SimpleNamespace()])
    os.kill(os.getpid(), signal.SIGUSR2)
    forward(hooks, runner(), batch())
    assert list(folder.iterdir()) == []
    assert caplog.text.count("no more dumps") == 1


def test_other_threads_dump_at_violations_only(dumping, caplog):
    hooks, folder = dumping()
    thread = threading.Thread(target=hooks.after_pool)
    thread.start()
    thread.join()
    assert "no signal is taken" in caplog.text
    forward(hooks, runner(), batch([2], [5]), lambda: hooks._reported(reporter()))
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_can_not_be_made_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    hooks = Dumps(DumpSettings(folder=str(tmp_path / "file" / "dumps")))
    hooks.after_pool()
    forward(hooks, runner(), batch())
    hooks.stop()
    assert caplog.text.count("no more dumps") == 1


def test_dumps_of_one_second_have_names_of_their_own(dumping, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1796000000.5)
    hooks, folder = dumping()
    hooks.after_pool()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR2)
        forward(hooks, runner(), batch([2], [5]))
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"dp0-tp1-pp0-{os.getpid()}-1796000000-{n}.safetensors" for n in (1, 2)]
