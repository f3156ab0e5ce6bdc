"""Run an implementation against vectors: inputs and outputs recorded from SGLang's own kernels.

A vector is one `.npz` file named after its operation (`plan_017.npz`), with arrays `in_*`, `out_*` and a
JSON string `meta` of scalars. Everything is compared exactly, except that the order of violation rows is free.

    python -m kvcanary_cli.kernels.vectors FOLDER BACKEND

prints the result as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from kvcanary_cli.errors import InputError, KvCanaryError
from kvcanary_cli.exits import Exit
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels._vector_backends import Backend, load_backend
from kvcanary_cli.kernels.consts import RING_WORDS

# a few of each operation, for machines without the full set
PACKAGED_VECTORS = Path(__file__).parent / "vectors"

OUTPUT_FILL = 0x5A  # outputs hold this before a launch, so that an element left unwritten shows


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorResult:
    """How many vectors agreed; `failures` has one line a vector that did not."""

    passed: int
    failed: int
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """One file's content."""

    path: Path
    operation: str
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]

    def optional(self, name: str) -> np.ndarray | None:
        """The array, or None where the vector has none."""
        return self.arrays.get(name)


def run_vectors(folder: Path | str, backend: str, *, device: str | None = None) -> VectorResult:
    """Run every vector of a folder through one implementation.

    Args:
        folder: holds `.npz` files, all of them vectors.
        backend: `reference`, `numba` or `triton`.
        device: where triton runs, such as `cuda:0`; by default the CPU if Triton interprets, else the GPU.

    Raises InputError for a folder without vectors or a file that is none, MissingError if the backend can't
    run here.
    """
    implementation = load_backend(backend, device)
    failures = []
    paths = vector_paths(folder)
    for path in paths:
        difference = run_vector(load_vector(path), implementation)
        if difference:
            failures.append(f"{path.name}: {difference}")
    return VectorResult(passed=len(paths) - len(failures), failed=len(failures), failures=failures)


def vector_paths(folder: Path | str) -> list[Path]:
    """The `.npz` files of a folder, by name. InputError if there are none."""
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        found = "has no .npz files" if Path(folder).is_dir() else "is not a folder"
        raise InputError(f"a folder of vectors was expected, but it {found}", where=str(folder))
    return paths


def load_vector(path: Path | str) -> Vector:
    """Read one file. InputError if it is not a vector."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        meta = json.loads(str(arrays.pop("meta")))
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"the file is not a kernel vector: {error}", where=str(path)) from error
    operation = path.name.partition("_")[0]
    if operation not in _RUNNERS or not isinstance(meta, dict):
        known = ", ".join(_RUNNERS)
        message = f"a vector is named after its operation ({known}) and has a meta object"
        raise InputError(message, where=str(path))
    return Vector(path=path, operation=operation, arrays=arrays, meta=meta)


def run_vector(vector: Vector, backend: Backend) -> str | None:
    """Run one vector. Returns the first difference in words, or None. InputError if something is lacking."""
    try:
        return _RUNNERS[vector.operation](vector, backend)
    except KeyError as error:
        raise InputError(f"the vector has no {error.args[0]}", where=str(vector.path)) from error
    except ValueError as error:
        # the launchers' own refusals speak about the vector; any other ValueError is a bug
        if not str(error).startswith("kv-canary: "):
            raise
        raise InputError(f"the vector can't be run: {error}", where=str(vector.path)) from error


def _run_plan(vector: Vector, backend: Backend) -> str | None:
    arrays, meta, put = vector.arrays, vector.meta, backend.put
    verify_plan = _filled(backend, backend.verify_plan.allocate(meta["verify_capacity"], backend.device))
    write_plan = _filled(backend, backend.write_plan.allocate(meta["write_req_capacity"], backend.device))
    optional = {
        name: None if vector.optional(f"in_{name}") is None else put(arrays[f"in_{name}"])
        for name in ("full_to_swa", "expected_tokens", "expected_valid_lens")
    }
    required = ("req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token")
    backend.plan(
        verify_plan_out=verify_plan,
        write_plan_out=write_plan,
        **{name: put(arrays[f"in_{name}"]) for name in required},
        **optional,
        swa_window_size=meta["swa_window_size"],
        token_id_vs_position_offset=meta["token_id_vs_position_offset"],
    )
    num_valid = 0 if not int(arrays["out_enable"][0]) else int(arrays["out_verify_num_valid"][0])
    for name in (*_VERIFY_ENTRY_ARRAYS, "verify_num_valid", "enable"):
        got = backend.get(getattr(verify_plan, name))
        if name in _VERIFY_ENTRY_ARRAYS:
            # an overflowing plan leaves its entries as they were
            untouched = got if num_valid == 0 and not int(arrays["out_enable"][0]) else got[:0]
            if (untouched != OUTPUT_FILL).any():
                return f"out_{name} was written although the plan overflows"
            difference = _compare(f"out_{name}", got[:num_valid], arrays[f"out_{name}"][:num_valid])
        else:
            difference = _compare(f"out_{name}", got, arrays[f"out_{name}"])
        if difference:
            return difference
    for name in ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs"):
        want = arrays[f"out_{name}"]
        difference = _compare(f"out_{name}", backend.get(getattr(write_plan, name))[: len(want)], want)
        if difference:
            return difference
    return None


_VERIFY_ENTRY_ARRAYS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)


def _run_verify(vector: Vector, backend: Backend) -> str | None:
    meta = vector.meta

    def launch(backend: Backend, canary_buf: Any, log: Any) -> None:
        plan = backend.verify_plan.allocate(meta["verify_capacity"], backend.device)
        _filled(backend, plan)
        for name in _VERIFY_ENTRY_ARRAYS:
            entries = backend.put(vector.arrays[f"in_{name}"])
            getattr(plan, name)[: len(entries)] = entries
        plan.verify_num_valid[0] = meta["verify_num_valid"]
        plan.enable[0] = meta["enable"]
        backend.verify(
            canary_buf=canary_buf,
            plan=plan,
            sources=_sources(vector, backend),
            hash_mode=meta["real_kv_hash_mode"],
            launch_tag=meta["launch_tag"],
            log=log,
            check_expected_token=bool(meta["check_expected_token"]),
        )

    return _run_stamps(vector, backend, launch)


def _run_write(vector: Vector, backend: Backend) -> str | None:
    meta = vector.meta

    def launch(backend: Backend, canary_buf: Any, log: Any) -> None:
        put = backend.put
        plan = backend.write_plan.allocate(meta["write_req_capacity"], backend.device)
        for name in ("write_offsets", "write_seed_slot_indices"):
            values = put(vector.arrays[f"in_{name}"])
            getattr(plan, name)[: len(values)] = values
        plan.write_num_valid_reqs[0] = meta["write_num_valid_reqs"]
        names = ("in_expected_input_tokens", "in_expected_input_positions")
        expected = None
        if meta["write_input_assert"]:
            expected = ExpectedInputs(*(put(vector.arrays[name]) for name in names))
        backend.write(
            canary_buf=canary_buf,
            plan=plan,
            input_ids=put(vector.arrays["in_input_ids"]),
            positions=put(vector.arrays["in_positions"]),
            out_cache_loc=put(vector.arrays["in_out_cache_loc"]),
            sources=_sources(vector, backend),
            hash_mode=meta["real_kv_hash_mode"],
            launch_tag=meta["launch_tag"],
            log=log,
            expected_inputs=expected,
            chain_position_assert=bool(meta["chain_position_assert"]),
        )

    return _run_stamps(vector, backend, launch)


def _run_stamps(vector: Vector, backend: Backend, launch: Callable[[Backend, Any, Any], None]) -> str | None:
    """Run a verify or write launch and compare stamps, counters and violation rows."""
    arrays = vector.arrays
    canary_buf = backend.put(arrays["in_canary_buf"])
    log = backend.log.allocate(vector.meta["ring_capacity"], backend.device)
    launch(backend, canary_buf, log)
    counters = ("write_index", "slot_run_counter", "kernel_run_counter")
    checks = {"canary_buf": canary_buf} | {name: getattr(log, name) for name in counters}
    for name, got in checks.items():
        difference = _compare(f"out_{name}", backend.get(got), arrays[f"out_{name}"])
        if difference:
            return difference
    count = int(arrays["out_write_index"][0])
    got_rows = _row_counts(backend.get(log.ring)[: min(count, log.ring_capacity)])
    if count <= log.ring_capacity:
        want_rows = _row_counts(arrays["out_ring"][:count])
        return None if got_rows == want_rows else _describe_rows(got_rows, want_rows)
    # which rows an overflowing ring keeps is free: each must be one that a large ring would hold
    reference = load_backend("reference")
    all_rows = reference.log.allocate(count, "cpu")
    launch(reference, reference.put(arrays["in_canary_buf"]), all_rows)
    true_rows = _row_counts(all_rows.ring)
    return _describe_rows(got_rows, true_rows) if got_rows - true_rows else None


def _run_scatter(vector: Vector, backend: Backend) -> str | None:
    pool = backend.put(vector.arrays["in_pool"])
    names = ("flat", "offsets", "req_pool_indices")
    backend.scatter(**{name: backend.put(vector.arrays[f"in_{name}"]) for name in names}, pool=pool)
    return _compare("out_pool", backend.get(pool), vector.arrays["out_pool"])


_RUNNERS: dict[str, Callable[[Vector, Backend], str | None]] = {
    "plan": _run_plan,
    "verify": _run_verify,
    "write": _run_write,
    "scatter": _run_scatter,
}


def _sources(vector: Vector, backend: Backend) -> list[KvSource]:
    return [
        KvSource(
            tensor=backend.put(vector.arrays[f"in_source{number}"]),
            page_size=source["page_size"],
            num_bytes_per_token=source["num_bytes_per_token"],
            read_bytes=source["read_bytes"],
        )
        for number, source in enumerate(vector.meta["sources"])
    ]


def _filled(backend: Backend, plan: Any) -> Any:
    for entry in fields(plan):
        getattr(plan, entry.name)[:] = OUTPUT_FILL
    return plan


def _compare(name: str, got: np.ndarray, want: np.ndarray) -> str | None:
    if got.shape != want.shape:
        return f"{name} has shape {got.shape}, expected {want.shape}"
    different = np.argwhere(got != want)
    if len(different) == 0:
        return None
    where = tuple(int(index) for index in different[0])
    place = ", ".join(map(str, where))
    return f"{name}[{place}] is {got[where]}, expected {want[where]} ({len(different)} elements differ)"


def _row_counts(rows: np.ndarray) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in rows.reshape(-1, RING_WORDS).tolist())


def _describe_rows(got: Counter[tuple[int, ...]], want: Counter[tuple[int, ...]]) -> str:
    surplus, lacking = got - want, want - got
    row = next(iter(surplus or lacking))
    word = "unexpected" if surplus else "missing"
    return f"out_ring: row {list(row)} is {word} ({surplus.total()} unexpected, {lacking.total()} missing)"


def main(arguments: Sequence[str]) -> int:
    """Print the result for a folder and a backend. Returns 0, 1 if a vector differs, or the error's exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m kvcanary_cli.kernels.vectors FOLDER BACKEND\n")
        return Exit.USAGE
    try:
        result = run_vectors(*arguments)
    except KvCanaryError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return Exit.FINDINGS if result.failed else Exit.PASS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
