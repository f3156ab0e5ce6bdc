"""Checks of an event against the header and against itself.

What an engine may really have done, however wrong, is no error here: the ledger and the kernels judge that.
An error is what can't be true of any engine, or what would make the arguments of a kernel meaningless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvcanary_cli.errors import nearest
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.decode import parse_strictly
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.forward_checks import check_forward, outside_row
from kvcanary_cli.trace.header import Header
from kvcanary_cli.trace.slots import element_path

CACHE_HOLDER = "cache"
XFER_PREFIX = "xfer:"


class EventChecks:
    """Checks of the events of one trace, in their order."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._limits = {"full": header.pool.slots, "swa": header.num_slots("swa")}
        self._pools = {"full": "pool", "swa": "window pool" if header.group("full") else "pool"}
        self._has_window = header.group("swa") is not None
        self._source_names = [source.name for source in header.sources]
        self._last_t = header.t
        self._line = b""
        self._checks: dict[type, Callable[[Any], None]] = {
            ev.Bind: self._bind,
            ev.Unbind: self._row,
            ev.Move: self._bind,
            ev.End: self._rid,
            ev.Truth: self._rid,
            ev.Alloc: self._grouped,
            ev.Hold: self._full_slots,
            ev.Share: self._share,
            ev.Publish: self._publish,
            ev.Free: self._grouped,
            ev.Evict: self._grouped,
            ev.Map: self._map,
            ev.SwaMap: self._swa_map,
            ev.Forward: self._forward,
            ev.Kv: self._kv,
            ev.Stamp: self._stamp,
            ev.Offload: self._grouped,
            ev.Reload: self._reload,
            ev.Xfer: self._xfer,
            ev.Digest: self._digest,
        }

    def check(self, event: ev.Event, line: bytes) -> None:
        """Raise `LineError` if the event can't be right; `line` is where it was read from."""
        self._line = line
        kind = type(event)
        check = self._checks.get(kind)
        if check is not None:
            check(event)
        elif kind is ev.Header:
            raise LineError("a second header", path="$.ev")
        t = event.t  # type: ignore[union-attr]
        if t is not None:
            if self._last_t is not None and t < self._last_t:
                raise LineError(f"time is {t}, the event before it has {self._last_t}", path="$.t")
            self._last_t = t

    def _row(self, event: ev.Bind | ev.Unbind | ev.Move | ev.Map) -> None:
        if event.row >= self._header.pool.rows:
            raise outside_row(event.row, self._header, "$.row")

    def _rid(self, event: ev.Bind | ev.Move | ev.End | ev.Truth | ev.Share | ev.Publish | ev.Xfer) -> None:
        rid = event.rid
        if rid is not None and (rid == CACHE_HOLDER or rid.startswith(XFER_PREFIX)):
            raise LineError(f'"{rid}" names a holder that is no request', path="$.rid")

    def _bind(self, event: ev.Bind | ev.Move) -> None:
        self._rid(event)
        self._row(event)

    def _map(self, event: ev.Map) -> None:
        self._row(event)
        self._slots(event.slots, "slots")

    def _share(self, event: ev.Share) -> None:
        self._rid(event)
        self._slots(event.slots, "slots")

    def _full_slots(self, event: ev.Hold) -> None:
        self._slots(event.slots, "slots")

    def _grouped(self, event: ev.Alloc | ev.Free | ev.Evict | ev.Offload) -> None:
        self._group(event.group)
        self._slots(event.slots, "slots", event.group)

    def _publish(self, event: ev.Publish) -> None:
        self._rid(event)
        self._slots(event.slots, "slots")
        if event.tokens is not None:
            _same_length(event.tokens, "tokens", event.slots, "slots")
        if event.after is not None:
            self._slot(event.after, "$.after")

    def _swa_map(self, event: ev.SwaMap) -> None:
        if not self._has_window:
            raise LineError('the header has no group "swa" to map to', path="$.ev")
        _same_length(event.swa, "swa", event.full, "full")
        self._slots(event.full, "full")
        self._slots(event.swa, "swa", "swa")

    def _forward(self, event: ev.Forward) -> None:
        check_forward(event, self._header)

    def _kv(self, event: ev.Kv) -> None:
        self._group(event.group)
        self._slots(event.slots, "slots", event.group)
        needed = {"flip": ("byte", "xor"), "copy": ("from",)}.get(event.op, ())
        present = {"byte": event.byte, "xor": event.xor, "from": event.from_}
        _check_op_keys(event.op, needed, [key for key, value in present.items() if value is not None])
        self._sources(event.sources, event.group)
        if event.from_ is not None:
            _same_length(event.from_, "from", event.slots, "slots")
            self._slots(event.from_, "from", event.group)
        if event.byte is not None:
            self._byte(event.byte, event)

    def _byte(self, byte: int, event: ev.Kv) -> None:
        for source in self._header.sources:
            is_meant = source.name in event.sources if event.sources else source.group == event.group
            if is_meant and byte >= source.bytes_per_slot:
                last = source.bytes_per_slot - 1
                raise LineError(f'byte {byte} is outside source "{source.name}" (0 to {last})', path="$.byte")

    def _stamp(self, event: ev.Stamp) -> None:
        self._group(event.group)
        self._slot(event.slot, "$.slot", event.group)
        if event.xor == 0:
            raise LineError("xor is 0, which changes nothing", path="$.xor")

    def _reload(self, event: ev.Reload) -> None:
        self._grouped(event)  # type: ignore[arg-type]
        self._sources(event.sources, event.group)
        _check_count(event.count, event.slots)

    def _xfer(self, event: ev.Xfer) -> None:
        self._rid(event)
        self._group(event.group)
        needed = {"start": ("slots",), "done": ("tokens",)}.get(event.op, ())
        optional = {"done": ("at", "slots", "count", "sources", "stamps")}.get(event.op, ())
        present = [key for key in ("slots", "tokens", "count", "sources") if getattr(event, key) is not None]
        present += ["at"] * (event.at != 0) + ["stamps"] * (not event.stamps)
        _check_op_keys(event.op, needed, present, optional)
        self._sources(event.sources, event.group)
        if event.slots is None:
            return
        self._slots(event.slots, "slots", event.group)
        _check_count(event.count, event.slots)
        num_slots = len(event.slots)
        if event.tokens is not None and len(event.tokens) not in (num_slots, event.at + num_slots):
            before = f", or {event.at + num_slots} with those before at" if event.at else ""
            expected = f"{num_slots} is expected (one a slot{before})"
            raise LineError(f"tokens has length {len(event.tokens)}, {expected}", path="$.tokens")

    def _digest(self, event: ev.Digest) -> None:
        self._group(event.group)
        self._slots(event.slots, "slots", event.group)
        self._source(event.source, event.group, "$.source")
        _same_length(event.hash, "hash", event.slots, "slots")

    def _group(self, group: str) -> None:
        if group == "swa" and not self._has_window:
            raise LineError('the header has no group "swa"', path="$.group")

    def _sources(self, names: list[str] | None, group: str) -> None:
        if names is not None and not names:
            raise LineError("the list is empty, it needs at least 1 source", path="$.sources")
        for index, name in enumerate(names or ()):
            self._source(name, group, f"$.sources[{index}]")

    def _source(self, name: str, group: str, path: str) -> None:
        if name not in self._source_names:
            closest = nearest(name, self._source_names)
            known = ", ".join(self._source_names) or "none"
            hint = f', did you mean "{closest}"?' if closest else ""
            raise LineError(
                f'unknown source "{name}"{hint}', path=path, hint=f"sources of the header: {known}"
            )
        source = self._header.sources[self._source_names.index(name)]
        if source.group != group:
            raise LineError(
                f'source "{name}" is of group "{source.group}", the event is of group "{group}"', path=path
            )

    def _slot(self, slot: int, path: str, group: str = "full") -> None:
        if slot >= self._limits[group]:
            raise self._outside_slot(slot, path, group)

    def _slots(self, slots: np.ndarray, key: str, group: str = "full") -> None:
        limit = self._limits[group]
        if slots.size == 1:
            if 0 <= slots.item() < limit:
                return
        # seen as unsigned, a negative slot is beyond every limit: one comparison for both ends
        elif int(slots.view(np.uint64).max()) < limit:
            return
        index = int(np.flatnonzero(slots.view(np.uint64) >= limit)[0])
        elements = parse_strictly(self._line)[key]
        raise self._outside_slot(int(slots[index]), f"$.{key}{element_path(elements, index)}", group)

    def _outside_slot(self, slot: int, path: str, group: str) -> LineError:
        where = f"the {self._pools[group]} (0 to {self._limits[group] - 1})"
        return LineError(f"slot {slot} is outside {where}", path=path)


def _same_length(a: Sequence[Any] | np.ndarray, name: str, b: Sequence[Any] | np.ndarray, other: str) -> None:
    if len(a) != len(b):
        raise LineError(f"{name} has length {len(a)}, {other} has length {len(b)}", path=f"$.{name}")


def _check_count(count: int | None, slots: np.ndarray) -> None:
    if count is not None and count > len(slots):
        raise LineError(f"count is {count}, slots has length {len(slots)}", path="$.count")


def _check_op_keys(
    op: str, needed: Sequence[str], present: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Refuse an op without the keys it needs, or with keys that mean nothing to it."""
    for key in needed:
        if key not in present:
            raise LineError(f'key "{key}" is missing, op "{op}" needs it', path="$")
    for key in present:
        if key not in needed and key not in optional:
            raise LineError(f'op "{op}" has no key "{key}"', path=f"$.{key}")
