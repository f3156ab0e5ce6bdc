"""Lines of a server's log for tests: one message of each family, and violations."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.kernels import messages


class Case(NamedTuple):
    """A message, what has to be read out of it, and what the advice has to hold."""

    text: str
    family: str
    numbers: dict[str, int]
    words: dict[str, str]
    changes: list[str]
    pages: list[str]


CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
SIZE_PAGES = ["C1", "req-rounding", "warmup-autotune"]
ENTRY_PAGES = ["C2", "entry-chunk", "entry-unchunked", "chunk-zero", "entry-bucket"]

CASES = {
    "write-requests": Case(
        messages.write_req(600, 512),
        "write-requests",
        {"batch_size": 600, "write_req_capacity": 512},
        {"flag": "--cuda-graph-max-bs-decode"},
        [
            "--cuda-graph-max-bs-decode 600",
            "--max-running-requests 512",
            "SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0",
        ],
        SIZE_PAGES,
    ),
    "write-requests of an old release": Case(
        messages.write_req(600, 512, flag=messages.WRITE_REQ_FLAG_OLD),
        "write-requests",
        {"batch_size": 600, "write_req_capacity": 512},
        {"flag": "--cuda-graph-max-bs"},
        ["--cuda-graph-max-bs 600", "--max-running-requests 512", "SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0"],
        SIZE_PAGES,
    ),
    "write-requests by padding": Case(
        messages.write_req(1004, 1001),
        "write-requests",
        {"batch_size": 1004, "write_req_capacity": 1001},
        {"flag": "--cuda-graph-max-bs-decode"},
        ["--cuda-graph-max-bs-decode 1004", "--max-running-requests 1000"],
        SIZE_PAGES,
    ),
    "write-requests beyond the plan": Case(
        messages.write_req(8192, 2048),
        "write-requests",
        {"batch_size": 8192, "write_req_capacity": 2048},
        {"flag": "--cuda-graph-max-bs-decode"},
        ["--max-running-requests 2048", "SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0"],
        SIZE_PAGES,
    ),
    "write-entries": Case(
        messages.write_entry(20_000, 8192),
        "write-entries",
        {"tokens": 20_000, "write_entry_capacity": 8192},
        {},
        ["--chunked-prefill-size 8192", "--max-prefill-tokens 20000", "--cuda-graph-max-bs-prefill 8192"],
        ENTRY_PAGES,
    ),
    "plan-lanes": Case(
        messages.plan_lanes(600, 512),
        "plan-lanes",
        {"bs": 600, "write_req_capacity": 512},
        {},
        [
            "--cuda-graph-max-bs-decode 600",
            "--max-running-requests 512",
            "SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0",
        ],
        SIZE_PAGES,
    ),
    "plan-batch": Case(
        messages.plan_batch(5000),
        "plan-batch",
        {"bs": 5000, "limit": 4096},
        {},
        ["--max-running-requests 4096", "--cuda-graph-max-bs-decode 4096"],
        ["req-plan", "C1"],
    ),
    "plan-batch below zero": Case(
        messages.plan_batch(-1), "plan-batch", {"bs": -1, "limit": 4096}, {}, [], ["req-plan"]
    ),
    "token-ids": Case(
        messages.scatter_batch(600),
        "token-ids",
        {"rows": 601, "batch_block": 512},
        {},
        ["--max-running-requests 511", f"{CHECK}=0"],
        ["scatter", "C1"],
    ),
    "write-offsets": Case(
        messages.write_offsets_length(512, 512),
        "write-offsets",
        {"write_offsets_len": 512, "write_req_capacity": 512},
        {},
        ["write_offsets of 513 elements"],
        [],
    ),
    "negative-capacity": Case(
        messages.negative_capacity("verify_capacity", -3),
        "negative-capacity",
        {"value": -3},
        {"name": "verify_capacity"},
        ["verify_capacity of 0 or more"],
        [],
    ),
    "empty-plan": Case(
        messages.plan_capacity("WritePlan", "write_req_capacity", 0),
        "empty-plan",
        {"value": 0},
        {"owner": "WritePlan", "name": "write_req_capacity"},
        ["write_req_capacity of 1 or more"],
        [],
    ),
    "window-map": Case(
        messages.window_without_map(),
        "window-map",
        {},
        {},
        ["full_to_swa_index_mapping of that pool", "swa_window_size=0"],
        ["K14"],
    ),
    "verify-capacity": Case(
        messages.verify_capacity_mismatch(1000, 1200),
        "verify-capacity",
        {"verify_capacity": 1000, "plan_length": 1200},
        {},
        ["verify_capacity=1200"],
        [],
    ),
    "byte-sources": Case(
        messages.too_many_sources(6),
        "byte-sources",
        {"sources": 6, "limit": 4},
        {},
        ["at most 4 sources a launch"],
        [],
    ),
    "not-contiguous": Case(
        messages.not_contiguous("verify_plan.verify_slot_indices"),
        "not-contiguous",
        {},
        {"name": "verify_plan.verify_slot_indices"},
        ["verify_plan.verify_slot_indices.contiguous()"],
        [],
    ),
    "wrong-dtype": Case(
        messages.wrong_dtype("prefix_lens", "torch.int64", "torch.int32"),
        "wrong-dtype",
        {},
        {"name": "prefix_lens", "want": "torch.int64", "got": "torch.int32"},
        ["prefix_lens.to(torch.int64)"],
        [],
    ),
    "wrong-rank": Case(
        messages.wrong_rank("prefix_lens", 1, (4, 2)),
        "wrong-rank",
        {"rank": 1},
        {"name": "prefix_lens", "shape": "(4, 2)"},
        [],
        [],
    ),
    "wrong-length": Case(
        messages.wrong_length("extend_seq_lens", 8, 7),
        "wrong-length",
        {"want": 8, "got": 7},
        {"name": "extend_seq_lens"},
        [],
        [],
    ),
    "wrong-device": Case(
        messages.wrong_device("canary_buf", "prefix_lens", "cuda:1", "cpu"),
        "wrong-device",
        {},
        {"name": "canary_buf", "reference": "prefix_lens", "want": "cuda:1", "got": "cpu"},
        ["canary_buf.to('cuda:1')"],
        [],
    ),
    "a need and a room": Case(
        "kv-canary: padded token count=9000 exceeds expected input capacity=8192",
        "exceeds",
        {"need": 9000, "limit": 8192},
        {"need_name": "token count", "limit_name": "capacity"},
        ["capacity of 9000 or more"],
        ["C2"],
    ),
    "a rule": Case(
        messages.broken_rule("sources[0].read_bytes", "be a multiple of 16", 24),
        "broken-rule",
        {"got": 24},
        {"name": "sources[0].read_bytes", "rule": "be a multiple of 16"},
        [],
        [],
    ),
}


def violation(
    launch: object = "HEAD_K_FULL",
    reason: str = "verify_chain_hash",
    slot: int = 4711,
    position: int = 17,
    **fields: object,
) -> str:
    """A violation as the server logs it."""
    values = {
        "stored_token": 5,
        "expected_token": -1,
        "stored_chain_hash": "0x00000000000000ab",
        "expected_aux": "0xfedcba9876543210",
        **fields,
    }
    rest = " ".join(f"{name}={value}" for name, value in values.items())
    return f"kv_canary violation: launch_tag={launch} fail_reason={reason} slot_idx={slot} position={position} {rest}"
