"""Texts of the server's own canary errors, word for word, with numbers filled in.

Users see them in their logs and paste them into a search. Source: SGLang 0.5.23; `flag` differs by release.
"""

from __future__ import annotations

from kvcanary_cli.kernels.consts import SERVER_SCATTER_BATCH_BLOCK

WRITE_REQ_FLAG = "--cuda-graph-max-bs-decode"
WRITE_REQ_FLAG_OLD = "--cuda-graph-max-bs"  # up to 0.5.18


def write_req(batch: int, capacity: int, *, flag: str = WRITE_REQ_FLAG) -> str:
    """A forward has more lanes than `write_req_capacity`."""
    return (
        f"kv-canary: forward_batch.batch_size={batch} exceeds pre-allocated write_req_capacity={capacity}; "
        f"raise {flag} or check CanaryLaunchCapacities.from_args"
    )


def write_entry(tokens: int, capacity: int) -> str:
    """A forward writes more tokens than `write_entry_capacity`."""
    return (
        f"kv-canary: forward_batch token count={tokens} exceeds pre-allocated write_entry_capacity={capacity}; "
        "raise --chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args"
    )


def plan_batch(batch: int) -> str:
    """More lanes than the plan's offsets kernel scans in one program."""
    return f"kv-canary: offsets kernel bs must be in [0, 4096], got {batch}"


def scatter_batch(batch: int) -> str:
    """More lanes than one scatter of expected tokens takes."""
    return (
        f"kv-canary: scatter_req_token_ids bs+1={batch + 1} exceeds BATCH_BLOCK={SERVER_SCATTER_BATCH_BLOCK}; "
        "bump _SCATTER_BATCH_BLOCK if real workloads need this"
    )
