"""One audit, from an open dump to a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.audit.blame import Blame, Damage, shared_slots, table_damages
from kvcanary_cli.audit.claims import Claims, Entries, IntArray, Tokens, cache_claims, joined, row_claims
from kvcanary_cli.audit.dump import Dump
from kvcanary_cli.audit.incidents import Incident
from kvcanary_cli.audit.incidents import joined as join_damages
from kvcanary_cli.audit.verify import BufferResult, verify_buffer
from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.consts import RING_BITS, RING_SLOT, RING_TAG, WORD_KV_HASH, HashMode, LaunchTag
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.trace.dump_format import CANARY, KV

FULL, SWA = "full", "swa"
CHECKS = ("stamps", "chain_hash", "position", "real_kv_hash", "verify_token", "rows", "cache", "head")
"""What `--require` may name."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthProblem:
    """A row whose length can't be: negative, or beyond the table."""

    row: int
    length: int
    width: int


@dataclass(kw_only=True, slots=True)
class GroupResult:
    """What was found in one group.

    Attributes:
        results: one a buffer, TAIL first.
        mixed: slots that are held behind several slots though all of it verifies, with holders.
        unmapped: positions of a window that the map has given up.
        sources: KV bytes that were compared with their hashes, by half.
        num_unchecked: entries beyond the number that is verified of one slot.
        num_unjudged: failed entries that were counted and not looked at.
    """

    group: str
    num_slots: int
    entries: Entries
    sources: dict[str, list[KvSource]] = field(default_factory=dict)
    results: list[BufferResult] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    shadows: dict[int, int | None] = field(default_factory=dict)
    mixed: list[tuple[int, list[int]]] = field(default_factory=list)
    unmapped: int = 0
    num_unchecked: int = 0
    num_unjudged: int = 0


@dataclass(kw_only=True, slots=True)
class AuditResult:
    """What an audit found, and how far it looked.

    Attributes:
        rows: rows that hold a request.
        missing: what had to be checked and could not be, with the reason; not_checked: what need not be.
        checks: words for what was checked.
        log: rows of the server's own log, and whether each still holds: True, False, or None if it can't be told.
    """

    dump: Dump
    groups: list[GroupResult]
    rows: list[int]
    num_cached: int | None
    lengths: list[LengthProblem]
    checks: list[str]
    missing: dict[str, str]
    not_checked: dict[str, str]
    log_count: int | None = None
    log_rows: int = 0
    log_confirmed: int = 0

    @property
    def num_entries(self) -> int:
        """Entries that kernels looked at, in all buffers."""
        return sum(result.num_checked for group in self.groups for result in group.results)


def audit(
    dump: Dump, *, device: DeviceChoice, threads: int | None = None, on_progress: Progress = lambda what: None
) -> AuditResult:
    """Verify every row and every cached chain of a dump.

    Raises: InputError where the file changes meanwhile, MissingError where there are fewer cores than threads.
    """
    _set_threads(device, threads)
    table, lens = dump.ints("req_to_token"), dump.ints("seq_lens")
    missing: dict[str, str] = {}
    not_checked: dict[str, str] = {}
    cache = _cache(dump, not_checked)
    if table is None or lens is None:
        absent = [n for n, got in (("req_to_token", table), ("seq_lens", lens)) if got is None]
        missing["rows"] = f"the dump has no {' and no '.join(absent)}: no row was checked"
        table, lens = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    lengths = [
        LengthProblem(row=row, length=int(lens[row]), width=table.shape[1])
        for row in np.flatnonzero((lens < 0) | (lens > table.shape[1])).tolist()
        if row
    ]
    tokens = _tokens(dump, not_checked)
    groups = []
    for group in dump.groups or (FULL,):
        on_progress(group)
        found = _audit_group(dump, group, table, lens, tokens, cache, device, missing, not_checked)
        if found is not None:
            groups.append(found)
    result = AuditResult(
        dump=dump,
        groups=groups,
        rows=[row for row in np.flatnonzero(lens > 0).tolist() if row],
        num_cached=None if cache is None else int(cache[0].size),
        lengths=lengths,
        checks=_checks(groups, tokens, missing, cache),
        missing=missing,
        not_checked=not_checked,
    )
    _compare_log(dump, result)
    return result


def _set_threads(device: DeviceChoice, threads: int | None) -> None:
    if threads is None or device.kind != "cpu":
        return
    import numba

    most = numba.get_num_threads()
    if threads > most:
        raise MissingError(f"`--threads {threads}` was asked for, {most} cores are there")
    numba.set_num_threads(threads)


def _cache(dump: Dump, not_checked: dict[str, str]) -> tuple[IntArray, IntArray, IntArray] | None:
    slots, positions, before = (dump.ints(f"cache.{n}") for n in ("slots", "positions", "predecessors"))
    if slots is None or positions is None or before is None:
        not_checked["cache"] = "the dump has no cache.slots, cache.positions and cache.predecessors"
        return None
    return slots, positions, before


def _tokens(dump: Dump, not_checked: dict[str, str]) -> Tokens | None:
    pool, lens = dump.ints("expected_tokens"), dump.ints("expected_lens")
    if pool is None or lens is None:
        not_checked["verify_token"] = "the dump has no expected_tokens and expected_lens"
        return None
    return Tokens(pool=pool, lens=lens, offset=dump.facts.token_offset)


def _audit_group(
    dump: Dump,
    group: str,
    table: np.ndarray,
    lens: IntArray,
    tokens: Tokens | None,
    cache: tuple[IntArray, IntArray, IntArray] | None,
    device: DeviceChoice,
    missing: dict[str, str],
    not_checked: dict[str, str],
) -> GroupResult | None:
    """Verify one group; what can't be goes into `missing` or `not_checked`."""
    is_mapped = group == SWA and FULL in dump.groups
    lut = dump.ints("full_to_swa") if is_mapped else None
    if is_mapped and lut is None:
        missing["swa"] = "the dump has no full_to_swa: the window group was not checked"
        return None
    window = dump.facts.window_size if group == SWA else 0
    if window is None:
        missing["swa"] = "the metadata has no window_size: the window group was not checked (--window)"
        return None
    parts: list[Claims] = [row_claims(table, lens, window=window, lut=lut, tokens=tokens)]
    num_unmapped = int((parts[0].slot == 0).sum()) if is_mapped else 0
    if cache is not None:
        parts.append(cache_claims(*cache, lut))
    num_slots = dump.num_slots(group) or _most(table, parts)
    found = GroupResult(
        group=group, num_slots=num_slots, entries=Entries(joined(parts), num_slots), unmapped=num_unmapped
    )
    _verify(dump, found, device, missing, not_checked)
    damages: list[Damage] = table_damages(found.entries, padding=not is_mapped)
    blame = Blame(found.entries, found.results, is_affine=dump.facts.chain == "affine")
    damages += blame.run()
    found.shadows, found.num_unjudged = blame.shadows, blame.num_unjudged
    found.incidents = join_damages(group, damages)
    failed = set(blame.bits)
    found.mixed = [(s, others) for s, others in shared_slots(found.entries) if not failed & set(others)]
    return found


def _most(table: np.ndarray, parts: list[Claims]) -> int:
    """Slots of a pool of which nothing says how large it is: as many as are named."""
    return max([1, *(int(part.slot.max(initial=0)) + 1 for part in parts)])


def _verify(
    dump: Dump,
    found: GroupResult,
    device: DeviceChoice,
    missing: dict[str, str],
    not_checked: dict[str, str],
) -> None:
    """Run the kernels over each buffer of a group."""
    group, entries = found.group, found.entries
    names = dump.buffers(group)
    if not names:
        missing["stamps"] = (
            f"the dump has no canary.* of the {group} group: only who holds what was looked at"
        )
        return
    for half in "kv":
        phases = [phase for phase in ("tail", "head") if f"canary.{phase}_{half}_{group}" in names]
        if len(phases) == 1:
            other = "head" if phases[0] == "tail" else "tail"
            key = f"{other}_{half}_{group}"
            not_checked[key] = f"the dump has no canary.{key}"
    for name in names:
        phase, half = CANARY[name][:2]
        stamps = dump.stamps(name)
        if not stamps.any():
            # SGLang has buffers for V whether it stamps V or not
            not_checked[name.removeprefix("canary.")] = "no stamp in it was ever written"
            continue
        sources = _sources(dump, group, half, stamps) if phase == "tail" else []
        if sources is None:
            missing["real_kv_hash"] = _why_no_bytes(dump, group)
        result = verify_buffer(
            stamps,
            entries,
            sources=sources or [],
            hash_mode=(dump.hash_mode if sources else HashMode.NONE) if sources is not None else None,
            launch=name.removeprefix("canary.").upper(),
            is_affine=dump.facts.chain == "affine",
            device=device,
        )
        found.results.append(result)
        if sources:
            found.sources[half] = sources
    if not found.results:
        missing["stamps"] = (
            f"no stamp of the {group} group was ever written: only who holds what was looked at"
        )
        return
    planned = int(entries.is_checked.sum())
    found.num_unchecked = planned - found.results[0].num_checked
    if found.num_unchecked:
        missing["entries"] = "slots that more than 64 places name were checked at 64 of them"


def _sources(dump: Dump, group: str, half: str, stamps: IntArray) -> list[KvSource] | None:
    """Bytes that the TAIL stamps of a half cover, empty for none; None where the dump does not hold all of them."""
    described = [s for s in dump.facts.sources if s.group == group and s.half == half]
    if dump.hash_mode == HashMode.NONE:
        return []
    if not described:
        return None if stamps[:, WORD_KV_HASH].any() else []
    if not all(dump.has(KV + source.name) for source in described):
        return None
    return [dump.source(source) for source in described]


def _why_no_bytes(dump: Dump, group: str) -> str:
    absent = [KV + s.name for s in dump.facts.sources if s.group == group and not dump.has(KV + s.name)]
    if absent:
        return f"the dump has no {' and no '.join(absent[:3])}: the bytes were not compared with their hashes"
    return f"the stamps cover KV bytes of the {group} group, the dump has none (kv.*, `sources`)"


def _checks(
    groups: list[GroupResult],
    tokens: Tokens | None,
    missing: dict[str, str],
    cache: tuple[IntArray, IntArray, IntArray] | None,
) -> list[str]:
    results = [result for group in groups for result in group.results]
    found = []
    if results:
        found += ["stamps", "chain_hash", "position"]
    if any(group.sources for group in groups) and "real_kv_hash" not in missing:
        found.append("real_kv_hash")
    if tokens is not None and results:
        found.append("verify_token")
    if "rows" not in missing:
        found.append("rows")
    if cache is not None:
        found.append("cache")
    if any(result.launch.startswith("HEAD") for result in results):
        found.append("head")
    return found


def _compare_log(dump: Dump, result: AuditResult) -> None:
    """The server's own violations: how many of the slots they name still fail the same check."""
    rows = dump.ints("violations")
    if rows is None:
        return
    counted = dump.ints("violation_count")
    result.log_count = int(counted[0]) if counted is not None else len(rows)
    kept = rows[: max(0, min(len(rows), result.log_count))]
    result.log_rows = len(kept)
    failing: dict[tuple[str, int], int] = {}
    for group in result.groups:
        seen = [(int(row[RING_SLOT]), int(row[RING_BITS])) for found in group.results for row in found.rows]
        seen += [(damage.slot, damage.bits) for found in group.incidents for damage in found.damages]
        for slot, bits in seen:
            failing[group.group, slot] = failing.get((group.group, slot), 0) | bits
    for row in kept:
        group_of_row = SWA if row[RING_TAG] >= LaunchTag.HEAD_K_SWA else FULL
        bits = failing.get((group_of_row, int(row[RING_SLOT])), 0)
        result.log_confirmed += bool(bits & int(row[RING_BITS]))
