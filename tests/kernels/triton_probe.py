"""Small kernels that show what the helpers inside Triton kernels compute."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels.hashing import chain, mix
from kvcanary_cli.kernels.lanes import find_lanes, search_steps


def launch_chain(
    prevs: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, out: torch.Tensor
) -> None:
    """`out[i] = chain(prevs[i], tokens[i], positions[i])`, for a power of two of them."""
    _probe_chain[(1,)](prevs, tokens, positions, out, BLOCK=len(out))


def launch_mix(values: torch.Tensor, out: torch.Tensor) -> None:
    """`out[i] = mix(values[i])` by bit pattern, for a power of two of them."""
    _probe_mix[(1,)](values, out, BLOCK=len(out))


def launch_find_lanes(offsets: torch.Tensor, entries: torch.Tensor, out: torch.Tensor) -> None:
    """`out[i]` is the lane of `entries[i]`, for a power of two of them."""
    num_lanes = len(offsets) - 1
    _probe_find_lanes[(1,)](offsets, entries, out, num_lanes, search_steps(num_lanes), BLOCK=len(out))


@triton.jit
def _probe_chain(prevs_ptr, tokens_ptr, positions_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    prevs, tokens, positions = (
        tl.load(prevs_ptr + offs),
        tl.load(tokens_ptr + offs),
        tl.load(positions_ptr + offs),
    )
    tl.store(out_ptr + offs, chain(prevs, tokens, positions))


@triton.jit
def _probe_mix(values_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mixed = mix(tl.load(values_ptr + offs).to(tl.uint64, bitcast=True))
    tl.store(out_ptr + offs, mixed.to(tl.int64, bitcast=True))


@triton.jit
def _probe_find_lanes(offsets_ptr, entries_ptr, out_ptr, num_lanes, num_steps, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    entries = tl.load(entries_ptr + offs)
    lanes = find_lanes(offsets_ptr, num_lanes, num_steps, entries, entries >= 0)
    tl.store(out_ptr + offs, lanes)
