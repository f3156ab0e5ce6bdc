"""Time the Numba kernels on this machine and print a small table. Not a test: nothing here is asserted.

    python tests/bench/bench_cpu_kernels.py [--lanes 256] [--tokens 4096] [--thresholds]

Every launch is checked once (no violation, all entries counted) before it is timed. Slots are a random
permutation, so nearly every stamp is a cache miss; hash mode is NONE.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numba import get_num_threads, njit, prange

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvcanary_cli.kernels.fused_cpu import verify_table_parallel, verify_table_serial
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NO_POOL, NO_WORDS
from kvcanary_cli.kernels.plan_cpu import plan_parallel, plan_serial
from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan, aligned_zeros
from kvcanary_cli.kernels.sources_cpu import source_table
from kvcanary_cli.kernels.verify_cpu import verify_cpu, verify_parallel, verify_serial
from kvcanary_cli.kernels.write_cpu import write_cpu, write_parallel, write_serial

ROUNDS = 11


@dataclass(frozen=True, slots=True)
class Case:
    """A batch whose every lane holds `tokens` tokens, in memory aligned to cache lines."""

    num_slots: int
    words: np.ndarray
    rows: np.ndarray
    lens: np.ndarray
    zeros: np.ndarray
    table: np.ndarray
    slots: np.ndarray
    input_ids: np.ndarray
    positions: np.ndarray
    plan: VerifyPlan
    writes: WritePlan
    log: ViolationLog
    sources: np.ndarray

    @classmethod
    def make(cls, lanes: int, tokens: int) -> Case:
        rng = np.random.default_rng(0)
        num_slots = lanes * tokens + 1
        slots = aligned_zeros((lanes * tokens,), np.int64)
        slots[:] = rng.permutation(num_slots - 1) + 1
        table = aligned_zeros((lanes + 1, tokens), np.int32)
        table[1:] = slots.reshape(lanes, tokens)
        writes = WritePlan.allocate(lanes, "cpu")
        writes.write_offsets[:] = np.arange(lanes + 1) * tokens
        writes.write_seed_slot_indices[:] = -1
        writes.write_num_valid_reqs[0] = lanes
        return cls(
            num_slots=num_slots,
            words=aligned_zeros((num_slots * 4,), np.int64),
            rows=np.arange(1, lanes + 1),
            lens=np.full(lanes, tokens),
            zeros=np.zeros(lanes, dtype=np.int64),
            table=table,
            slots=slots,
            input_ids=rng.integers(0, 150_000, lanes * tokens),
            positions=np.tile(np.arange(tokens), lanes),
            plan=VerifyPlan.allocate(lanes * tokens, "cpu"),
            writes=writes,
            log=ViolationLog.allocate(1024, "cpu"),
            sources=source_table([], 0),
        )

    def run_plan(self, launch: Callable[..., None]) -> None:
        plan, writes = self.plan, WritePlan.allocate(len(self.rows), "cpu")
        launch(
            self.rows,
            self.lens,
            self.zeros,
            self.table,
            0,
            False,
            NO_WORDS,
            NO_POOL,
            NO_WORDS,
            0,
            plan.verify_slot_indices,
            plan.verify_expected_tokens,
            plan.verify_expected_positions,
            plan.verify_prev_slot_indices,
            plan.verify_num_valid,
            plan.enable,
            writes.write_offsets,
            writes.write_seed_slot_indices,
            writes.write_num_valid_reqs,
            writes.verify_offsets,
        )

    def run_verify(self, launch: Callable[..., None]) -> None:
        plan, log = self.plan, self.log
        launch(
            self.words,
            4,
            self.num_slots,
            plan.verify_slot_indices,
            plan.verify_expected_tokens,
            plan.verify_expected_positions,
            plan.verify_prev_slot_indices,
            plan.verify_num_valid,
            plan.enable,
            self.sources,
            True,
            False,
            0,
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
        )

    def run_write(self, launch: Callable[..., None]) -> None:
        writes, log = self.writes, self.log
        launch(
            self.words,
            4,
            self.num_slots,
            self.words,
            writes.write_offsets,
            writes.write_seed_slot_indices,
            writes.write_num_valid_reqs,
            self.input_ids,
            self.positions,
            self.slots,
            self.sources,
            0,
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
            NO_WORDS,
            NO_WORDS,
            True,
            False,
        )

    def run_fused(self, launch: Callable[..., int]) -> None:
        log = self.log
        launch(
            self.words,
            4,
            self.num_slots,
            self.rows,
            self.lens,
            self.table,
            0,
            False,
            NO_WORDS,
            NO_POOL,
            NO_WORDS,
            0,
            -1,
            self.sources,
            True,
            False,
            0,
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
        )

    def check(self) -> None:
        """Stop unless a write, a plan and both ways to verify agree that every stamp is good."""
        self.run_write(write_parallel)
        self.run_plan(plan_parallel)
        self.run_verify(verify_parallel)
        self.run_fused(verify_table_parallel)
        if self.log.count or int(self.log.slot_run_counter[0]) != 3 * len(self.slots):
            raise SystemExit("the kernels disagree: no times are given")


@njit(parallel=True)
def gather_parallel(words, slots, prevs, total):
    """The least that verify has to do: read the two stamps of every entry."""
    num_chunks = get_num_threads() * 4
    sums = np.zeros(num_chunks, np.int64)
    for chunk in prange(num_chunks):
        found = 0
        for entry in range(total * chunk // num_chunks, total * (chunk + 1) // num_chunks):
            base, prev = slots[entry] * 4, prevs[entry] * 4
            found += words[base] ^ words[base + 1] ^ words[base + 2] ^ words[base + 3]
            found += words[prev] ^ words[prev + 1] ^ words[prev + 2] ^ words[prev + 3]
        sums[chunk] = found
    return sums.sum()


def seconds(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median time of a call, after one that compiles."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def print_rates(case: Case) -> None:
    num_entries = len(case.slots)
    prevs = np.maximum(case.plan.verify_prev_slot_indices, 0)
    bare = seconds(lambda: gather_parallel(case.words, case.plan.verify_slot_indices, prevs, num_entries))
    runs: list[tuple[str, Callable[[], object]]] = [
        ("plan serial", lambda: case.run_plan(plan_serial)),
        ("plan parallel", lambda: case.run_plan(plan_parallel)),
        ("verify serial", lambda: case.run_verify(verify_serial)),
        ("verify parallel", lambda: case.run_verify(verify_parallel)),
        ("verify_table serial", lambda: case.run_fused(verify_table_serial)),
        ("verify_table parallel", lambda: case.run_fused(verify_table_parallel)),
        ("write serial", lambda: case.run_write(write_serial)),
        ("write parallel", lambda: case.run_write(write_parallel)),
    ]
    print(f"{num_entries:,} entries, {get_num_threads()} threads, median of {ROUNDS}")
    print(f"{'launch':<24}{'M entries/s':>12}{'x bare gather':>15}")
    print(f"{'bare gather':<24}{num_entries / bare / 1e6:>12.1f}{1.0:>15.2f}")
    for name, run in runs:
        took = seconds(run)
        print(f"{name:<24}{num_entries / took / 1e6:>12.1f}{bare / took:>15.2f}")


def print_dispatch() -> None:
    """What a launch of eight entries costs: nearly all of it is the call."""
    case = Case.make(4, 2)
    case.check()
    stamps = case.words.reshape(-1, 4)
    tail = {"sources": [], "hash_mode": 0, "launch_tag": 0, "log": case.log}
    inputs = {"input_ids": case.input_ids, "positions": case.positions, "out_cache_loc": case.slots}
    calls: dict[str, Callable[[], object]] = {
        "verify_serial": partial(case.run_verify, verify_serial),
        "verify_cpu": lambda: verify_cpu(
            canary_buf=stamps, plan=case.plan, check_expected_token=True, **tail
        ),
        "write_serial": partial(case.run_write, write_serial),
        "write_cpu": lambda: write_cpu(
            canary_buf=stamps,
            plan=case.writes,
            expected_inputs=None,
            chain_position_assert=True,
            **inputs,
            **tail,
        ),
    }
    print(f"\n{'launch of 8 entries':<24}{'us a call':>12}")
    for name, call in calls.items():
        print(f"{name:<24}{1e6 * seconds(call, 3001):>12.1f}")


def print_thresholds() -> None:
    """Serial against parallel by size, in microseconds a call: the source of the kernels' PARALLEL_ENTRIES."""
    launches = {
        "plan": (Case.run_plan, plan_serial, plan_parallel),
        "verify": (Case.run_verify, verify_serial, verify_parallel),
        "write": (Case.run_write, write_serial, write_parallel),
        "verify_table": (Case.run_fused, verify_table_serial, verify_table_parallel),
    }
    print(f"\n{'entries':<10}" + "".join(f"{name + ' s/p':>22}" for name in launches))
    for size in (1, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
        case = Case.make(min(size, 16), max(1, size // 16))
        case.check()
        cells = []
        for run, serial, parallel in launches.values():
            took = [1e6 * seconds(partial(run, case, launch), 301) for launch in (serial, parallel)]
            cells.append(f"{took[0]:.1f} / {took[1]:.1f}")
        print(f"{len(case.slots):<10}" + "".join(f"{cell:>22}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a lane")
    parser.add_argument("--thresholds", action="store_true", help="serial against parallel by size")
    options = parser.parse_args()
    case = Case.make(options.lanes, options.tokens)
    case.check()
    print_rates(case)
    print_dispatch()
    if options.thresholds:
        print_thresholds()


if __name__ == "__main__":
    main()
