"""Whether an operation computes what it should, asked before it is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvcanary_cli.bench.gpu import GpuCase, Launch
from kvcanary_cli.bench.inputs import ByteArray, WordArray, chain_after, hash_rows, mix
from kvcanary_cli.kernels.consts import BIT_CHAIN_HASH, BIT_KV_HASH, BIT_POSITION
from kvcanary_cli.kernels.hashing_ref import HEAD

NUM_DAMAGED = 200
_SEED = 7


def differences(gpu_case: GpuCase, operation: str, launch: Launch | None = None) -> str:
    """What is wrong with an operation's results, in words; empty when nothing is.

    Args:
        launch: does what `operation` does, in place of our own kernels.

    Verification must find nothing in right stamps and, in damaged ones, the rows that NumPy finds; stamps
    written and hashes must be the ones that NumPy computed.
    """
    launch = launch if launch is not None else gpu_case.launches()[operation]
    if operation.startswith(("verify", "plan_verify")):
        return _verify_differences(gpu_case, operation, launch)
    if operation == "sweep_hash":
        gpu_case.hashes.fill_(-1)
        launch()
        wrong = int((gpu_case.hashes.cpu().numpy().view(np.uint64) != sweep_hashes(gpu_case.inputs.kv)).sum())
        return f"{wrong} hashes differ" if wrong else ""
    return _write_differences(gpu_case, launch)


def _verify_differences(gpu_case: GpuCase, operation: str, launch: Launch) -> str:
    targets = gpu_case.targets if operation == "verify_both" else gpu_case.timed_targets
    _clear_logs(gpu_case)
    launch()
    for target in targets.items:
        if target.log.count:
            return f"{target.log.count} violations in right stamps"
        checked = int(target.log.slot_run_counter[0])
        if checked != gpu_case.case.num_verified:
            return f"{checked} of {gpu_case.case.num_verified} entries were looked at"
    if not gpu_case.case.num_verified:
        return ""
    with damaged(gpu_case):
        _clear_logs(gpu_case)
        launch()
        log = gpu_case.timed_targets.items[0].log
        found = Counter(map(tuple, log.rows().cpu().tolist()))
        want = expected_rows(gpu_case)
    return (
        "" if found == want and want else f"{found.total()} rows in damaged stamps, {want.total()} are right"
    )


def expected_rows(gpu_case: GpuCase) -> Counter[tuple[int, ...]]:
    """Rows that verifying the timed buffer gives, computed by NumPy."""
    case, inputs = gpu_case.case, gpu_case.inputs
    target = gpu_case.timed_targets.items[0]
    slots = inputs.table[1:, : case.prefix].astype(np.int64)
    token, position, prev_hash, kv_hash = target.canary_buf.cpu().numpy()[slots].transpose(2, 0, 1)
    before, tokens, positions = (
        np.ascontiguousarray(word).view(np.uint64) for word in (prev_hash, token, position)
    )
    after = chain_after(before, tokens, positions, gpu_case.is_affine).view(np.int64)
    expected = np.full_like(prev_hash, np.array(HEAD, np.uint64).view(np.int64))
    expected[:, 1:] = after[:, :-1]
    hashes = hash_rows(inputs.kv).view(np.int64)[slots] if target.sources else np.zeros_like(kv_hash)
    bits = np.where(prev_hash != expected, BIT_CHAIN_HASH, 0)
    bits |= np.where(position != np.arange(case.prefix), BIT_POSITION, 0)
    bits |= np.where(kv_hash != hashes, BIT_KV_HASH, 0)
    tag = np.full_like(bits, int(target.launch_tag))
    rows = np.stack([tag, slots, position, token, np.full_like(bits, -1), prev_hash, expected, bits], axis=-1)
    return Counter(map(tuple, rows[bits != 0].tolist()))


def _write_differences(gpu_case: GpuCase, launch: Launch) -> str:
    want = gpu_case.inputs.written
    for stamps in gpu_case.buffers.stamps:
        stamps.copy_(gpu_case.put(gpu_case.inputs.stamps))
    _clear_logs(gpu_case)
    launch()
    for target in gpu_case.targets.items:
        expected = want if target.sources else np.concatenate([want[:, :3], want[:, 3:] * 0], axis=1)
        slots = gpu_case.inputs.slots
        wrong = int((target.canary_buf.cpu().numpy()[slots] != expected[slots]).any(axis=1).sum())
        if wrong or target.log.count:
            return f"{wrong} stamps of tag {int(target.launch_tag)} differ, {target.log.count} violations"
        if int(target.log.slot_run_counter[0]) != gpu_case.case.num_written:
            return f"{int(target.log.slot_run_counter[0])} of {gpu_case.case.num_written} stamps were counted"
    return ""


@contextmanager
def damaged(gpu_case: GpuCase) -> Iterator[None]:
    """Some prefix stamps of the timed buffer have a bit flipped for as long as this is entered."""
    rng = np.random.default_rng(_SEED)
    prefix = gpu_case.inputs.table[1:, : gpu_case.case.prefix].reshape(-1)
    number = min(NUM_DAMAGED, prefix.size)
    slots = gpu_case.put(rng.choice(prefix, number, replace=False).astype(np.int64))
    words = gpu_case.put(rng.integers(0, 4, number))
    bits = gpu_case.put(np.int64(1) << rng.integers(0, 63, number))
    stamps = gpu_case.timed_targets.items[0].canary_buf
    stamps[slots, words] = stamps[slots, words] ^ bits
    try:
        yield
    finally:
        stamps[slots, words] = stamps[slots, words] ^ bits


def sweep_hashes(kv: list[ByteArray]) -> WordArray:
    """`sweep_hash` of every row, [num_slots] uint64."""
    total = np.zeros(len(kv[0]), np.uint64)
    for number, source in enumerate(kv):
        words = np.ascontiguousarray(source.view(np.uint64).T)
        keys = mix(np.arange(len(words), dtype=np.uint64) | np.uint64(number << 32))
        for word, key in zip(words, keys, strict=True):
            total += mix(word ^ key)
    return mix(total)


def _clear_logs(gpu_case: GpuCase) -> None:
    for log in gpu_case.buffers.logs:
        for counter in (log.write_index, log.slot_run_counter, log.kernel_run_counter):
            counter.zero_()
