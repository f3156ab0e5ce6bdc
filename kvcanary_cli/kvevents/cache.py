"""What is resident in the cache of one rank, by cache group and medium."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary_cli.kvevents.events import GPU
from kvcanary_cli.kvevents.page_hash import PageHashes, Proof

MOST_KNOWN = 1_000_000
"""Blocks whose content is remembered after their removal."""

Group = int | None


class Block:
    """A resident block: stored so many times more than removed."""

    __slots__ = ("count", "line", "parent", "size")

    def __init__(self, parent: int | None, size: int, line: int) -> None:
        self.parent = parent
        self.size = size
        self.line = line
        self.count = 1


class Place:
    """The blocks of one cache group in one medium, and the most that were there at once."""

    __slots__ = (
        *("block_size", "blocks", "children", "over", "peak_blocks", "peak_line", "peak_tokens"),
        *("removed", "tokens"),
    )

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.children: dict[int, int] = {}
        self.removed: dict[int, int] = {}
        self.tokens = 0
        self.block_size: int | None = None
        self.peak_blocks = self.peak_tokens = self.peak_line = 0
        self.over = False

    def add(self, found: int, parent: int | None, size: int, line: int) -> bool:
        """Store a block; False if it was resident already."""
        block = self.blocks.get(found)
        if block is not None:
            block.count += 1
            return False
        self.blocks[found] = Block(parent, size, line)
        self.tokens += size
        if parent is not None:
            self.children[parent] = self.children.get(parent, 0) + 1
        return True

    def mark_peak(self, line: int) -> None:
        """Remember how full the place is, if it never was fuller."""
        if len(self.blocks) > self.peak_blocks or self.tokens > self.peak_tokens:
            self.peak_blocks, self.peak_line = len(self.blocks), line
            self.peak_tokens = max(self.peak_tokens, self.tokens)

    def remove(self, found: int, line: int) -> bool:
        """Remove a block once; False if it is not resident."""
        block = self.blocks.get(found)
        if block is None:
            return False
        block.count -= 1
        if not block.count:
            del self.blocks[found]
            self.tokens -= block.size
            self._leave(block.parent)
            self.removed[found] = line
        return True

    def _leave(self, parent: int | None) -> None:
        if parent is None:
            return
        left = self.children[parent] - 1
        if left:
            self.children[parent] = left
        else:
            del self.children[parent]

    def orphaned(self) -> Iterator[tuple[int, int, int]]:
        """Hash, line and resident children of blocks removed since the last call that are still not back."""
        for found, line in self.removed.items():
            children = self.children.get(found)
            if children and found not in self.blocks:
                yield found, line, children
        self.removed.clear()

    def clear(self) -> None:
        """Forget every block."""
        self.blocks.clear()
        self.children.clear()
        self.removed.clear()
        self.tokens = 0
        self.over = False


class Known:
    """What was said of a hash: its tokens and parent, and where it was removed last."""

    __slots__ = ("content", "line", "parent", "proof", "removed")

    def __init__(self, content: int | None, parent: int | None, proof: Proof | None, line: int) -> None:
        self.content = content
        self.parent = parent
        self.proof = proof
        self.line = line
        self.removed: int | None = None


class RankCache:
    """The cache of one rank.

    Attributes:
        is_uncertain: whether batches were lost, or came before the file, since the cache was last empty.
        cleared: blocks that a clear took from the GPU and that were not stored again, with its line.
        survivors: blocks of other media that may have outlived a clear.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[Group, str], Place] = {}
        self.known: dict[tuple[Group, int], Known] = {}
        self.kinds: dict[Group, str | None] = {}
        self.cleared: dict[tuple[Group, int], int] = {}
        self.survivors: set[tuple[Group, str, int]] = set()
        self.pages = PageHashes()
        self.is_uncertain = False
        self.forgotten = 0

    def place(self, group: Group, medium: str) -> Place:
        """The blocks of a group in a medium."""
        found = self.places.get((group, medium))
        if found is None:
            found = self.places[group, medium] = Place()
        return found

    def is_judged(self, group: Group) -> bool:
        """Whether a block of a group needs all blocks before it: not behind a window, nor where that is not known."""
        kind = self.kinds.get(group)
        if kind is not None:
            return kind.startswith(("full", "mla"))
        return len(self.kinds) < 2

    def is_resident(self, group: Group, found: int) -> bool:
        """Whether a block is in any medium."""
        return any(
            found in place.blocks or (group, medium, found) in self.survivors
            for (of, medium), place in self.places.items()
            if of == group
        )

    def remember(self, group: Group, found: int, known: Known) -> None:
        """Keep what was said of a hash; the oldest is forgotten where there are too many."""
        self.known[group, found] = known
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
            self.forgotten += 1

    def clear(self, line: int) -> None:
        """Empty the GPU; blocks of other media may stay, which the event does not say."""
        self.cleared.clear()
        for (group, medium), place in self.places.items():
            if medium == GPU:
                self.cleared.update(((group, found), line) for found in place.blocks)
            else:
                self.survivors.update((group, medium, found) for found in place.blocks)
            place.clear()
        self.is_uncertain = False

    def restart(self) -> None:
        """A new process: nothing is left anywhere."""
        for place in self.places.values():
            place.clear()
        self.cleared.clear()
        self.survivors.clear()
        self.known.clear()
        self.is_uncertain = False
