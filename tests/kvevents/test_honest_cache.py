"""Whatever an honest cache does, its stream is clean; one lie in it is found."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.kvevents.page_hash import page_digest, published
from tests.kvevents.streams import CLEARED, audit, batches, codes, removed, stored

SIZE = 2


class HonestCache:
    """A prefix cache that stores chains, removes leaves, and clears."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.parents: dict[int, int | None] = {}
        self.digests: dict[int, bytes] = {}
        self.stored: dict[int, int] = {}

    def store(self) -> dict:
        parent = self.random.choice([None, *self.parents])
        digest = b"" if parent is None else self.digests[parent]
        hashes, tokens, before = [], [], parent
        for _ in range(self.random.randint(1, 3)):
            page = [self.random.randint(0, 3) for _ in range(SIZE)]
            digest = page_digest(digest, page)
            found = published(digest)
            self.parents[found], self.digests[found] = before, digest
            hashes.append(found)
            tokens += page
            before = found
        for each in hashes:
            self.stored[each] = self.stored.get(each, 0) + 1
        return stored(hashes, parent=parent, tokens=tokens, size=SIZE)

    def remove(self) -> dict | None:
        leaves = [each for each in self.parents if each not in self.parents.values()]
        if not leaves:
            return None
        leaf = self.random.choice(leaves)
        self.stored[leaf] -= 1
        if not self.stored[leaf]:
            del self.stored[leaf], self.parents[leaf]
        return removed([leaf])

    def clear(self) -> dict:
        self.parents.clear()
        self.stored.clear()
        return CLEARED


def events(seed: int, steps: int) -> list:
    """What a cache sends; digests of removed blocks stay known to it."""
    cache = HonestCache(seed)
    found = [cache.store()]
    for _ in range(steps):
        step = cache.random.choices(["store", "remove", "clear"], [6, 4, 0.3])[0]
        event = getattr(cache, step)()
        if event is not None:
            found.append(event)
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 120))
def test_an_honest_cache_is_clean(seed, steps):
    with tempfile.TemporaryDirectory() as folder:
        result = audit(Path(folder), batches(*events(seed, steps)))
    assert codes(result) == []
    assert not result.log.unproven
    assert result.lost == 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), lie=st.sampled_from(["S01", "S03", "S04", "S06"]))
def test_one_lie_is_found(seed, lie):
    said = [stored([published(page_digest(b"", [9, 9]))], tokens=[9, 9]), *events(seed, 40)]
    root = published(page_digest(b"", [9, 9]))
    said += [stored([root], tokens=[9, 9])]
    said.append(
        {
            "S01": removed([12345]),
            "S03": stored([77], parent=12345, tokens=[1, 2]),
            "S04": stored([77], parent=root, tokens=[1, 2]),
            "S06": stored([root], tokens=[9, 9, 9]),
        }[lie]
    )
    with tempfile.TemporaryDirectory() as folder:
        assert codes(audit(Path(folder), batches(*said))) == [lie]
