"""Faults planted into a world of SGLang's classes, each the way an engine could really have it."""

from __future__ import annotations

from typing import Any

from tests.peer.recording import Recording
from tests.peer.world import World


def decode_until(world: World, count: int) -> list[Any]:
    """Run until at least `count` requests decode; gives them."""
    for _ in range(200):
        if world.running is not None and len(world.running.reqs) >= count and world.chunked is None:
            return list(world.running.reqs)
        world.step()
    raise AssertionError("too few requests run at once")


def plain_requests(world: World, count: int = 4, *, name: str = "r", prompt: int = 24, new: int = 30) -> None:
    for number in range(count):
        world.submit(f"{name}{number}", world.tokens(prompt), new)


def free_twice(recording: Recording) -> None:
    """A cleanup path releases what a finished request had released already."""
    world = recording.world
    world.submit("short", world.tokens(16), 2)
    plain_requests(world, 2)
    (req, *_) = decode_until(world, 3)
    slots = world.pool.req_to_token[req.kv.req_pool_idx, :16].clone()
    while not req.finished():
        world.step()
    world.allocator.free(slots)
    plain_requests(world, 3, name="later")
    world.run()


def forget_a_lock(recording: Recording) -> None:
    """A request runs on a prefix that the cache may evict."""
    world = recording.world
    shared = world.tokens(32)
    world.submit("first", shared, 2)
    world.run()
    world.submit("reader", [*shared, *world.tokens(16)], 30)
    (req,) = decode_until(world, 1)
    world.tree.unlock(req.lock)
    req.lock = None
    world.allocator.evict_to_free_tokens(world.tree, world.allocator.size)
    plain_requests(world, 4)
    world.run()


def wrong_slot(recording: Recording) -> None:
    """One decode writes one token to the slot of another request."""
    world = recording.world
    plain_requests(world)
    reqs = decode_until(world, 4)
    victim = world.pool.req_to_token[reqs[1].kv.req_pool_idx, 7].item()

    def plant(batch: Any) -> None:
        batch.out_cache_loc = batch.out_cache_loc.clone()
        batch.out_cache_loc[0] = victim
        world.before_forward = None

    world.before_forward = plant
    world.run()


def entry_elsewhere(recording: Recording) -> None:
    """A row's entry is pointed to another request's slot, through the pool's own method."""
    world = recording.world
    plain_requests(world)
    reqs = decode_until(world, 4)
    other = world.pool.req_to_token[reqs[1].kv.req_pool_idx, 9:10].clone()
    world.pool.write((reqs[0].kv.req_pool_idx, slice(7, 8)), other)
    world.run()


def entry_elsewhere_unseen(recording: Recording) -> None:
    """The same by writing to the tensor, as a kernel does."""
    world = recording.world
    plain_requests(world)
    reqs = decode_until(world, 4)
    table = world.pool.req_to_token
    table[reqs[0].kv.req_pool_idx, 7] = table[reqs[1].kv.req_pool_idx, 9]
    world.run()


def stale_row(recording: Recording) -> None:
    """A request's prefix is not written into its row: it reads what the row's last request left there."""
    from sglang.srt.mem_cache import allocation

    world = recording.world
    shared = world.tokens(32)
    world.submit("first", shared, 2)
    world.run()
    world.submit("other", world.tokens(48), 2)
    world.run()
    real = allocation.write_cache_indices

    def write(*args: Any) -> None:
        pool, row, first = args[-1], int(args[2][0]), int(args[4][0])
        before = pool.req_to_token[row, :first].clone()
        real(*args)
        pool.req_to_token[row, :first] = before

    world.submit("reader", [*shared, *world.tokens(16)], 20)
    allocation.write_cache_indices = write
    try:
        world.step()
    finally:
        allocation.write_cache_indices = real
    world.run()
