"""What a command loads, and what works where the heavy packages are not there at all."""

from __future__ import annotations

import ast
import json

import pytest

from tests.cli import ROOT, imported_by, spawn_without

HEAVY = {"torch", "triton", "numba"}
CAPACITIES = [
    *["check-capacities", "--gpu", "H100", "--pool-tokens", "425984", "--context-length", "131072"],
    *["--from-args", "--", "python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B"],
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A small trace, written where torch and triton can't be imported."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    done = spawn_without(HEAVY, "synth", "--steps", "20", "--output", str(path))
    assert (done.code, done.err) == (0, "")
    return path


@pytest.mark.parametrize(
    ("argv", "unwanted"),
    [
        (["--help"], HEAVY | {"numpy", "rich"}),
        (["--version"], HEAVY | {"numpy", "rich", "msgspec", "yaml"}),
        (["replay", "--help"], HEAVY | {"numpy", "rich"}),
        (["doctor", "--help"], HEAVY | {"numpy", "rich"}),
        (CAPACITIES, HEAVY | {"numpy", "rich"}),
        (["synth", "--steps", "5", "--output", "/dev/null"], HEAVY),
        (["inspect", "--help"], HEAVY | {"numpy", "rich"}),
        (["inspect", "tests/trace/csv_samples/vidur.csv"], HEAVY | {"rich"}),
        (["inspect", "docs/examples/mooncake-conversation.jsonl"], HEAVY | {"rich"}),
    ],
    ids=[
        *("help", "version", "replay-help", "doctor-help", "check-capacities", "synth"),
        *("inspect-help", "inspect-csv", "inspect-jsonl"),
    ],
)
def test_a_command_loads_only_what_it_needs(argv, unwanted):
    loaded = imported_by(*argv)
    assert "typer" in loaded
    assert loaded & unwanted == set()


def test_replay_on_a_cpu_loads_neither_torch_nor_triton(trace):
    loaded = imported_by("replay", str(trace), "--device", "cpu")
    assert "numba" in loaded
    assert loaded & {"torch", "triton"} == set()


def test_inspect_of_a_trace_without_heavy_packages(trace):
    done = spawn_without(HEAVY, "inspect", str(trace), "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["trace"]["forwards"] == 20


def test_check_capacities_without_heavy_packages():
    done = spawn_without(HEAVY | {"numpy"}, CAPACITIES[0], "--format", "json", *CAPACITIES[1:])
    report = json.loads(done.out)
    assert (report["command"], done.err) == ("check-capacities", "")
    assert report["status"] in ("pass", "fail")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_replay_without_torch_and_triton(trace, device):
    done = spawn_without({"torch", "triton"}, "replay", str(trace), "--device", device, "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["backend"]["device"] == "cpu"


def test_doctor_names_what_is_missing():
    done = spawn_without(HEAVY, "doctor", "--backend", "reference", "--format", "json")
    report = json.loads(done.out)
    rows = {row["name"]: row for row in report["rows"]}
    assert {name: rows[name]["status"] for name in HEAVY} == dict.fromkeys(HEAVY, "WARN")
    assert all("missing" in rows[name]["text"] and rows[name]["consequence"] for name in HEAVY)
    assert (done.code, done.err) == (0, "")


def module_imports(path) -> set[str]:
    """Top-level packages that a module imports when it is itself imported (not inside its functions)."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.If | ast.Try | ast.With) and "TYPE_CHECKING" not in ast.dump(node):
            pending += node.body
    return found


def sources(*packages: str):
    for package in packages:
        yield from sorted((ROOT / "kvcanary_cli" / package).rglob("*.py"))


def test_only_commands_and_output_know_the_terminal():
    below = sources("trace", "sim", "replay", "ledger", "runtime", "kernels", "capacity", "faults", "doctor")
    knowing = [
        path.relative_to(ROOT).as_posix() for path in below if module_imports(path) & {"typer", "rich"}
    ]
    assert knowing == []


def test_references_and_cpu_kernels_never_import_triton():
    files = [path for path in sources("kernels") if path.stem.endswith(("_ref", "_cpu"))]
    assert files
    assert [path.name for path in files if module_imports(path) & {"triton", "torch"}] == []


def test_nothing_imports_anothers_private_name():
    guilty = []
    for path in sources("."):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvcanary_cli"):
                names = [alias.name for alias in node.names if alias.name.startswith("_")]
                guilty += [f"{path.name}: {name}" for name in names if name != "__version__"]
    assert guilty == []
