"""The data behind the defaults: tab-separated files in `data/`, one header line, `#` lines are comments.

TSV and not YAML, because every run needs some of them and PyYAML costs more than the whole audit.
Figures are those of the sglang releases named in `versions.tsv`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from kvcanary_cli.errors import UsageError, nearest

DATA = Path(__file__).parent / "data"
DEFAULT_VERSION = "0.5.23"


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Rows of `data/<name>.tsv` as dicts of strings, in file order."""
    lines = (DATA / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    header = rows[0]
    return tuple(dict(zip(header, row, strict=True)) for row in rows[1:])


class Version(NamedTuple):
    """What differs between releases in names, accepted flags and limits; the columns of `versions.tsv`."""

    name: str
    graph_batch_flag: str
    phaseless_graph_flags: bool
    attn_dp_alias: bool
    subtracts_workspace: bool
    sweep_caches: frozenset[str]
    wraps_prefill_cp: bool
    plan_lanes: int
    scatter_block: int


class Gpu(NamedTuple):
    """A GPU by the name users give; memory in MiB."""

    name: str
    memory_mib: int
    is_blackwell: bool


class Tier(NamedTuple):
    """Server defaults of one class of GPU memory: tokens a chunk, requests in the largest decode graph."""

    chunk: int
    graph_batch: int


class Algorithm(NamedTuple):
    """A speculative algorithm; shape words are numbers, `model` or `given`."""

    name: str
    steps: str
    topk: str
    draft_tokens: str
    has_draft_runner: bool


class KnownModel(NamedTuple):
    """Shape of a published model; `window` and `swa_layers` only where its window has a pool of its own.

    `weight_bytes` are those of the whole model, estimated from its number of parameters.
    """

    path: str
    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    window: int | None
    swa_layers: int | None
    latent_dim: int | None
    context: int
    weight_bytes: int


class Architecture(NamedTuple):
    """What the server does for one family of models; `window` is yes, no or never."""

    pool: str = "mha"
    window: str = "no"
    ratio: float | None = None
    takes_whole_prompts: bool = False
    running: int | None = None
    page_size: int | None = None
    has_prefill_graph: bool = True


def find_architecture(name: str | None) -> Architecture:
    """The row of `architectures.tsv` whose prefix fits best; one that says nothing special where none does."""
    fitting = [row for row in read_table("architectures") if name and name.startswith(row["prefix"])]
    if not fitting:
        return Architecture()
    row = max(fitting, key=lambda found: len(found["prefix"]))
    return Architecture(
        pool=row["pool"],
        window=row["window"],
        ratio=float(row["ratio"]) if row["ratio"] else None,
        takes_whole_prompts=row["whole_prompts"] == "yes",
        running=int(row["running"]) if row["running"] else None,
        page_size=int(row["page"]) if row["page"] else None,
        has_prefill_graph=row["graph"] == "yes",
    )


def find_version(name: str) -> Version:
    """The release called `name`; UsageError names the known ones."""
    rows = read_table("versions")
    for row in rows:
        if row["version"] == name:
            return Version(
                name=name,
                graph_batch_flag=row["graph_batch_flag"],
                phaseless_graph_flags=row["phaseless_graph_flags"] == "yes",
                attn_dp_alias=row["attn_dp_alias"] == "yes",
                subtracts_workspace=row["subtracts_workspace"] == "yes",
                sweep_caches=frozenset(row["sweep_caches"].split(",")),
                wraps_prefill_cp=row["wraps_prefill_cp"] == "yes",
                plan_lanes=int(row["plan_lanes"]),
                scatter_block=int(row["scatter_block"]),
            )
    known = ", ".join(row["version"] for row in rows)
    raise UsageError(
        f"`--sglang-version` {name} is not a release whose sizing is known ({known})",
        hint="take the nearest release; the formula is the same in all, some defaults and flag names differ",
    )


def find_gpu(name: str) -> Gpu | None:
    """The GPU called `name`, without regard to case, spaces, dashes and a leading NVIDIA; None if unknown."""
    wanted = _plain(name)
    for row in read_table("gpus"):
        spellings = [row["name"], *row["aliases"].split(",")]
        if wanted in {_plain(spelling) for spelling in spellings if spelling}:
            return Gpu(
                name=row["name"], memory_mib=int(row["memory_mib"]), is_blackwell=row["blackwell"] == "yes"
            )
    return None


def unknown_gpu_hint(name: str) -> str:
    """What to write in place of a GPU name that is not in the table."""
    names = [row["name"] for row in read_table("gpus")]
    # A name that only lacks its variant, such as A100, gets all of them
    variants = [known for known in names if _plain(known).startswith(_plain(name)) and _plain(name)]
    close = variants or [match for match in [nearest(name.upper(), names)] if match]
    if close:
        return f"did you mean {' or '.join(close)}? or give `--gpu-memory`, as nvidia-smi prints it"
    return f"known: {', '.join(names)}; or give `--gpu-memory`, as nvidia-smi prints it"


def find_tier(memory_mib: int, tp_size: int, version: str) -> Tier:
    """Defaults that the server takes from the GPU's memory (MiB) and the full tp size."""
    column = "batch_tp_under_4" if tp_size < 4 else "batch_tp_from_4"
    for row in read_table("gpu_tiers"):
        if row["versions"] != "*" and version not in row["versions"].split(","):
            continue
        if row["below_mib"] == "-" or memory_mib < int(row["below_mib"]):
            return Tier(chunk=int(row["chunk"]), graph_batch=int(row[column]))
    raise AssertionError("gpu_tiers.tsv has no open row at its end")


def find_algorithm(name: str) -> Algorithm | None:
    """The speculative algorithm called `name`, under the name the server turns it into."""
    for row in read_table("speculative"):
        if row["algorithm"] == name:
            return Algorithm(
                name=row["becomes"],
                steps=row["steps"],
                topk=row["topk"],
                draft_tokens=row["draft_tokens"],
                has_draft_runner=row["draft_runner"] == "yes",
            )
    return None


def algorithm_names() -> list[str]:
    """Every algorithm name that the server accepts."""
    return [row["algorithm"] for row in read_table("speculative")]


def find_model(path: str) -> KnownModel | None:
    """The published model whose repository is `path`, None for a local path or one not in the table.

    The last part of the path is enough, with or without its owner.
    """
    for row in read_table("models"):
        if path.lower() in (row["path"].lower(), row["path"].lower().rsplit("/", 1)[-1]):
            return KnownModel(
                path=row["path"],
                architecture=row["architecture"],
                layers=int(row["layers"]),
                kv_heads=int(row["kv_heads"]),
                head_dim=int(row["head_dim"]),
                dtype=row["dtype"],
                window=int(row["window"]) if row["window"] else None,
                swa_layers=int(row["swa_layers"]) if row["swa_layers"] else None,
                latent_dim=int(row["latent_dim"]) if row["latent_dim"] else None,
                context=int(row["context"]),
                weight_bytes=int(float(row["parameters"]) * float(row["weight_bits"]) * 1e9 / 8),
            )
    return None


def forced_page_size(backend: str, wanted: int | None, *, is_blackwell: bool) -> int | None:
    """The page size that an attention backend sets whatever was asked for; None if it leaves the choice."""
    for row in read_table("page_sizes"):
        if row["backend"] == backend and (row["gpu"] == "any" or is_blackwell):
            accepted = {int(size) for size in row["accepts"].split(",")}
            return wanted if wanted in accepted else int(row["otherwise"])
    return None


def _plain(name: str) -> str:
    plain = "".join(char for char in name.lower() if char.isalnum())
    return plain.removeprefix("nvidia")
