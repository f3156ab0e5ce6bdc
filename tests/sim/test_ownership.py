"""Every trace of the model is clean for a strict ledger, whatever the pool, the pages and the pressure."""

import random
from collections import Counter

import pytest

from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.trace import events as ev
from tests.sim.made import draw_config, draw_requests, request, run
from tests.sim.strict_ledger import check


def audit(seed, count=30):
    rng = random.Random(seed)
    config = draw_config(rng, seed)
    requests = draw_requests(rng, count)
    ledger = check(*simulate(requests, config))
    served = [rid for why in ("done", "cancel") for rid in ledger.ended[why]]
    assert len(served) == len(set(served))
    if config.max_steps is None:
        assert sorted(ledger.ended["done"]) == sorted(request.rid for request in requests)
    assert ledger.steps == ledger.counts["forward"]
    assert ledger.max_lanes <= config.max_running_requests
    return ledger


@pytest.mark.parametrize("block", range(6))
def test_clean_under_pressure(block):
    counts = Counter()
    for seed in range(block * 15, block * 15 + 15):
        ledger = audit(seed)
        counts.update(ledger.counts)
        counts.update({why: len(rids) for why, rids in ledger.ended.items()})
    # a draw that never evicts, shares or retracts would prove little
    assert min(counts[name] for name in ("evict", "share", "retract", "swamap", "map", "cancel")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_clean_under_pressure_at_length(block):
    for seed in range(1000 + block * 50, 1050 + block * 50):
        audit(seed, count=60)


@pytest.mark.parametrize("page_size", [1, 4])
def test_tokens_of_shared_blocks_are_equal(page_size):
    blocks = {"a": (1, 2, 3), "b": (1, 2, 4), "c": (1, 5, 3)}
    requests = [request(rid, prompt=24, output=2, blocks=ids) for rid, ids in blocks.items()]
    told = {
        event.rid: event.tokens for event in run(requests, page_size=page_size) if type(event) is ev.Truth
    }
    by_block = {}
    for rid, ids in blocks.items():
        for index, block_id in enumerate(ids):
            tokens = told[rid][index * 8 : index * 8 + 8]
            assert by_block.setdefault(block_id, tokens) == tokens
    assert len({tuple(tokens) for tokens in by_block.values()}) == 5
