"""Texts of the server's own canary errors, word for word, with numbers filled in.

Users see them in their logs and paste them into a search. Source: SGLang 0.5.23; `flag` differs by release.
"""

from __future__ import annotations

from kvcanary_cli.kernels.consts import SERVER_MAX_SOURCES, SERVER_SCATTER_BATCH_BLOCK

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
        f"kv-canary: forward_batch token count={tokens} exceeds pre-allocated "
        f"write_entry_capacity={capacity}; raise --chunked-prefill-size / --max-prefill-tokens "
        "or check CanaryLaunchCapacities.from_args"
    )


def plan_batch(batch: int) -> str:
    """More lanes than the plan's offsets kernel scans in one program."""
    return f"kv-canary: offsets kernel bs must be in [0, 4096], got {batch}"


def scatter_batch(batch: int) -> str:
    """More lanes than one scatter of expected tokens takes."""
    return (
        f"kv-canary: scatter_req_token_ids bs+1={batch + 1} exceeds "
        f"BATCH_BLOCK={SERVER_SCATTER_BATCH_BLOCK}; bump _SCATTER_BATCH_BLOCK if real workloads need this"
    )


def too_many_sources(sources: int) -> str:
    """More byte sources than one launch of the server takes."""
    return (
        f"kv-canary: at most {SERVER_MAX_SOURCES} RealKvSource entries supported by the CUDA ABI, "
        f"got {sources}"
    )


# The texts above belong to limits of the server that our launchers don't have: audit and replay report them,
# nobody raises them here. Those below are raised by our launchers too (`_checks.py`).


def plan_lanes(batch: int, capacity: int) -> str:
    """A plan of more lanes than its write plan has room for."""
    return f"kv-canary: bs={batch} exceeds write_req_capacity={capacity}"


def write_offsets_length(length: int, capacity: int) -> str:
    """`write_offsets` needs one element more than there are lanes."""
    return f"kv-canary: write_offsets_len must equal write_req_capacity + 1, got {length} and {capacity}"


def negative_capacity(name: str, value: int) -> str:
    """`name` is `write_req_capacity` or `verify_capacity`."""
    return f"kv-canary: {name} must be non-negative, got {value}"


def plan_capacity(owner: str, name: str, value: int) -> str:
    """Something allocated without room, such as `VerifyPlan` with a `verify_capacity` of 0."""
    return f"kv-canary: {owner} {name} must be positive, got {value}"


def window_without_map() -> str:
    """A sliding window was asked for, and there is no full-to-window map."""
    return "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0"


def verify_capacity_mismatch(capacity: int, length: int) -> str:
    """The capacity given with a plan is not the plan's own."""
    return (
        f"kv-canary: launch_canary_plan_kernels verify_capacity={capacity} does not match "
        f"verify_plan_out.verify_slot_indices.shape[0]={length}"
    )


def not_contiguous(name: str) -> str:
    """A tensor that is indexed as flat memory has gaps."""
    return f"kv-canary: {name} must be contiguous"


def wrong_dtype(name: str, want: str, got: str) -> str:
    """`want` and `got` are written as the array library writes them."""
    return f"kv-canary: {name} must have dtype {want}, got {got}"


def wrong_rank(name: str, rank: int, shape: tuple[int, ...]) -> str:
    """`rank` is the number of dimensions wanted."""
    return f"kv-canary: {name} must be {rank}-D, got shape {shape}"


def wrong_length(name: str, want: int, got: int) -> str:
    """A one-dimensional tensor is too short or too long."""
    return f"kv-canary: {name} length must be {want}, got {got}"


def wrong_device(name: str, reference: str, want: str, got: str) -> str:
    """All tensors of a launch live where `reference` lives."""
    return f"kv-canary: {name} must be on {reference}'s device {want}, got {got}"


def broken_rule(name: str, rule: str, got: object) -> str:
    """Our own rules, in the server's manner: the field, the rule and the value."""
    return f"kv-canary: {name} must {rule}, got {got}"
