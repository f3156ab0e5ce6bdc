"""Prefix cache: a radix tree over whole pages, with locks and least-recently-used eviction.

A node holds a run of pages and the tokens that were written to them. A request locks the node at which
its cached prefix ends, and with it every node above. Only leaves without locks can be evicted.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages under one parent; `locks` counts the requests that end at or below it."""

    serial: int
    tokens: np.ndarray  # [len(pages) * page_size] int64
    pages: list[int]
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0
    is_queued: bool = False


class PrefixTree:
    """Which pages are cached under which tokens.

    `evictable` counts cached pages that no request locks, `cached` all of them.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(0, np.empty(0, np.int64), [], None)
        self.evictable = 0
        self.cached = 0
        self._serial = 0
        self._clock = 0
        self._queue: list[tuple[int, int, Node]] = []

    def match(self, tokens: np.ndarray, limit: int) -> tuple[list[int], Node]:
        """Cached pages for the first `limit` pages of `tokens`, and the node where they end."""
        self._clock += 1
        node = self.root
        found: list[int] = []
        while len(found) < limit:
            child = node.children.get(self._key(tokens, len(found)))
            if child is None:
                break
            same = self._same_pages(child, tokens, len(found), limit)
            node = self._split(child, same) if same < len(child.pages) else child
            node.used = self._clock
            found += node.pages
        return found, node

    def insert(self, tokens: np.ndarray, pages: list[int]) -> tuple[list[int], Node]:
        """Cache `pages` under the tokens that fill them.

        Returns the pages that the tree had for these tokens already (a prefix of the run; they stay) and
        the node where the run ends. The tree adopts the remaining pages.
        """
        found, node = self.match(tokens, len(pages))
        at = len(found)
        if at < len(pages):
            # a copy: a view would keep the whole request's tokens alive as long as the node
            rest = tokens[at * self.page_size : len(pages) * self.page_size].copy()
            node = self._add(node, rest, pages[at:])
        return found, node

    def lock(self, node: Node) -> None:
        """Keep the path to `node` from eviction."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if at.locks == 0:
                self.evictable -= len(at.pages)
            at.locks += 1
            at = at.parent

    def unlock(self, node: Node) -> None:
        """Take back one `lock` of the same node."""
        at: Node | None = node
        while at is not None and at is not self.root:
            at.locks -= 1
            if at.locks == 0:
                self.evictable += len(at.pages)
                self._enqueue(at)
            at = at.parent

    def evict_leaf(self) -> list[int]:
        """Drop the least recently used leaf without locks; its pages, none if there is no such leaf."""
        while self._queue:
            used, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if node.locks or node.children:
                continue
            if node.used > used:
                self._enqueue(node)
                continue
            parent = node.parent
            assert parent is not None  # only the root has none, and the root is never queued
            del parent.children[self._key(node.tokens, 0)]
            self._enqueue(parent)
            self.evictable -= len(node.pages)
            self.cached -= len(node.pages)
            return node.pages
        return []

    def _enqueue(self, node: Node) -> None:
        # an entry may go stale; it is judged when popped, and a node never has two
        if node is not self.root and not (node.locks or node.children or node.is_queued):
            node.is_queued = True
            heapq.heappush(self._queue, (node.used, node.serial, node))

    def _add(self, parent: Node, tokens: np.ndarray, pages: list[int]) -> Node:
        self._serial += 1
        node = Node(self._serial, tokens, pages, parent, used=self._clock)
        parent.children[self._key(tokens, 0)] = node
        self.evictable += len(pages)
        self.cached += len(pages)
        self._enqueue(node)
        return node

    def _split(self, node: Node, count: int) -> Node:
        """Cut `node` after `count` pages; the new upper part, with the same locks, is returned."""
        cut = count * self.page_size
        parent = node.parent
        assert parent is not None  # the root has no pages, so a match never ends inside it
        self._serial += 1
        upper = Node(
            self._serial, node.tokens[:cut], node.pages[:count], parent, locks=node.locks, used=node.used
        )
        parent.children[self._key(upper.tokens, 0)] = upper
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[count:], upper
        upper.children[self._key(node.tokens, 0)] = node
        return upper

    def _key(self, tokens: np.ndarray, page: int) -> bytes:
        return tokens[page * self.page_size : (page + 1) * self.page_size].tobytes()

    def _same_pages(self, node: Node, tokens: np.ndarray, at: int, limit: int) -> int:
        size = self.page_size
        count = min(len(node.pages), limit - at)
        differs = node.tokens[: count * size] != tokens[at * size : (at + count) * size]
        first = int(differs.argmax())
        return first // size if differs[first] else count
