"""Events as lines. The few kinds that come once a lane and step are formatted without a struct each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvcanary_cli.recorders.staged import IntArray
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.slots import MIN_RUN
from kvcanary_cli.trace.tokens import mix_all
from kvcanary_cli.trace.writer import encode_event

# what a trace may hold whatever the producer is able to see
ALWAYS = {"forward", "gap", "digest"}


class Lines:
    """Encodes events of the allowed kinds and passes them on."""

    def __init__(self, write: Callable[[bytes], None], kinds: Collection[str]) -> None:
        self._write = write
        self._kinds = set(kinds) | ALWAYS

    def takes(self, kind: str) -> bool:
        """Whether events of that kind are written."""
        return kind in self._kinds

    def event(self, event: ev.Event) -> None:
        """One event of any kind."""
        assert isinstance(event, Struct)
        if event.__struct_config__.tag in self._kinds:
            self._write(encode_event(event))

    def allocs(self, taken: Sequence[tuple[str, int]], page_size: int) -> None:
        """One page from each slot on, to the holder with that JSON name."""
        if not taken or "alloc" not in self._kinds:
            return
        if page_size == 1:
            lines = [f'{{"ev":"alloc","to":{name},"slots":[{slot}]}}' for name, slot in taken]
        elif page_size >= MIN_RUN:
            lines = [f'{{"ev":"alloc","to":{name},"slots":[[{slot},{page_size}]]}}' for name, slot in taken]
        else:
            listed = [(name, ",".join(map(str, range(slot, slot + page_size)))) for name, slot in taken]
            lines = [f'{{"ev":"alloc","to":{name},"slots":[{slots}]}}' for name, slots in listed]
        self._write("\n".join(lines).encode())

    def truths(self, told: Sequence[tuple[str, int, list[int]]]) -> None:
        """New tokens of requests: JSON name, position of the first, ids."""
        if "truth" not in self._kinds:
            return
        lines = [
            f'{{"ev":"truth","rid":{name},"at":{at},"tokens":[{",".join(map(str, ids))}]}}'
            for name, at, ids in told
        ]
        self._write("\n".join(lines).encode())

    def digest(self, source: str, slots: IntArray, words: npt.NDArray[np.uint64]) -> None:
        """[n] slots with their first 16 bytes as [n, 2] words."""
        hashes = mix_all(mix_all(words[:, 0]) ^ words[:, 1])
        self.event(ev.Digest(source=source, slots=slots, hash=[f"0x{value:x}" for value in hashes.tolist()]))
