"""Prefix block ids for prompts that a trace describes as pieces of any length.

A piece, such as a passage that was looked up, is the same text wherever it stands, but its KV is the same only
behind the same tokens. So pieces are laid end to end and cut into blocks anew, and the id of a block is a hash
of all that stands before its end.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.tokens import MASK, mix, mix_all

LAID_TOKENS = 16  # of a block: as small as the blocks of common servers, so that hardly any sharing is lost
MAX_LAID_TOKENS = 1 << 22  # of a prompt: far beyond any context, and its ids still fit into memory
LAID_NOTE = f"pieces laid end to end and cut into blocks of {LAID_TOKENS}, named by all before their end"
_STEP = 0x9E3779B97F4A7C15  # keeps small ids from meeting small lengths


def lay(pieces: Iterable[tuple[int, int]], block: int = LAID_TOKENS) -> tuple[int, ...]:
    """Ids of the blocks of `block` tokens that pieces (id, tokens) make; the last one may be partial.

    Two prompts have the same id at a place exactly if the same pieces, cut alike, lead up to the end of that
    block. Ids are 64-bit hashes, so this is true but for chance.

    Raises: LineError for a prompt above `MAX_LAID_TOKENS`.
    """
    ids: list[int] = []
    chain, end, tokens = 0, 0, 0
    for piece, tokens in pieces:
        if tokens <= 0:
            continue
        chain = mix(chain ^ mix(piece * _STEP + 1))
        start, end = end, end + tokens
        if end > MAX_LAID_TOKENS:
            raise LineError(
                f"a prompt of {end:,} tokens or more is too long to be cut into blocks, "
                f"{MAX_LAID_TOKENS:,} are the limit"
            )
        # tokens of this piece that stand before the end of each block that ends in it
        inside = np.arange(block - start % block, tokens + 1, block, dtype=np.uint64)
        ids += mix_all(np.uint64(chain) ^ inside).tolist()
        last = mix(chain ^ tokens)
        chain = (last + _STEP) & MASK
    if end % block:
        ids.append(last)
    return tuple(ids)


def own_id(model: str, block_id: int, models: list[str]) -> int:
    """The id that a block has for one of several models, which never share KV; adds new ones to `models`.

    Ids of the first model stay as they are.
    """
    if model not in models:
        models.append(model)
    at = models.index(model)
    return mix((block_id ^ mix(at * _STEP)) & MASK) if at else block_id
