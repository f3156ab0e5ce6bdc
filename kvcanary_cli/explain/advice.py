"""What happened and what to change, for each family of messages, with the numbers of the message.

Sources: SGLang 0.5.23's rule of capacities, and the limits of its kernels as in `kernels/consts.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcanary_cli.explain.families import BROKEN_RULE, EXCEEDS, Match
from kvcanary_cli.kernels.consts import SERVER_PLAN_LANES
from kvcanary_cli.kernels.messages import WRITE_REQ_FLAG, WRITE_REQ_FLAG_OLD

RUNNING = "--max-running-requests"
CHUNK = "--chunked-prefill-size"
BUDGET = "--max-prefill-tokens"
PREFILL_GRAPH = "--cuda-graph-max-bs-prefill"
AUTOTUNE = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"
TOKEN_CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"

STOPS = "The server raises, also with --kv-canary log, and its scheduler stops."
IN_CODE = "No flag changes it: the code that calls the kernel has to."
EACH_RANK = "times the attention-data-parallel ranks"
# Ranks that share attention: a batch is padded by less than this
_MOST_RANKS = 8


class Advice(NamedTuple):
    """The meaning of a message.

    Args:
        what: sentences.
        changes: (what to paste or to do, why this value), the first is the least intrusive.
        pages: codes whose pages say more, the closest first.
        version: release to audit with where the message tells it.
    """

    what: tuple[str, ...]
    changes: tuple[tuple[str, str], ...] = ()
    pages: tuple[str, ...] = ()
    version: str | None = None


def advise(match: Match) -> Advice:
    """The meaning of a recognised message."""
    return _ADVICE[match.family](match)


def _write_requests(match: Match) -> Advice:
    batch = match.numbers["bs" if match.family == "plan-lanes" else "batch_size"]
    room = match.numbers["write_req_capacity"]
    flag = match.words.get("flag", WRITE_REQ_FLAG)
    what = [
        f"A forward of {batch:,} requests met a canary with room for {room:,}: {batch - room:,} too many. {STOPS}",
        "The room is the larger of the decode graph's largest batch and the running requests, so a batch beyond "
        "it was padded, or a warm-up, or its rows are not requests.",
    ]
    changes: list[tuple[str, str]] = []
    if batch <= SERVER_PLAN_LANES:
        changes.append((f"{flag} {batch}", "smallest that works"))
    else:
        what.append(f"No graph makes room for it: the plan kernel takes {SERVER_PLAN_LANES:,} requests.")
    if batch - room < _MOST_RANKS <= room:
        even = room // _MOST_RANKS * _MOST_RANKS
        changes.append((f"{RUNNING} {even}", f"a multiple of 2, 4 and 8 attention ranks; {EACH_RANK}"))
    elif room > 0:
        changes.append((f"{RUNNING} {room}", f"where that is what fills the batch; {EACH_RANK}"))
        changes.append((f"{AUTOTUNE}=0", "where it raised at start-up"))
    if flag != WRITE_REQ_FLAG_OLD:
        return Advice(tuple(what), tuple(changes), ("C1", "req-rounding", "warmup-autotune"))
    what.append(f"The text is that of releases up to 0.5.18; newer ones call the flag {WRITE_REQ_FLAG}.")
    return Advice(tuple(what), tuple(changes), ("C1", "req-rounding", "warmup-autotune"), "0.5.18")


def _write_entries(match: Match) -> Advice:
    tokens, room = match.numbers["tokens"], match.numbers["write_entry_capacity"]
    what = (
        f"A forward of {tokens:,} tokens met a canary with room for {room:,}: {tokens - room:,} too many. {STOPS}",
        "The room is the larger of write requests x draft tokens and the smaller of prefill budget and chunk, "
        "while a forward may be as large as the chunk, or as the longest prompt where chunking is off.",
    )
    changes = (
        (f"{CHUNK} {room}", f"a forward is then no larger; in whole pages, {EACH_RANK}"),
        (f"{BUDGET} {tokens}", f"smallest that works, unless the chunk is 0 or below {tokens}"),
        (f"{PREFILL_GRAPH} {room}", f"where the chunk is {room} already: the forward was padded to a graph"),
    )
    return Advice(what, changes, ("C2", "entry-chunk", "entry-unchunked", "chunk-zero", "entry-bucket"))


def _plan_batch(match: Match) -> Advice:
    batch, limit = match.numbers["bs"], match.numbers["limit"]
    if batch < 0:
        negative = f"The plan kernel was launched for {batch:,} requests, less than none."
        return Advice((negative, IN_CODE), (), ("req-plan",))
    what = (
        f"The canary was set up for {batch:,} write requests, and its plan kernel scans at most {limit:,}.",
        "The number is the room, not the size of a batch: the first capture or forward raises, however small "
        "the load is.",
    )
    changes = (
        (f"{RUNNING} {limit}", f"largest that works; {EACH_RANK}"),
        (f"{WRITE_REQ_FLAG} {limit}", "where the decode graph is what asks for more"),
    )
    return Advice(what, changes, ("req-plan", "C1"))


def _token_ids(match: Match) -> Advice:
    rows, block = match.numbers["rows"], match.numbers["batch_block"]
    what = (
        f"A step of {rows - 1:,} requests needs {rows:,} offsets, and one block of the token check holds "
        f"{block:,}: {block - 1:,} requests at most. {STOPS}",
        "Raising the constant, as the text proposes, takes a build of your own.",
    )
    changes = (
        (f"{RUNNING} {block - 1}", f"largest that works; {EACH_RANK}"),
        (f"{TOKEN_CHECK}=0", "that kernel is then not launched"),
    )
    return Advice(what, changes, ("scatter", "C1"))


def _write_offsets(match: Match) -> Advice:
    length, room = match.numbers["write_offsets_len"], match.numbers["write_req_capacity"]
    what = f"`write_offsets` has {length:,} elements for {room:,} requests; it needs {room + 1:,}."
    change = (f"write_offsets of {room + 1} elements", "one a request, and the total")
    return Advice((what, IN_CODE), (change,))


def _negative(match: Match) -> Advice:
    name, value = match.words["name"], match.numbers["value"]
    return Advice(
        (f"`{name}` is {value:,}, less than no room at all.", IN_CODE), ((f"{name} of 0 or more", ""),)
    )


def _empty_plan(match: Match) -> Advice:
    owner, name, value = match.words["owner"], match.words["name"], match.numbers["value"]
    what = [f"`{owner}` was allocated with room for {value:,} (`{name}`); it needs 1 at least."]
    if name == "verify_capacity":
        what.append("A server gives it three times the tokens of its pool: 0 means that the pool is empty.")
    return Advice((*what, IN_CODE), ((f"{name} of 1 or more", ""),))


def _window_map(match: Match) -> Advice:
    what = (
        "A plan for a sliding window was asked for without the map from slots to those of the window's pool."
    )
    changes = (
        ("full_to_swa_index_mapping of that pool", "where the group has a window"),
        ("swa_window_size=0", "where it has none"),
    )
    return Advice((what, IN_CODE), changes, ("K14",))


def _verify_capacity(match: Match) -> Advice:
    given, length = match.numbers["verify_capacity"], match.numbers["plan_length"]
    what = f"`verify_capacity` was given as {given:,}, and the plan has room for {length:,} entries."
    return Advice((what, IN_CODE), ((f"verify_capacity={length}", "as the plan was allocated"),))


def _byte_sources(match: Match) -> Advice:
    sources, limit = match.numbers["sources"], match.numbers["limit"]
    what = f"{sources:,} byte sources were given to one launch, which takes {limit:,} on the server."
    note = "kvcanary's own kernels take any number"
    return Advice((what, IN_CODE), ((f"at most {limit} sources a launch", note),))


def _not_contiguous(match: Match) -> Advice:
    name = match.words["name"]
    what = f"`{name}` has gaps between its elements, and the kernel indexes it as flat memory."
    return Advice(
        (what, IN_CODE), ((f"{name}.contiguous()", "a copy: the kernel's results are not in the original"),)
    )


def _wrong_dtype(match: Match) -> Advice:
    name, want, got = match.words["name"], match.words["want"], match.words["got"]
    return Advice(
        (f"`{name}` is {got}, the kernel reads it as {want}.", IN_CODE), ((f"{name}.to({want})", ""),)
    )


def _wrong_rank(match: Match) -> Advice:
    name, rank, shape = match.words["name"], match.numbers["rank"], match.words["shape"]
    what = f"`{name}` has the shape {shape}, the kernel wants {rank} dimension{'' if rank == 1 else 's'}."
    return Advice((what, IN_CODE))


def _wrong_length(match: Match) -> Advice:
    name, want, got = match.words["name"], match.numbers["want"], match.numbers["got"]
    return Advice((f"`{name}` has {got:,} elements where {want:,} are needed.", IN_CODE))


def _wrong_device(match: Match) -> Advice:
    name, reference = match.words["name"], match.words["reference"]
    want, got = match.words["want"], match.words["got"]
    what = f"`{name}` is on {got} and `{reference}` on {want}; a launch has one device."
    return Advice((what, IN_CODE), ((f"{name}.to('{want}')", ""),))


def _exceeds(match: Match) -> Advice:
    need_name, limit_name = match.words["need_name"], match.words["limit_name"]
    need, limit = match.numbers["need"], match.numbers["limit"]
    what = [
        f"{need_name} is {need:,} where {limit_name} has room for {limit:,}: {need - limit:,} too many.",
        "The text is not one that is known by heart; it says a need and a room as the others do.",
    ]
    name = f"{need_name} {limit_name}".lower()
    pages = [
        code
        for code, words in (("C4", ("verify",)), ("C2", ("token", "entry")), ("C1", ("req", "bs", "batch")))
        if any(word in name for word in words)
    ]
    return Advice(
        tuple(what), ((f"{limit_name} of {need} or more", "or less of the other"),), tuple(pages[:1])
    )


def _broken_rule(match: Match) -> Advice:
    got = match.words.get("got") or f"{match.numbers['got']:,}"
    what = f"`{match.words['name']}` is {got}, and must {match.words['rule']}."
    return Advice((what, "The text is not one that is known by heart; it names a rule as the others do."))


_ADVICE: dict[str, Callable[[Match], Advice]] = {
    "write-requests": _write_requests,
    "plan-lanes": _write_requests,
    "write-entries": _write_entries,
    "plan-batch": _plan_batch,
    "token-ids": _token_ids,
    "write-offsets": _write_offsets,
    "negative-capacity": _negative,
    "empty-plan": _empty_plan,
    "window-map": _window_map,
    "verify-capacity": _verify_capacity,
    "byte-sources": _byte_sources,
    "not-contiguous": _not_contiguous,
    "wrong-dtype": _wrong_dtype,
    "wrong-rank": _wrong_rank,
    "wrong-length": _wrong_length,
    "wrong-device": _wrong_device,
    EXCEEDS: _exceeds,
    BROKEN_RULE: _broken_rule,
}
