"""Token ids of simulated requests, as functions of what they stand for.

A prompt token that the trace doesn't give depends on its block and its offset in that block, so equal blocks give
equal tokens and a prefix cache can find them. Every other token depends on the request and the position. With seed 0
the latter equals what trace v1 assumes for a request whose tokens nobody recorded.
"""

from __future__ import annotations

import numpy as np

from kvcanary_cli.trace.requests import Request
from kvcanary_cli.trace.tokens import MASK, VOCABULARY, fnv1a64, made_up_tokens, mix, mix_all

# sets draft tokens apart from output tokens of the same request and position
DRAFT_SALT = 0x6472616674


def block_tokens(block_ids: tuple[int, ...], block_size: int, *, seed: int) -> np.ndarray:
    """Tokens of these blocks, [blocks * block_size] int64; ids count modulo 2^64."""
    ids = np.array([block_id & MASK for block_id in block_ids], dtype=np.uint64)
    bases = mix_all(ids ^ np.uint64(mix(seed)))
    tokens = mix_all(bases[:, None] ^ np.arange(block_size, dtype=np.uint64)) % np.uint64(VOCABULARY)
    return tokens.astype(np.int64).ravel()


def own_tokens(rid: str, first: int, last: int, *, seed: int) -> np.ndarray:
    """Tokens that only request `rid` has at positions `first` to `last - 1`, int64."""
    return made_up_tokens(fnv1a64(rid) ^ mix(seed), np.arange(first, last, dtype=np.uint64))


def request_tokens(request: Request, *, seed: int) -> np.ndarray:
    """All tokens of a request, prompt and output, [input_length + output_length] int64.

    The prompt's own token ids count where the trace has them, then its blocks. Prompt positions that neither
    covers (a trace that names whole blocks only, or none) are the request's own.
    """
    length = request.input_length + request.output_length
    if request.prompt_tokens is not None:
        start = np.array(request.prompt_tokens[: request.input_length], dtype=np.int64)
    else:
        covered = min(len(request.block_ids) * request.block_size, request.input_length)
        start = block_tokens(request.block_ids, request.block_size, seed=seed)[:covered]
    own = own_tokens(request.rid, len(start), length, seed=seed)
    return np.concatenate((start, own)) if len(start) else own


def draft_token(rid: str, position: int, *, true_token: int, seed: int) -> int:
    """A token that a draft model guessed wrong at `position`: never the true one."""
    token = mix(fnv1a64(rid) ^ mix(seed) ^ DRAFT_SALT ^ position) % VOCABULARY
    return token if token != true_token else (token + 1) % VOCABULARY


def drafts_kept(rid: str, position: int, *, drafts: int, accept_percent: int, seed: int) -> int:
    """How many of `drafts` guesses after `position` a verify accepts, each with `accept_percent` chance."""
    kept = 0
    draw = mix(fnv1a64(rid) ^ mix(seed) ^ mix(position))
    while kept < drafts and draw % 100 < accept_percent:
        draw = mix(draw)
        kept += 1
    return kept
