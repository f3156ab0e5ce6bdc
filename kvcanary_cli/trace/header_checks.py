"""Whether the sizes and names in a header fit together."""

from __future__ import annotations

from collections.abc import Iterable

from kvcanary_cli.errors import nearest
from kvcanary_cli.trace.events import EVENT_TYPES, Header
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.header import FORMAT, VERSION, Group, Source

# the kernels read bytes in pieces of this size
BYTES_STEP = 16


def check_header(header: Header) -> None:
    """Raise `LineError` for a header of another format or version, or one that contradicts itself."""
    if header.format != FORMAT:
        raise LineError(f'format is "{header.format}", "{FORMAT}" is expected', path="$.format")
    if header.version != VERSION:
        raise LineError(
            f"trace version is {header.version}, this kvcanary reads version {VERSION}", path="$.version"
        )
    _check_pool(header)
    _check_groups(header)
    names: dict[str, int] = {}
    for index, source in enumerate(header.sources):
        if source.name in names:
            raise LineError(
                f'source "{source.name}" is there already, as number {names[source.name]}',
                path=f"$.sources[{index}].name",
            )
        names[source.name] = index
        _check_source(source, header, f"$.sources[{index}]")
    _check_records(header.records or [])


def _check_pool(header: Header) -> None:
    pool = header.pool
    if pool.rows < 2:
        raise LineError("the page table has 1 row, it needs 2: row 0 is the padding row", path="$.pool.rows")
    _check_pages(pool.slots, pool.page_size, "pool", "$.pool.slots")


def _check_pages(slots: int, page_size: int, what: str, path: str) -> None:
    if slots % page_size:
        raise LineError(f"page size {page_size} does not divide the {what} of {slots} slots", path=path)
    if slots < 2 * page_size:
        raise LineError(
            f"the {what} has {slots}, at least {2 * page_size} are needed: page 0 is padding",
            path=path,
        )


def _check_groups(header: Header) -> None:
    if not header.groups:
        raise LineError('the list is empty, it needs "full", "swa" or both', path="$.groups")
    kinds = [group.kind for group in header.groups]
    for index, group in enumerate(header.groups):
        path = f"$.groups[{index}]"
        if group.kind in kinds[:index]:
            raise LineError(f'group "{group.kind}" is there twice', path=path)
        if group.kind == "swa":
            _check_window(group, header, path, is_alone=len(kinds) == 1)
            continue
        if group.window:
            raise LineError(f'window is {group.window}, only group "swa" has one', path=f"{path}.window")
        _check_same_slots(group, header, path)


def _check_window(group: Group, header: Header, path: str, *, is_alone: bool) -> None:
    if group.window < 1:
        raise LineError('group "swa" needs a window of at least 1', path=f"{path}.window")
    if is_alone:
        _check_same_slots(group, header, path)
    elif group.slots is None:
        raise LineError('group "swa" beside "full" needs slots, its own number of them', path=path)
    else:
        _check_pages(group.slots, header.pool.page_size, "window pool", f"{path}.slots")


def _check_same_slots(group: Group, header: Header, path: str) -> None:
    if group.slots not in (None, header.pool.slots):
        raise LineError(
            f'group "{group.kind}" has {group.slots} slots, the pool has {header.pool.slots}',
            path=f"{path}.slots",
        )


def _check_source(source: Source, header: Header, path: str) -> None:
    for name in ("bytes_per_slot", "hashed_bytes"):
        number = getattr(source, name)
        if number % BYTES_STEP:
            raise LineError(f"{number} is not a multiple of {BYTES_STEP}", path=f"{path}.{name}")
    if source.hashed_bytes > source.bytes_per_slot:
        raise LineError(
            f"hashed_bytes is {source.hashed_bytes}, the slot has {source.bytes_per_slot}",
            path=f"{path}.hashed_bytes",
        )
    if header.group(source.group) is None:
        kinds = ", ".join(group.kind for group in header.groups)
        raise LineError(
            f'source "{source.name}" is of group "{source.group}", the groups are {kinds}', path=path
        )


def _check_records(records: Iterable[str]) -> None:
    known = [name for name in EVENT_TYPES if name not in ("header", "note")]
    for index, name in enumerate(records):
        if name not in known:
            closest = nearest(name, known)
            raise LineError(
                f'unknown event "{name}"' + (f', did you mean "{closest}"?' if closest else ""),
                path=f"$.records[{index}]",
                hint="events are " + ", ".join(known),
            )
