"""Compare stamps with a verify plan, in plain Python. Twins: `verify_cpu.py`, `verify.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.kernels._checks import check_verify
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.chains_ref import chain_step
from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_OUT_OF_RANGE,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    STAMP_WORDS,
)
from kvcanary_cli.kernels.hashing_ref import HEAD, hash_slot, signed
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.plans_cpu import VerifyPlan


def verify_ref(
    *,
    canary_buf: np.ndarray,
    plan: VerifyPlan,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    check_expected_token: bool,
    is_affine: bool = False,
) -> None:
    """`launch_verify` on NumPy arrays: same arguments, same violations in entry order, same refusals."""
    check_verify(canary_buf=canary_buf, plan=plan, log=log)
    check_sources(sources, hash_mode, len(canary_buf), canary_buf)
    log.kernel_run_counter[0] += 1
    if not plan.enable[0]:
        return
    num_entries = max(0, min(int(plan.verify_num_valid[0]), plan.verify_capacity))
    log.slot_run_counter[0] += num_entries
    for index in range(num_entries):
        slot = int(plan.verify_slot_indices[index])
        prev = int(plan.verify_prev_slot_indices[index])
        position = int(plan.verify_expected_positions[index])
        token = int(plan.verify_expected_tokens[index]) if check_expected_token else -1
        if slot == 0:
            continue
        if not 0 < slot < len(canary_buf):
            log.append((launch_tag, slot, 0, 0, token, 0, 0, BIT_OUT_OF_RANGE))
            continue
        stored_token, stored_position, stored_prev, stored_kv = canary_buf[slot, :STAMP_WORDS].tolist()
        bits, aux = _check_chain(canary_buf, prev, stored_prev, is_affine)
        bits |= BIT_POSITION if stored_position != position else 0
        bits |= BIT_KV_HASH if stored_kv != signed(hash_slot(sources, hash_mode, slot)) else 0
        bits |= BIT_VERIFY_TOKEN if token not in (-1, stored_token) else 0
        if bits:
            log.append((launch_tag, slot, stored_position, stored_token, token, stored_prev, aux, bits))


def _check_chain(canary_buf: np.ndarray, prev: int, stored_prev: int, is_affine: bool) -> tuple[int, int]:
    """Bits, and the aux word: the prev_hash that the predecessor's stamp asks for."""
    if prev >= len(canary_buf):
        return BIT_OUT_OF_RANGE, prev
    if prev == 0:
        return 0, stored_prev
    if prev < 0:
        expected = signed(HEAD)
    else:
        token, position, prev_hash = canary_buf[prev, : STAMP_WORDS - 1].tolist()
        expected = signed(chain_step(prev_hash, token, position, is_affine))
    return (BIT_CHAIN_HASH if stored_prev != expected else 0), expected
