"""Which codes have a page, in which groups, and which page a word of a report leads to."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.errors import UsageError, nearest
from kvcanary_cli.explain.pages import Page, load
from kvcanary_cli.kinds import KINDS, STREAM_KINDS

GROUPS: dict[str, tuple[str, ...]] = {
    "ownership and lifetime": ("K01", "K02", "K03", "K04", "K05", "K06"),
    "page table and addressing": ("K10", "K11", "K12", "K13", "K14", "K15"),
    "tokens, positions, prefixes, bytes": ("K16", "K17", "K18", "K19", "K20", "K21"),
    "transfers, offloads, reloads": ("K07", "K08", "K09", "K22", "K23", "K24", "K25", "K26"),
    "streams of KV events": ("S01", "S02", "S03", "S04", "S05", "S06", "S07", "S08", "S09", "S10", "S11"),
    "capacities": ("C1", "C2", "C3", "C4", "C5", "C6", "C7"),
    "checks of the canary": (
        "chain_hash",
        "position",
        "real_kv_hash",
        "verify_token",
        "write_token",
        "write_position",
        "slot_out_of_range",
    ),
    "rules of check-capacities: requests and tokens": (
        "req-plan",
        "req-rounding",
        "scatter",
        "chunk-zero",
        "entry-chunk",
        "entry-unchunked",
        "entry-several",
        "entry-bucket",
        "dynamic-chunking",
        "dllm",
        "verify-share",
    ),
    "rules of check-capacities: a measured workload": (
        "need-requests",
        "need-entries",
        "need-verify",
        "need-token-ids",
    ),
    "rules of check-capacities: drafts": (
        "spec-topk",
        "spec-adaptive",
        "spec-unsupported",
        "spec-draft",
        "spec-tree",
    ),
    "rules of check-capacities: switches and variables": (
        "pdmux",
        "warmup-autotune",
        "warmup-deepgemm",
        "prefill-piecewise",
        "prefill-cp",
        "device-graph",
        "sweep-cache",
        "sweep-off",
        "real-data-rows",
        "input-oracle",
        "perturb-group",
        "perturb",
        "gemma-positions",
    ),
    "rules of check-capacities: pools and memory": (
        "pool-class",
        "layout-hnd",
        "layout-dcp",
        "layout-last-page",
        "stage-window",
        "memory",
    ),
    "rules of check-capacities: what it starts from": ("log-differs", "log-ranks", "pool-estimate"),
    "no kind": ("unknown",),
}

ALIASES = {"unknown-cause": "unknown"}
"""Words that reports use for a code beside its name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Pages that a word leads to; one, unless it is a ledger rule that several kinds rest on."""

    word: str
    pages: tuple[Page, ...]


def codes() -> list[str]:
    """Every code that has a page, in the order of the groups."""
    return [code for group in GROUPS.values() for code in group]


def group_of(code: str) -> str:
    """The group a code belongs to."""
    return next(group for group, members in GROUPS.items() if code in members)


def look_up(word: str) -> Answer:
    """Pages of a code, a name or a ledger rule; upper and lower case, `-` and `_` are the same.

    Raises: UsageError for a word that none of the three knows, with the nearest.
    """
    wanted = _plain(word)
    names = {_plain(code): code for code in codes()}
    kinds = KINDS | STREAM_KINDS
    names |= {kinds[code]: code for code in names.values() if code in kinds}
    names |= {f"{code.lower()}-{name}": code for code, name in kinds.items()}
    names |= ALIASES
    if wanted in names:
        return Answer(word, (load(names[wanted]),))
    # only now: a code or a name reads one file, a ledger rule reads all
    pages = [load(code) for code in codes()]
    found = tuple(page for page in pages if wanted in page.rules)
    if found:
        return Answer(word, found)
    rules = [rule for page in pages for rule in page.rules]
    close = nearest(wanted, [*names, *rules])
    hint = f"`kvcanary explain {_spelled(close, names)}`" if close else "`kvcanary explain` lists all codes"
    raise UsageError(f"`{word}` is no code, name or ledger rule that kvcanary knows", hint=hint)


def _spelled(word: str, names: dict[str, str]) -> str:
    """A code as reports spell it; a name or a ledger rule as it is."""
    code = names.get(word)
    return code if code is not None and _plain(code) == word else word


def _plain(word: str) -> str:
    return "-".join(word.strip().lower().replace("_", "-").split())
