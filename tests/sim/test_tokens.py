from dataclasses import replace

import numpy as np

from kvcanary_cli.sim.tokens import (
    block_tokens,
    draft_token,
    drafts_kept,
    own_tokens,
    request_tokens,
)
from kvcanary_cli.trace.tokens import VOCABULARY, fnv1a64, mix, mix_all
from tests.sim.made import request


def tokens_of(rid="a", *, prompt=20, output=4, blocks=(), block_size=8, seed=0):
    return request_tokens(
        request(rid, prompt=prompt, output=output, blocks=blocks, block_size=block_size), seed=seed
    ).tolist()


def test_recorded_prompt_is_used_as_it_is():
    recorded = replace(request("a", prompt=3, output=2, blocks=[5]), prompt_tokens=(7, 8, 9))
    assert request_tokens(recorded, seed=0).tolist() == [7, 8, 9, *own_tokens("a", 3, 5, seed=0).tolist()]


def test_hashes_give_published_values():
    # the first output of splitmix64 from state 0, and FNV's own test values
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert fnv1a64("") == 0xCBF29CE484222325
    assert fnv1a64("a") == 0xAF63DC4C8601EC8C
    assert fnv1a64("foobar") == 0x85944171F73967E8


def test_array_mixer_equals_the_scalar_one():
    values = [0, 1, 1 << 63, (1 << 64) - 1, 0x9E3779B97F4A7C15]
    assert mix_all(np.array(values, dtype=np.uint64)).tolist() == [mix(value) for value in values]


def test_unrecorded_tokens_are_those_of_the_trace_format():
    assert own_tokens("req-7", 3, 6, seed=0).tolist() == [
        mix(fnv1a64("req-7") ^ position) % VOCABULARY for position in (3, 4, 5)
    ]


def test_equal_blocks_give_equal_tokens_in_every_request():
    first = tokens_of("a", prompt=24, blocks=[5, 6, 7])
    second = tokens_of("b", prompt=21, blocks=[5, 6, 9])
    assert first[:16] == second[:16]
    assert first[16:] != second[16:]
    assert tokens_of("c", prompt=8, blocks=[6])[:8] == first[8:16]


def test_blocks_end_where_the_prompt_ends():
    cut = tokens_of("a", prompt=20, output=4, blocks=[5, 6, 7])
    assert len(cut) == 24
    assert cut[:20] == block_tokens((5, 6, 7), 8, seed=0).tolist()[:20]
    assert cut[20:] == own_tokens("a", 20, 24, seed=0).tolist()


def test_prompt_without_blocks_is_the_requests_own():
    assert tokens_of("a") == own_tokens("a", 0, 24, seed=0).tolist()
    assert tokens_of("a", blocks=[5])[8:] == own_tokens("a", 8, 24, seed=0).tolist()


def test_ids_count_modulo_two_to_the_64():
    assert tokens_of(blocks=[5 + (1 << 64)]) == tokens_of(blocks=[5])


def test_seed_changes_all_tokens():
    base, other = tokens_of(blocks=[5, 6], seed=0), tokens_of(blocks=[5, 6], seed=1)
    assert sum(a == b for a, b in zip(base, other, strict=True)) == 0


def test_wrong_draft_is_never_the_true_token():
    guess = draft_token("a", 9, true_token=-1, seed=0)
    assert draft_token("a", 9, true_token=guess, seed=0) == guess + 1
    assert 0 <= guess < VOCABULARY


def test_accepted_drafts_follow_the_chance():
    kept = [drafts_kept("a", position, drafts=4, accept_percent=70, seed=0) for position in range(2000)]
    # of four guesses at 70 %, 0.7 + 0.7^2 + 0.7^3 + 0.7^4 = 1.77 are kept on average
    assert 1.7 < sum(kept) / len(kept) < 1.85
    assert set(kept) == {0, 1, 2, 3, 4}
    assert drafts_kept("a", 1, drafts=4, accept_percent=100, seed=0) == 4
    assert drafts_kept("a", 1, drafts=4, accept_percent=0, seed=0) == 0
