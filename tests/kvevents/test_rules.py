"""Each finding by a small stream that has it, and the stream beside it that is in order."""

from __future__ import annotations

import pytest

from kvcanary_cli.kinds import STREAM_KINDS
from kvcanary_cli.kvevents.page_hash import page_digest, published
from tests.kvevents.streams import CLEARED, audit, batches, codes, removed, stored


def chain(*pages, parent=b"", signed=True):
    """Digests and published hashes of SGLang's pages."""
    digests, hashes = [], []
    for page in pages:
        parent = page_digest(parent, page)
        digests.append(parent)
        value = published(parent)
        hashes.append(value - (1 << 64) if signed and value >> 63 else value)
    return digests, hashes


PAGES = [[10, 11], [12, 13], [14, 15]]
TOKENS = [token for page in PAGES for token in page]
_, HASHES = chain(*PAGES)
WRONG = HASHES[1] ^ 1
WINDOW = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
FULL = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
CPU = {"medium": "CPU"}

BAD = {
    "S01": [
        [stored([1]), removed([1]), removed([1])],
        [removed([1])],
        [stored([1]), removed([1], **CPU)],
        # stored again since the clear, which is then no reason any more
        [stored([1]), CLEARED, stored([1]), removed([1]), removed([1])],
        [stored([1], group_idx=0), removed([1], group_idx=1)],
    ],
    "S02": [
        [stored([1, 2]), removed([1])],
        [stored([1]), stored([2], parent=1), removed([1]), removed([2])],
    ],
    "S03": [
        [stored([2], parent=1)],
        [stored([1]), removed([1]), stored([2], parent=1)],
    ],
    "S04": [
        [stored([HASHES[0], WRONG], tokens=TOKENS[:4])],
        [stored(HASHES[:1], tokens=PAGES[0]), stored([WRONG], parent=HASHES[0], tokens=PAGES[1])],
        # a wrong root is proven by the page behind it
        [stored([HASHES[0] ^ 1, *HASHES[1:]], tokens=TOKENS)],
    ],
    "S05": [
        [stored([1], tokens=[5, 6]), stored([1], tokens=[5, 7])],
        [stored([1]), removed([1]), stored([1], tokens=[9, 9])],
        [stored([1]), stored([2], parent=1), stored([2], parent=None)],
        [stored([1], tokens=[[5, 6], [6, 7]]), stored([1], tokens=[[5, 6], [6, 8]])],
    ],
    "S06": [[stored([1, 2], tokens=[1, 2, 3])], [stored([1], tokens=[])]],
    "S07": [[stored([1]), stored([2], size=4)], [stored([1, 2]), stored([3, 4], size=1)]],
    "S08": [
        [stored([1]), CLEARED, removed([1])],
        [stored([1]), CLEARED, stored([2], parent=1)],
    ],
}
CLEAN = {
    "S01": [
        [stored([1]), stored([1]), removed([1]), removed([1])],
        [stored([1]), stored([1], **CPU), removed([1]), removed([1], **CPU)],
        [
            stored([1], group_idx=0),
            stored([1], group_idx=1),
            removed([1], group_idx=1),
            removed([1], group_idx=0),
        ],
    ],
    "S02": [
        [stored([1, 2]), removed([2]), removed([1])],
        # inside a batch the order is free
        [stored([1, 2]), [removed([1]), removed([2])]],
        [stored([1, 2]), removed([1, 2])],
        # behind a window, and in a lower medium, blocks need not have their parents
        [stored([1, 2], **WINDOW), removed([1], group_idx=1)],
        [stored([1, 2], **CPU), removed([1], **CPU)],
    ],
    "S03": [
        [stored([1]), stored([2], parent=1)],
        [stored([1], **CPU), stored([2], parent=1)],
        [stored([5], **FULL), stored([2], parent=1, **WINDOW)],
    ],
    "S04": [
        [stored(HASHES, tokens=TOKENS)],
        [stored(HASHES[:1], tokens=PAGES[0]), stored(HASHES[1:], parent=HASHES[0], tokens=TOKENS[2:])],
        [stored(HASHES[:1], tokens=PAGES[0]), stored([7], parent=HASHES[0], tokens=PAGES[1], lora_name="x")],
        # another namespace: nothing fits, as far as it goes
        [stored(HASHES, tokens=TOKENS), stored([7, 8], tokens=TOKENS[:4], cache_salt="x")],
        [stored(HASHES, tokens=TOKENS), stored([7, 8], tokens=[1, 2, 3, 4])],
        [stored(HASHES, tokens=TOKENS), stored([7], tokens=[[1, 2], [2, 3]])],
    ],
    "S05": [
        [stored([1]), stored([1])],
        [stored([1]), stored([1], tokens=[], size=0, **CPU)],
        [stored([1, 2]), removed([2, 1]), stored([1, 2])],
    ],
    "S06": [
        [stored([1], tokens=[], size=0, **CPU)],
        [stored([1], **FULL), stored([1], tokens=[1, 2, 3, 4], **WINDOW)],
        # two groups of unknown kind: which of them has a window is not known
        [stored([1], group_idx=0), stored([2], group_idx=1, tokens=[1, 2, 3, 4])],
    ],
    "S07": [
        [stored([1, 2]), stored([3], parent=2, size=1)],
        [stored([1]), stored([1], size=4, tokens=[], **CPU)],
        [stored([1], group_idx=0), stored([1], group_idx=1, size=4)],
    ],
    "S08": [
        [stored([1]), CLEARED, stored([1]), removed([1])],
        [stored([1]), CLEARED, CLEARED, stored([2])],
        # other media may outlive a clear
        [stored([1], **CPU), CLEARED, removed([1], **CPU)],
    ],
}


def cases(table):
    return [
        pytest.param(code, events, id=f"{code}-{n}") for code in table for n, events in enumerate(table[code])
    ]


@pytest.mark.parametrize(("code", "events"), cases(BAD))
def test_a_stream_with_the_fault_is_found(tmp_path, code, events):
    result = audit(tmp_path, batches(*events))
    assert codes(result) == [code]
    finding = result.log.findings[0]
    assert finding.is_certain
    assert (finding.source.rank, finding.place.line, finding.place.seq) == (
        0,
        finding.place.seq + 1,
        finding.place.seq,
    )


@pytest.mark.parametrize(("code", "events"), cases(CLEAN))
def test_the_stream_in_order_is_clean(tmp_path, code, events):
    assert codes(audit(tmp_path, batches(*events))) == []


def test_every_code_is_tested():
    elsewhere = {"S09", "S10", "S11"}
    assert set(BAD) == set(CLEAN) == set(STREAM_KINDS) - elsewhere


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (BAD["S01"][0], "removed again: stored in line 1, removed in line 2"),
        (BAD["S01"][1], "removed, and never stored before"),
        (BAD["S01"][2], "removed from CPU, resident only in GPU"),
        (BAD["S02"][0], "removed while its child 0x0000000000000002 stays resident"),
        (BAD["S03"][1], "stored behind 0x0000000000000001, which was removed in line 2"),
        (BAD["S05"][0], "stored in line 1 with other tokens"),
        (BAD["S05"][2], "stored in line 2 with other parent"),
        (BAD["S07"][0], "block size 4, so far it was 2"),
        (BAD["S08"][0], "removed, though the clear of line 2 had emptied the cache"),
        (BAD["S08"][1], "stored behind 0x0000000000000001, which the clear of line 2 had removed"),
    ],
)
def test_a_finding_says_what_happened_before(tmp_path, events, text):
    (finding,) = audit(tmp_path, batches(*events)).log.findings
    assert finding.text == text


def test_a_wrong_page_hash_names_the_right_one(tmp_path):
    (finding,) = audit(tmp_path, batches(*BAD["S04"][0])).log.findings
    assert finding.hash == WRONG % (1 << 64)
    assert finding.text == f"the tokens give 0x{HASHES[1] % (1 << 64):016x}"


def test_roots_that_do_not_fit_are_counted_not_blamed(tmp_path):
    result = audit(tmp_path, batches(*CLEAN["S04"][4]))
    ((_, cache),) = result.caches.items()
    assert (cache.pages.fitting, cache.pages.unproven) == (3, 2)


def test_hashes_of_another_engine_are_not_tried_for_ever(tmp_path):
    result = audit(tmp_path, batches(*[stored([each]) for each in range(1, 200)]))
    ((_, cache),) = result.caches.items()
    assert (codes(result), cache.pages.is_hopeless, cache.pages.unproven) == ([], True, 64)


def test_page_hashes_are_checked_to_the_end(tmp_path):
    roots = [[number, number] for number in range(100)]
    good = [stored(chain(page)[1], tokens=page) for page in roots]
    assert codes(audit(tmp_path, batches(*good, *BAD["S04"][0]))) == ["S04"]


def test_tokens_beyond_32_bits_are_no_sglang_page(tmp_path):
    assert codes(audit(tmp_path, batches(stored([1], tokens=[-1, 1 << 40])))) == []


def test_a_fuller_cache_than_the_pool(tmp_path):
    events = [stored([1, 2]), stored([3], parent=2), removed([3]), stored([3], parent=2)]
    assert codes(audit(tmp_path, batches(*events), pool_tokens=6)) == []
    result = audit(tmp_path, batches(*events), pool_tokens=5)
    # once, until the cache is cleared
    assert codes(result) == ["S11"]
    again = [*events, CLEARED, *events]
    assert codes(audit(tmp_path, batches(*again), pool_tokens=5)) == ["S11", "S11"]
    assert result.log.findings[0].text == "6 tokens resident in a pool of 5"
    # blocks that are stored twice take room once, other media and other ranks take none
    twice = [stored([1, 2]), stored([1, 2]), stored([1, 2], **CPU)]
    lines = [*batches(*twice), *batches(stored([1, 2]), rank=1)]
    assert codes(audit(tmp_path, lines, pool_tokens=4)) == []


def test_ranks_are_kept_apart(tmp_path):
    lines = [*batches(stored([1])), *batches(stored([1], tokens=[7, 7]), removed([1]), rank=1)]
    assert codes(audit(tmp_path, lines)) == []
    result = audit(tmp_path, [*batches(stored([1])), *batches(stored([2], parent=1), rank=1)])
    assert [(f.code, f.source.rank) for f in result.log.findings] == [("S03", 1)]


def test_signed_and_unsigned_are_one_hash(tmp_path):
    events = [stored([-7], tokens=[1, 2]), removed([(1 << 64) - 7])]
    assert codes(audit(tmp_path, batches(*events))) == []


def test_a_file_without_numbers_makes_findings_strong_not_certain(tmp_path):
    lines = [{"ts": 1.0, "events": [removed([1])], "rank": 0}]
    (finding,) = audit(tmp_path, lines).log.findings
    assert (finding.code, finding.is_certain) == ("S01", False)


def test_dynamo_contents_are_compared(tmp_path):
    def line(number, tokens):
        blocks = [{"block_hash": 1, "tokens_hash": tokens}]
        event = {
            "event_id": number,
            "data": {"stored": {"parent_hash": None, "blocks": blocks}},
            "dp_rank": 0,
        }
        return {"timestamp": number, "event": {"worker_id": 3, "event": event}}

    assert codes(audit(tmp_path, [line(0, 42), line(1, 42)])) == []
    assert codes(audit(tmp_path, [line(0, 42), line(1, 43)])) == ["S05"]


def test_blocks_of_one_event_are_one_finding(tmp_path):
    (finding,) = audit(tmp_path, batches(removed([1, 2, 3]))).log.findings
    assert (finding.code, finding.hash, finding.blocks) == ("S01", 1, 3)
