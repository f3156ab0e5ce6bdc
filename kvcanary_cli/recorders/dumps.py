"""Dumps of a running SGLang: at a signal between two forwards, and when its own canary reports a violation.

All hooks run in the scheduler's thread. Until a dump is asked for they keep the request of each row, and nothing
else. An exception of ours ends dumping, never the scheduler.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR2
from typing import Any

from kvcanary_cli.recorders import pool_facts
from kvcanary_cli.recorders.dump_contents import Moment, read_contents
from kvcanary_cli.recorders.dump_signal import SignalDump, install_signal_dump
from kvcanary_cli.settings import DumpSettings
from kvcanary_cli.trace.dump import write_dump

logger = logging.getLogger("kvcanary")

ROOT = "sglang.srt."
FORWARD = f"{ROOT}model_executor.model_runner.ModelRunner.forward"
POOL = f"{ROOT}mem_cache.memory_pool.ReqToTokenPool.__init__"
ALLOC = f"{ROOT}mem_cache.memory_pool.ReqToTokenPool.alloc"
FREE = f"{ROOT}mem_cache.memory_pool.ReqToTokenPool.free"
REPORT = f"{ROOT}kv_canary.runner.violation_reporter.ViolationReporter.log_or_raise_violation"
VIOLATION = "violation"


def _quietly(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that never raises, and does nothing after it failed once."""

    @functools.wraps(hook)
    def guarded(self: Dumps, *args: Any, **options: Any) -> None:
        if self.is_over:
            return
        try:
            hook(self, *args, **options)
        except Exception as error:
            self.is_over = True
            logger.warning("kvcanary: no more dumps: %s; the engine is not affected", error, exc_info=True)

    return guarded


class Dumps:
    """The hooks of one process. They take the signal where a page table is made, which only a scheduler does.

    Attributes:
        is_over: nothing is done any more.
    """

    def __init__(self, settings: DumpSettings) -> None:
        self.settings = settings
        self.is_over = False
        self._rows: dict[int, tuple[Any, Any]] = {}  # row: its pool, its request
        self._moment: Moment | None = None
        self._asked: SignalDump | None = None
        self._saw_violation = False

    @_quietly
    def after_pool(self, *args: Any, **options: Any) -> None:
        if self._asked is None:
            self._arm()

    @_quietly
    def after_alloc(self, result: Any, pool: Any, reqs: Any) -> None:
        if result is not None:
            self._rows.update((req.kv.req_pool_idx, (pool, req)) for req in reqs)

    @_quietly
    def before_free(self, pool: Any, req: Any) -> None:
        self._rows.pop(req.kv.req_pool_idx, None)

    @_quietly
    def before_forward(self, runner: Any, batch: Any, *args: Any, **options: Any) -> None:
        if runner.is_draft_worker:
            return
        asked = self._asked if self._asked is not None else self._arm()
        self._moment = Moment(runner=runner, batch=batch)
        if asked.is_wanted:
            asked.poll()

    @_quietly
    def after_forward(self, result: Any, runner: Any, *args: Any, **options: Any) -> None:
        if not runner.is_draft_worker:
            self._moment = None

    def around_report(self, original: Callable[..., Any], reporter: Any, **options: Any) -> Any:
        """SGLang reports violations here, at the end of a forward and one forward late; with `raise` it raises."""
        try:
            return original(reporter, **options)
        finally:
            self._reported(reporter)

    @_quietly
    def _reported(self, reporter: Any) -> None:
        # it is called at each step after the first violation, and may have none to tell
        has_none = not reporter.is_raised and getattr(reporter, "_last_logged_write_index", 1) == 0
        if self._saw_violation or has_none:
            return
        self._saw_violation = True
        asked = self._asked if self._asked is not None else self._arm()
        if self._moment is not None:
            self._moment = replace(self._moment, is_done=True)
            # a signal that came during this forward must not take the violation's name
            asked.poll()
        asked.request(VIOLATION)
        if self._moment is not None:
            asked.poll()

    def stop(self) -> None:
        """Give the signal back; nothing is dumped afterwards."""
        self.is_over = True
        if self._asked is not None:
            self._asked.remove()

    def _arm(self) -> SignalDump:
        is_main = threading.current_thread() is threading.main_thread()
        self._asked = install_signal_dump(
            self._write, number=SIGUSR2 if is_main else None, limit=self.settings.limit
        )
        folder = Path(self.settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if is_main:
            logger.info("kvcanary: SIGUSR2 to process %d writes a dump to %s", os.getpid(), folder)
        else:
            logger.warning(
                "kvcanary: not in the main thread: no signal is taken, only violations write dumps"
            )
        return self._asked

    def _write(self, number: int, reason: str) -> None:
        moment = self._moment
        assert moment is not None, "a dump was polled outside of a forward"
        begin = time.monotonic()
        pool = moment.runner.req_to_token_pool
        reqs = {
            row: req
            for row, (of, req) in self._rows.items()
            # a session may keep a row that its request has lost
            if of is pool and req.kv is not None and req.kv.req_pool_idx == row
        }
        ranks = pool_facts.read_ranks()
        name = "-".join(f"{rank[:2]}{value}" for rank, value in ranks.items())
        first = f"{VIOLATION}-" if reason == VIOLATION else ""
        path = Path(self.settings.folder) / (
            f"{first}{name}-{os.getpid()}-{int(time.time())}-{number}.safetensors"
        )
        about = {
            "reason": reason,
            "step": moment.runner.forward_pass_id,
            "taken": "after the step" if moment.is_done else "before the step",
            "mode": moment.batch.forward_mode.name.lower(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rank": name,
            "pid": os.getpid(),
            "engine": f"sglang {pool_facts.engine_version()}",
        }
        contents = read_contents(moment, reqs, with_kv=self.settings.with_kv)
        contents["about"] |= about
        num_bytes = write_dump(path, **contents)
        seconds = time.monotonic() - begin
        logger.warning("kvcanary: dump %s: %d bytes in %.1f s (%s)", path, num_bytes, seconds, reason)


def install(settings: DumpSettings) -> Dumps:
    """Register the hooks with SGLang's registry; they act once the registry applies them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    dumps = Dumps(settings)
    HookRegistry.register(POOL, dumps.after_pool, HookType.AFTER)
    HookRegistry.register(ALLOC, dumps.after_alloc, HookType.AFTER)
    HookRegistry.register(FREE, dumps.before_free, HookType.BEFORE)
    HookRegistry.register(FORWARD, dumps.before_forward, HookType.BEFORE)
    HookRegistry.register(FORWARD, dumps.after_forward, HookType.AFTER)
    HookRegistry.register(REPORT, dumps.around_report, HookType.AROUND)
    return dumps
