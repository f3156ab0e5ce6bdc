"""Rules of stores: parents, tokens, contents, page hashes, block sizes and the room of the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from kvcanary_cli.kvevents.cache import Known, Place, RankCache
from kvcanary_cli.kvevents.events import GPU, Stored
from kvcanary_cli.kvevents.findings import Log
from kvcanary_cli.kvevents.page_hash import MAX_TOKEN, Proof
from kvcanary_cli.kvevents.rules import Where, hex_hash


class StoreCheck:
    """Checks stores against the cache of their rank, then adds them to it."""

    def __init__(self, log: Log, checked: Counter[str], pool_tokens: int | None) -> None:
        self._log = log
        self._checked = checked
        self._pool_tokens = pool_tokens

    def check(self, cache: RankCache, event: Stored, where: Where) -> int:
        """Report what is wrong with a store and make its blocks resident; returns how many were already."""
        if event.group not in cache.kinds or event.kind is not None:
            cache.kinds[event.group] = event.kind
        if not event.hashes:
            return 0
        place = cache.place(event.group, event.medium)
        self._parent(cache, event, where)
        self._sizes(cache, place, event, where)
        pages = self._pages(cache, event, where)
        proofs = self._page_hashes(cache, event, pages, where)
        self._contents(cache, event, pages, proofs, where)
        return self._add(cache, place, event, where)

    def _report(
        self, code: str, text: str, event: Stored, where: Where, found: int, *, blocks: int = 1
    ) -> None:
        self._log.add(
            where.finding(code, text, group=event.group, medium=event.medium, hash=found, blocks=blocks)
        )

    def _parent(self, cache: RankCache, event: Stored, where: Where) -> None:
        """S03, and S08 where a clear took the parent."""
        parent = event.parent
        if parent is None:
            return
        if not cache.is_judged(event.group):
            self._log.passed["parents in a cache group behind a window"] += 1
            return
        self._checked["parents"] += 1
        if cache.is_resident(event.group, parent):
            return
        cleared = cache.cleared.get((event.group, parent))
        if cleared is not None:
            text = f"stored behind {hex_hash(parent)}, which the clear of line {cleared:,} had removed"
            self._report("S08", text, event, where, event.hashes[0])
        elif cache.is_uncertain:
            self._log.unproven["S03"] += 1
        else:
            known = cache.known.get((event.group, parent))
            since = "was never stored"
            if known is not None and known.removed is not None:
                since = f"was removed in line {known.removed:,}"
            text = f"stored behind {hex_hash(parent)}, which {since}"
            self._report("S03", text, event, where, event.hashes[0], blocks=len(event.hashes))

    def _sizes(self, cache: RankCache, place: Place, event: Stored, where: Where) -> None:
        """S07: the block size of a rank, group and medium is one; a last page may be short."""
        size = event.block_size
        if not size:
            return
        if place.block_size is None:
            place.block_size = size
        elif size != place.block_size:
            is_short = size < place.block_size and len(event.hashes) == 1 and len(event.tokens or ()) == size
            if is_short:
                self._log.passed["short last page"] += 1
                return
            text = f"block size {size:,}, so far it was {place.block_size:,}"
            self._report("S07", text, event, where, event.hashes[0], blocks=len(event.hashes))
            place.block_size = size
        self._checked["block_size"] += 1

    def _pages(self, cache: RankCache, event: Stored, where: Where) -> list[Sequence[int]] | None:
        """The tokens of each block; None, and S06, where they don't divide into the blocks."""
        tokens, size = event.tokens, event.block_size
        if tokens is None or size is None:
            return None
        if not tokens and event.medium != GPU:
            self._log.passed["stores to a lower medium without tokens"] += 1
            return None
        want = len(event.hashes) * size
        if len(tokens) != want:
            text = f"{len(tokens):,} tokens, {want:,} are due: hashes x block size is {len(event.hashes):,} x {size:,}"
            if cache.is_judged(event.group):
                self._report("S06", text, event, where, event.hashes[0], blocks=len(event.hashes))
            else:
                self._log.passed["other number of tokens in a hybrid model's cache group"] += 1
            return None
        self._checked["tokens"] += len(event.hashes)
        return [cast(Sequence[int], tokens[at : at + size]) for at in range(0, want, size)]

    def _page_hashes(
        self, cache: RankCache, event: Stored, pages: list[Sequence[int]] | None, where: Where
    ) -> list[Proof] | None:
        """S04, where the tokens give the hash."""
        if pages is None or cache.pages.is_hopeless:
            return None
        if not event.is_plain or event.is_bigram:
            self._log.passed["page hash with an adapter, a salt, an extra key or pairs of tokens"] += len(
                pages
            )
            return None
        before: Proof | None = None
        if event.parent is not None:
            known = cache.known.get((event.group, event.parent))
            before = known.proof if known is not None else None
            if before is None:
                self._log.passed["page hash behind a page that is not in the file"] += len(pages)
                return None
        if any(min(page) < 0 or max(page) > MAX_TOKEN for page in pages):
            self._log.passed["page hash of tokens beyond 32 bits"] += len(pages)
            return None
        proofs, wrong = cache.pages.check(before, event.parent is None, event.hashes, pages)
        self._checked["page_hash"] += sum(proof.fits for proof in proofs) + (wrong is not None)
        if wrong is not None:
            text = f"the tokens give {hex_hash(wrong.expected)}"
            self._report("S04", text, event, where, wrong.published)
        return proofs

    def _contents(
        self,
        cache: RankCache,
        event: Stored,
        pages: list[Sequence[int]] | None,
        proofs: list[Proof] | None,
        where: Where,
    ) -> None:
        """S05: one hash, two contents; and what is remembered of each hash."""
        contents = event.contents
        if pages is not None:
            contents = tuple(hash(str(page) if event.is_bigram else tuple(page)) for page in pages)
        parent, line = event.parent, where.place.line
        differing: list[tuple[int, str]] = []
        for index, found in enumerate(event.hashes):
            content = contents[index] if contents is not None else None
            known = cache.known.get((event.group, found))
            self._checked["content"] += content is not None
            if known is None:
                proof = proofs[index] if proofs is not None else None
                cache.remember(event.group, found, Known(content, parent, proof, line))
            else:
                what = _difference(known, content, parent)
                if what is not None and cache.is_judged(event.group):
                    differing.append((found, f"stored in line {known.line:,} with other {what}"))
                if content is not None:
                    known.content, known.parent = content, parent
                    known.proof = proofs[index] if proofs is not None else known.proof
                    known.line = line
            parent = found
        if differing:
            self._report("S05", differing[0][1], event, where, differing[0][0], blocks=len(differing))

    def _add(self, cache: RankCache, place: Place, event: Stored, where: Where) -> int:
        """Make the blocks resident; S11 where they are more than the pool has."""
        parent, again, line = event.parent, 0, where.place.line
        for found in event.hashes:
            again += not place.add(found, parent, event.block_size or 0, line)
            cache.cleared.pop((event.group, found), None)
            parent = found
        place.mark_peak(line)
        self._checked["residency"] += len(event.hashes)
        if self._pool_tokens is None or event.medium != GPU or not event.block_size:
            return again
        self._checked["capacity"] += 1
        is_over = place.tokens > self._pool_tokens
        if is_over and cache.is_uncertain:
            self._log.unproven["S11"] += 1
        elif is_over and not place.over:
            text = f"{place.tokens:,} tokens resident in a pool of {self._pool_tokens:,}"
            self._report("S11", text, event, where, event.hashes[0], blocks=len(event.hashes))
        place.over = place.over or is_over
        return again


def _difference(known: Known, content: int | None, parent: int | None) -> str | None:
    """What differs between two stores of one hash, where both say it."""
    if content is None or known.content is None:
        return None
    if content != known.content:
        return "tokens"
    return "parent" if parent != known.parent else None
