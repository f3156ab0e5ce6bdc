"""SGLang's page hash: SHA-256 over the digest of the page before and the page's token ids."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

TRIES = 64
"""Root pages that are tried before a stream in which none fits counts as another engine's."""
MAX_TOKEN = (1 << 32) - 1


def page_digest(before: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a page.

    Args:
        before: digest of the page before, nothing for the first.
        tokens: unsigned 32-bit token ids.
    """
    return hashlib.sha256(before + struct.pack(f"<{len(tokens)}I", *tokens)).digest()


def published(digest: bytes) -> int:
    """The hash that is published of a digest, unsigned: its first 16 hex digits."""
    return int.from_bytes(digest[:8], "big")


class Proof(NamedTuple):
    """What is known of a page: its digest made from tokens, and whether the published hash fits it."""

    digest: bytes
    fits: bool


class Wrong(NamedTuple):
    """A page whose hash is proven wrong: the page before fits, or with it as it should be the next one does."""

    at: int
    published: int
    expected: int


class PageHashes:
    """Recomputes the hashes of one rank.

    Attributes:
        fitting: pages whose hash is what the tokens give.
        unproven: pages that don't fit, and nothing near them does: another namespace, or damage.
    """

    def __init__(self) -> None:
        self.fitting = 0
        self.unproven = 0
        self._tries = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether the hashes are another engine's."""
        return not self.fitting and self._tries >= TRIES

    def check(
        self, before: Proof | None, is_root: bool, hashes: Sequence[int], pages: Sequence[Sequence[int]]
    ) -> tuple[list[Proof], Wrong | None]:
        """Proofs of the pages of one store, and the first that is wrong."""
        digest = before.digest if before is not None else b""
        proofs: list[Proof] = []
        for found, tokens in zip(hashes, pages, strict=True):
            digest = page_digest(digest, tokens)
            proofs.append(Proof(digest, published(digest) == found))
        fitting = sum(proof.fits for proof in proofs)
        self.fitting += fitting
        self._tries += is_root
        if fitting == len(proofs):
            return proofs, None
        first = next(index for index, proof in enumerate(proofs) if not proof.fits)
        is_after_good = first > 0 or (before is not None and before.fits)
        if is_after_good or any(proof.fits for proof in proofs[first:]):
            return proofs, Wrong(first, hashes[first], published(proofs[first].digest))
        self.unproven += len(proofs) - fitting
        return proofs, None
