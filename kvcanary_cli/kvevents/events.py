"""The events of a stream in one form, whoever wrote them and however."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

GPU = "GPU"
"""The medium of an event that names none."""
HASH_MASK = (1 << 64) - 1
"""Hashes are compared modulo 2^64: one engine writes them signed, another unsigned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Blocks that became resident; each is the parent of the next.

    Attributes:
        parent: hash before the first block; None at the root.
        tokens: token ids of all blocks, pairs of them in a bigram cache; None where the form has none.
        contents: one id a block that stands for its tokens, where the form has ids in place of tokens.
        block_size: tokens a block; None where the form does not say.
        kind: what the cache group holds, such as `full_attention`; None where the form does not say.
        is_plain: whether no adapter, salt or extra key takes part in the hashes, as far as the event says.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: Sequence[int] | Sequence[Sequence[int]] | None = None
    contents: tuple[int, ...] | None = None
    block_size: int | None = None
    medium: str = GPU
    group: int | None = None
    kind: str | None = None
    is_plain: bool = True

    @property
    def is_bigram(self) -> bool:
        """Whether tokens come as pairs."""
        return bool(self.tokens) and not isinstance(self.tokens[0], int)  # type: ignore[index]


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """Blocks that are no longer in one medium."""

    hashes: tuple[int, ...]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache was emptied."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Who sent a batch: a rank, and with Dynamo a worker."""

    rank: int | None = None
    worker: int | None = None

    def __str__(self) -> str:
        rank = "-" if self.rank is None else str(self.rank)
        return rank if self.worker is None else f"{self.worker}/{rank}"


@dataclass(kw_only=True, slots=True)
class Batch:
    """Events that were sent together.

    Attributes:
        seq: number of the batch; None where the form has none.
        ts: seconds, since 1970 or since the recording began; None where the form has none.
    """

    events: list[Event]
    source: Source = field(default_factory=Source)
    seq: int | None = None
    ts: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A recorder's word that batches `first` to `last` were lost; `before` it began, or since."""

    first: int
    last: int
    before: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """A recorder's word that the publisher began anew."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A recorder's word that a frame could not be decoded."""

    seq: int | None
    error: str


Record = Batch | Gap | Restart | Malformed
