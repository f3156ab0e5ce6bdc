"""What the launchers refuse, before anything runs, for NumPy arrays and torch tensors alike.

All three implementations of an operation call the same function here, so they refuse the same things with the
same texts (`messages.py`). Nothing here reads array contents: that would make a GPU launch wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels.consts import STAMP_WORDS

if TYPE_CHECKING:
    from kvcanary_cli.kernels._layout import ExpectedInputs, VerifyPlanBase, ViolationLogBase, WritePlanBase


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor, found out without importing torch."""
    return not isinstance(array, np.ndarray)


def device_name(array: Any) -> str:
    """`cpu`, `cuda:0` and so on."""
    return str(array.device) if is_torch(array) else "cpu"


@lru_cache(maxsize=64)
def dtype_name(dtype: Any) -> str:
    """The name as its library writes it. Kept, because NumPy takes 8 us to write one and launches check a dozen."""
    return str(dtype)


def check_dtype(name: str, array: Any, dtype: str) -> None:
    """ValueError unless the elements are of the type with this name, such as "int64"."""
    got = dtype_name(array.dtype)
    want = f"torch.{dtype}" if is_torch(array) else dtype
    if got != want:
        raise ValueError(messages.wrong_dtype(name, want, got))


def check_rank(name: str, array: Any, rank: int) -> None:
    """ValueError unless the array has this number of dimensions."""
    if len(array.shape) != rank:
        raise ValueError(messages.wrong_rank(name, rank, tuple(int(size) for size in array.shape)))


def check_array(
    name: str,
    array: Any,
    dtype: str,
    *,
    rank: int = 1,
    length: int | None = None,
    reference: tuple[str, Any] | None = None,
) -> None:
    """ValueError unless dtype, rank, length, contiguity and device (that of `reference`) are as wanted."""
    check_dtype(name, array, dtype)
    check_rank(name, array, rank)
    if length is not None and array.shape[0] != length:
        raise ValueError(messages.wrong_length(name, length, int(array.shape[0])))
    is_contiguous = array.is_contiguous() if is_torch(array) else array.flags.c_contiguous
    if not is_contiguous:
        raise ValueError(messages.not_contiguous(name))
    if reference is not None and (is_torch(array) or is_torch(reference[1])):
        want, got = device_name(reference[1]), device_name(array)
        if got != want:
            raise ValueError(messages.wrong_device(name, reference[0], want, got))


def stamp_stride(canary_buf: Any) -> int:
    """Words from one stamp to the next. ValueError unless rows are int64, contiguous and 4 words or more."""
    check_dtype("canary_buf", canary_buf, "int64")
    check_rank("canary_buf", canary_buf, 2)
    num_slots, num_words = (int(size) for size in canary_buf.shape)
    if num_words < STAMP_WORDS:
        rule = f"have at least {STAMP_WORDS} words a row"
        raise ValueError(messages.broken_rule("canary_buf", rule, num_words))
    if is_torch(canary_buf):
        row, word = (int(stride) for stride in canary_buf.stride())
    else:
        row, word = (stride // 8 for stride in canary_buf.strides)
    if word != 1:
        raise ValueError(
            messages.broken_rule("canary_buf", "have contiguous rows", f"a stride of {word} words")
        )
    if num_slots <= 1:
        return num_words  # the stride of a single row says nothing
    if row < num_words:
        raise ValueError(messages.broken_rule("canary_buf", f"have rows {num_words} words apart", row))
    return row


def check_verify_plan(plan: VerifyPlanBase, reference: tuple[str, Any]) -> None:
    """ValueError unless the plan's arrays fit each other and live where `reference` does."""
    capacity = plan.verify_capacity
    for name in (
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    ):
        check_array(name, getattr(plan, name), "int64", length=capacity, reference=reference)
    check_array("verify_num_valid", plan.verify_num_valid, "int32", length=1, reference=reference)
    check_array("enable", plan.enable, "int32", length=1, reference=reference)


def check_write_plan(plan: WritePlanBase, reference: tuple[str, Any]) -> None:
    """ValueError unless the plan's arrays fit each other and live where `reference` does."""
    capacity = plan.write_req_capacity
    seeds = plan.write_seed_slot_indices
    check_array("write_seed_slot_indices", seeds, "int64", reference=reference)
    if int(plan.write_offsets.shape[0]) != capacity + 1:
        length = int(plan.write_offsets.shape[0])
        raise ValueError(messages.write_offsets_length(length, capacity))
    check_array("write_offsets", plan.write_offsets, "int64", reference=reference)
    check_array("write_num_valid_reqs", plan.write_num_valid_reqs, "int32", length=1, reference=reference)
    check_array("verify_offsets", plan.verify_offsets, "int64", length=capacity + 1, reference=reference)


def check_log(log: ViolationLogBase, reference: tuple[str, Any]) -> None:
    """ValueError unless ring and counters are as the kernels index them."""
    check_array("ring", log.ring, "int64", rank=2, reference=reference)
    if int(log.ring.shape[1]) != 8:
        raise ValueError(messages.broken_rule("ring", "have 8 words a row", int(log.ring.shape[1])))
    check_array("write_index", log.write_index, "int32", length=1, reference=reference)
    check_array("slot_run_counter", log.slot_run_counter, "int64", length=1, reference=reference)
    check_array("kernel_run_counter", log.kernel_run_counter, "int64", length=1, reference=reference)


def check_plan(
    *,
    verify_plan_out: VerifyPlanBase,
    write_plan_out: WritePlanBase,
    req_pool_indices: Any,
    prefix_lens: Any,
    extend_seq_lens: Any,
    req_to_token: Any,
    swa_window_size: int,
    full_to_swa: Any | None,
    expected_tokens: Any | None,
    expected_valid_lens: Any | None,
    verify_capacity: int | None,
    write_req_capacity: int | None,
) -> None:
    """Everything `launch_plan` and its twins refuse."""
    if swa_window_size > 0 and full_to_swa is None:
        raise ValueError(messages.window_without_map())
    reference = ("req_pool_indices", req_pool_indices)
    check_array("req_pool_indices", req_pool_indices, "int64")
    batch_size = int(req_pool_indices.shape[0])
    _check_capacities(verify_plan_out, write_plan_out, batch_size, verify_capacity, write_req_capacity)
    check_array("prefix_lens", prefix_lens, "int64", length=batch_size, reference=reference)
    check_array("extend_seq_lens", extend_seq_lens, "int64", length=batch_size, reference=reference)
    check_array("req_to_token", req_to_token, "int32", rank=2, reference=reference)
    if full_to_swa is not None:
        check_array("full_to_swa", full_to_swa, "int64", reference=reference)
    if (expected_tokens is None) != (expected_valid_lens is None):
        missing, given = "expected_tokens", "expected_valid_lens"
        if expected_tokens is not None:
            missing, given = given, missing
        raise ValueError(messages.broken_rule(missing, f"be given with {given}", None))
    if expected_tokens is not None:
        check_array("expected_tokens", expected_tokens, "int32", rank=2, reference=reference)
        check_array(
            "expected_valid_lens", expected_valid_lens, "int64", length=batch_size, reference=reference
        )
    check_verify_plan(verify_plan_out, reference)
    check_write_plan(write_plan_out, reference)


def _check_capacities(
    verify_plan: VerifyPlanBase,
    write_plan: WritePlanBase,
    batch_size: int,
    verify_capacity: int | None,
    write_req_capacity: int | None,
) -> None:
    length = int(verify_plan.verify_slot_indices.shape[0])
    if verify_capacity is not None:
        if verify_capacity < 0:
            raise ValueError(messages.negative_capacity("verify_capacity", verify_capacity))
        if verify_capacity != length:
            raise ValueError(messages.verify_capacity_mismatch(verify_capacity, length))
    capacity = write_plan.write_req_capacity if write_req_capacity is None else write_req_capacity
    if capacity < 0:
        raise ValueError(messages.negative_capacity("write_req_capacity", capacity))
    offsets_length = int(write_plan.write_offsets.shape[0])
    if offsets_length != capacity + 1:
        raise ValueError(messages.write_offsets_length(offsets_length, capacity))
    if batch_size > capacity:
        raise ValueError(messages.plan_lanes(batch_size, capacity))


def check_verify(*, canary_buf: Any, plan: VerifyPlanBase, log: ViolationLogBase) -> int:
    """Everything `launch_verify` and its twins refuse, sources apart. Returns the stamps' stride in words."""
    stride = stamp_stride(canary_buf)
    reference = ("canary_buf", canary_buf)
    check_verify_plan(plan, reference)
    check_log(log, reference)
    return stride


def check_write(
    *,
    canary_buf: Any,
    seed_buf: Any | None,
    plan: WritePlanBase,
    input_ids: Any,
    positions: Any,
    out_cache_loc: Any,
    log: ViolationLogBase,
    expected_inputs: ExpectedInputs | Sequence[Any] | None,
) -> int:
    """Everything `launch_write` and its twins refuse, sources apart. Returns the stamps' stride in words."""
    stride = stamp_stride(canary_buf)
    reference = ("canary_buf", canary_buf)
    if seed_buf is not None:
        same = tuple(seed_buf.shape) == tuple(canary_buf.shape) and stamp_stride(seed_buf) == stride
        if not same or device_name(seed_buf) != device_name(canary_buf):
            rule = f"have canary_buf's shape {tuple(canary_buf.shape)}, strides and device"
            raise ValueError(messages.broken_rule("seed_buf", rule, tuple(seed_buf.shape)))
    check_write_plan(plan, reference)
    check_array("input_ids", input_ids, "int64", reference=reference)
    num_tokens = int(input_ids.shape[0])
    check_array("positions", positions, "int64", length=num_tokens, reference=reference)
    check_array("out_cache_loc", out_cache_loc, "int64", length=num_tokens, reference=reference)
    if expected_inputs is not None:
        names = ("expected_input_tokens", "expected_input_positions")
        for name, array in zip(names, expected_inputs, strict=True):
            check_array(name, array, "int64", length=num_tokens, reference=reference)
    check_log(log, reference)
    return stride


def check_scatter(*, flat: Any, offsets: Any, req_pool_indices: Any, pool: Any) -> None:
    """Everything `launch_scatter` and its twins refuse."""
    reference = ("pool", pool)
    check_array("pool", pool, "int32", rank=2)
    check_array("flat", flat, "int64", reference=reference)
    check_array("req_pool_indices", req_pool_indices, "int64", reference=reference)
    batch_size = int(req_pool_indices.shape[0])
    check_array("offsets", offsets, "int64", length=batch_size + 1, reference=reference)


def check_verify_table(
    *,
    canary_buf: Any,
    req_pool_indices: Any,
    prefix_lens: Any,
    req_to_token: Any,
    swa_window_size: int,
    full_to_swa: Any,
    expected_tokens: Any,
    expected_valid_lens: Any,
    log: ViolationLogBase,
) -> int:
    """Everything `verify_table_cpu` refuses, sources apart. Returns the stamps' stride in words."""
    stride = stamp_stride(canary_buf)
    reference = ("canary_buf", canary_buf)
    check_array("full_to_swa", full_to_swa, "int64", reference=reference)
    if swa_window_size > 0 and int(full_to_swa.shape[0]) == 0:
        raise ValueError(messages.window_without_map())
    check_array("req_pool_indices", req_pool_indices, "int64", reference=reference)
    batch_size = int(req_pool_indices.shape[0])
    check_array("prefix_lens", prefix_lens, "int64", length=batch_size, reference=reference)
    check_array("req_to_token", req_to_token, "int32", rank=2, reference=reference)
    check_array("expected_tokens", expected_tokens, "int32", rank=2, reference=reference)
    num_lens = batch_size if int(expected_tokens.shape[0]) else int(expected_valid_lens.shape[0])
    check_array("expected_valid_lens", expected_valid_lens, "int64", length=num_lens, reference=reference)
    check_log(log, reference)
    return stride
