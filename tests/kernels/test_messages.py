"""The server's texts, word for word. Those our launchers raise are tested where they are raised, too."""

from __future__ import annotations

import pytest

from kvcanary_cli.kernels import messages

TEXTS = [
    (
        messages.write_req(300, 256),
        "kv-canary: forward_batch.batch_size=300 exceeds pre-allocated write_req_capacity=256; "
        "raise --cuda-graph-max-bs-decode or check CanaryLaunchCapacities.from_args",
    ),
    (
        messages.write_req(300, 256, flag=messages.WRITE_REQ_FLAG_OLD),
        "kv-canary: forward_batch.batch_size=300 exceeds pre-allocated write_req_capacity=256; "
        "raise --cuda-graph-max-bs or check CanaryLaunchCapacities.from_args",
    ),
    (
        messages.write_entry(9000, 8192),
        "kv-canary: forward_batch token count=9000 exceeds pre-allocated write_entry_capacity=8192; "
        "raise --chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
    ),
    (messages.plan_lanes(5, 4), "kv-canary: bs=5 exceeds write_req_capacity=4"),
    (messages.plan_batch(4097), "kv-canary: offsets kernel bs must be in [0, 4096], got 4097"),
    (
        messages.write_offsets_length(7, 5),
        "kv-canary: write_offsets_len must equal write_req_capacity + 1, got 7 and 5",
    ),
    (
        messages.negative_capacity("write_req_capacity", -1),
        "kv-canary: write_req_capacity must be non-negative, got -1",
    ),
    (
        messages.plan_capacity("WritePlan", "write_req_capacity", 0),
        "kv-canary: WritePlan write_req_capacity must be positive, got 0",
    ),
    (
        messages.scatter_batch(512),
        "kv-canary: scatter_req_token_ids bs+1=513 exceeds BATCH_BLOCK=512; "
        "bump _SCATTER_BATCH_BLOCK if real workloads need this",
    ),
    (
        messages.window_without_map(),
        "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
    ),
    (
        messages.verify_capacity_mismatch(8, 9),
        "kv-canary: launch_canary_plan_kernels verify_capacity=8 does not match "
        "verify_plan_out.verify_slot_indices.shape[0]=9",
    ),
    (messages.not_contiguous("pool"), "kv-canary: pool must be contiguous"),
    (
        messages.wrong_dtype("pool", "torch.int32", "torch.int64"),
        "kv-canary: pool must have dtype torch.int32, got torch.int64",
    ),
    (messages.wrong_rank("flat", 1, (2, 3)), "kv-canary: flat must be 1-D, got shape (2, 3)"),
    (messages.wrong_length("offsets", 4, 5), "kv-canary: offsets length must be 4, got 5"),
    (
        messages.wrong_device("flat", "pool", "cuda:0", "cpu"),
        "kv-canary: flat must be on pool's device cuda:0, got cpu",
    ),
    (
        messages.too_many_sources(5),
        "kv-canary: at most 4 RealKvSource entries supported by the CUDA ABI, got 5",
    ),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=lambda text: text.partition(":")[2][1:40])
def test_texts(text, expected):
    assert text == expected
