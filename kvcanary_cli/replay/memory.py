"""Events that change bytes and stamps outside of forwards: writes, damage, offloads, transfers, digests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.kernels.chains_ref import chain_step
from kvcanary_cli.kernels.consts import WORD_KV_HASH, WORD_POSITION, WORD_PREV_HASH, WORD_TOKEN
from kvcanary_cli.kernels.hashing_ref import HEAD as CHAIN_HEAD
from kvcanary_cli.replay.forwards import default_tokens, event_context
from kvcanary_cli.replay.state import RunState, Transfer
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.runtime.layout import HEAD, TAIL
from kvcanary_cli.trace import events as ev

STAMP_FIELDS = {
    "token": WORD_TOKEN,
    "position": WORD_POSITION,
    "prev_hash": WORD_PREV_HASH,
    "kv_hash": WORD_KV_HASH,
}


def kv(runtime: Runtime, state: RunState, event: ev.Kv, line: int) -> None:
    """Bytes replaced outside of a forward."""
    sources = source_numbers(state, event.sources)
    if event.op == "write":
        runtime.write_bytes(
            event.group, event.slots, event_context(line, event.slots), salt=0, sources=sources
        )
    elif event.op == "zero":
        runtime.zero_bytes(event.group, event.slots, sources)
    elif event.op == "flip":
        # every element flips, so a slot that is named an even number of times is as it was
        named, times = np.unique(event.slots, return_counts=True)
        flipped = named[times % 2 == 1]
        if flipped.size:
            runtime.flip_byte(event.group, flipped, event.byte or 0, event.xor or 0, sources)
    elif event.from_ is not None:
        runtime.copy_bytes(event.group, event.slots, event.from_, sources)


def stamp(runtime: Runtime, event: ev.Stamp) -> None:
    """One field of a stamp is damaged; only the tail buffers keep byte hashes."""
    phases: list[str]
    if event.buffer is not None:
        phases = [event.buffer]
    else:
        phases = [TAIL] if event.field == "kv_hash" else [HEAD, TAIL]
    runtime.flip_stamp(event.group, event.slot, STAMP_FIELDS[event.field], event.xor, phases)


def offload(runtime: Runtime, state: RunState, event: ev.Offload) -> None:
    """Bytes and stamps go to the host store."""
    state.host[event.key] = runtime.save(event.group, event.slots)


def reload(runtime: Runtime, state: RunState, event: ev.Reload, where: str) -> None:
    """Bytes (and stamps) come back, all or the first `count`."""
    slots = event.slots if event.count is None else event.slots[: event.count]
    copy = state.host.get(event.key)
    if copy is None:
        if state.has_gap:
            return  # stored before the gap: the slots stay unknown
        raise InputError(
            f"key {event.key!r} is reloaded, but nothing was offloaded under it",
            where=where,
            path="$.key",
            hint="record the `offload` of that key, or a `gap` where the recording lost it",
        )
    if slots.size > copy.num_slots:
        raise InputError(
            f"{slots.size} slots are reloaded from key {event.key!r}, which holds {copy.num_slots}",
            where=where,
            path="$.slots",
        )
    runtime.load(event.group, slots, copy, sources=source_numbers(state, event.sources), stamps=event.stamps)
    state.mark_known(event.group, slots)


def check_xfer(state: RunState, event: ev.Xfer, where: str) -> None:
    """Refuse a delivery that lands nowhere, or in another group than its slots were named for."""
    if event.op != "done" or event.slots is not None:
        return
    transfer = state.transfers.get(event.id)
    if transfer is None:
        raise InputError(
            f"transfer {event.id!r} is done, but neither it nor its start names slots",
            where=where,
            path="$.slots",
        )
    if state.layout.group(transfer.group).kind != state.layout.group(event.group).kind:
        raise InputError(
            f'transfer {event.id!r} lands in group "{event.group}", '
            f'its start addresses slots of group "{transfer.group}"',
            where=where,
            path="$.group",
        )


def xfer(runtime: Runtime, state: RunState, event: ev.Xfer, where: str) -> None:
    """A remote delivery starts, lands or is called off."""
    if event.op == "start":
        addressed = event.slots if event.slots is not None else np.zeros(0, np.int64)
        state.transfers[event.id] = Transfer(event.rid, addressed, event.group)
        return
    transfer = state.transfers.pop(event.id, None)
    if event.op == "cancel":
        return
    rid = event.rid if event.rid is not None else transfer.rid if transfer is not None else None
    slots = event.slots if event.slots is not None else transfer.slots if transfer is not None else None
    if slots is None:  # `check_xfer` refused it
        return
    tokens, chains = _delivered_chain(runtime, state, event, rid, slots, where)
    count = slots.size if event.count is None else min(event.count, slots.size)
    positions = np.arange(event.at, event.at + slots.size)
    runtime.deliver(
        event.group,
        slots[:count],
        tokens[:count],
        positions[:count],
        chains[:count],
        sources=source_numbers(state, event.sources),
        stamps=event.stamps,
    )
    state.mark_known(event.group, slots[:count])


def source_numbers(state: RunState, names: Sequence[str] | None) -> list[int] | None:
    """Numbers of named sources; None stands for all."""
    if names is None:
        return None
    by_name = {source.name: source.number for source in state.layout.sources}
    return [by_name[name] for name in names if name in by_name]


def _delivered_chain(
    runtime: Runtime, state: RunState, event: ev.Xfer, rid: str | None, slots: IntArray, where: str
) -> tuple[IntArray, np.ndarray]:
    """Tokens that land and the chain value before each of them."""
    at, count = event.at, slots.size
    if event.tokens is None:
        given = default_tokens(state, rid, 0, at + count)
    else:
        given = np.array(event.tokens, np.int64)
    has_chain = given.size >= at + count
    tokens = given[at : at + count] if has_chain else given[:count]
    if tokens.size < count:
        raise InputError(
            f"{count} slots are delivered with {given.size} tokens; {count} are needed, "
            f"or {at + count} with those before position {at}",
            where=where,
            path="$.tokens",
        )
    running = _chain_before(runtime, state, event, rid, given[:at] if has_chain else None, where)
    chains = np.zeros(count, np.uint64)
    for i, token in enumerate(tokens.tolist()):
        chains[i] = running
        running = chain_step(running, token, at + i, state.layout.is_affine)
    return tokens, chains


def _chain_before(
    runtime: Runtime, state: RunState, event: ev.Xfer, rid: str | None, before: IntArray | None, where: str
) -> int:
    """Chain value that the delivery continues: of the row's previous slot, else of the tokens before it."""
    if event.at == 0:
        return CHAIN_HEAD
    row = state.table.rid_row.get(rid) if rid is not None else None
    cells = state.table.slots_of(row, event.at - 1, event.at) if row is not None else np.zeros(0, np.int64)
    slot = int(cells[0]) if cells.size else 0
    if slot == 0 and before is not None:
        running = CHAIN_HEAD
        for position, token in enumerate(before.tolist()):
            running = chain_step(running, token, position, state.layout.is_affine)
        return running
    if row is None:
        raise InputError(
            f"the delivery continues at position {event.at}, but {rid!r} has no row to continue from",
            where=where,
            path="$.tokens",
            hint=f"give the {event.at} tokens before it too",
        )
    group = runtime.layout.group(event.group)
    seed = int(runtime.in_group(group, np.array([slot], np.int64))[0])
    if not 0 <= seed < group.num_slots:
        return CHAIN_HEAD  # as a forward does whose seed lies outside of the pool
    token, position, prev_hash, _ = (int(word) for word in runtime.read_stamp(group.kind, seed))
    return chain_step(prev_hash & (2**64 - 1), token, position, state.layout.is_affine)
