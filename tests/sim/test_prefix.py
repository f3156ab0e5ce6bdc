import random

import numpy as np
import pytest

from kvcanary_cli.sim.prefix import PrefixTree


def keyed(*words, size=2):
    """Tokens that fill one page for each word, all of them equal to the word."""
    return np.repeat(np.array(words, dtype=np.int64), size)


def test_match_finds_the_longest_cached_beginning():
    tree = PrefixTree(2)
    assert tree.match(keyed(1, 2), 2)[0] == []
    assert tree.insert(keyed(1, 2, 3), [10, 11, 12])[0] == []
    assert tree.match(keyed(1, 2, 9), 3)[0] == [10, 11]
    assert tree.match(keyed(1, 2, 3, 4), 4)[0] == [10, 11, 12]
    assert tree.match(keyed(1, 2, 3), 1)[0] == [10]
    assert tree.match(keyed(2, 3), 2)[0] == []


def test_half_a_page_is_no_match():
    tree = PrefixTree(2)
    tree.insert(np.array([1, 1, 2, 2]), [10, 11])
    assert tree.match(np.array([1, 1, 2, 5]), 2)[0] == [10]


def test_insert_keeps_what_is_there_and_adopts_the_rest():
    tree = PrefixTree(2)
    tree.insert(keyed(1, 2), [10, 11])
    found, node = tree.insert(keyed(1, 2, 3), [20, 21, 22])
    assert found == [10, 11]
    assert node.pages == [22]
    assert tree.match(keyed(1, 2, 3), 3)[0] == [10, 11, 22]
    assert tree.cached == tree.evictable == 3


def test_inserted_tokens_do_not_keep_the_request_alive():
    tree = PrefixTree(2)
    node = tree.insert(keyed(1, 2, 3), [10, 11, 12])[1]
    assert node.tokens.base is None


def test_locked_path_is_not_evicted():
    tree = PrefixTree(2)
    _, node = tree.insert(keyed(1, 2), [10, 11])
    tree.lock(node)
    assert tree.evictable == 0
    assert tree.evict_leaf() == []
    tree.unlock(node)
    assert tree.evictable == 2
    assert tree.evict_leaf() == [10, 11]
    assert tree.cached == 0


def test_split_node_keeps_its_locks():
    tree = PrefixTree(2)
    _, node = tree.insert(keyed(1, 2, 3), [10, 11, 12])
    tree.lock(node)
    tree.insert(keyed(1, 5), [10, 20])
    assert tree.evictable == 1
    assert tree.evict_leaf() == [20]
    tree.unlock(node)
    assert tree.evictable == 3
    assert [tree.evict_leaf(), tree.evict_leaf()] == [[11, 12], [10]]


def test_least_recently_used_leaf_goes_first():
    tree = PrefixTree(2)
    for page in (1, 2, 3):
        tree.insert(keyed(page), [page])
    tree.match(keyed(1), 1)
    assert [tree.evict_leaf() for _ in range(4)] == [[2], [3], [1], []]


def test_parent_becomes_a_leaf():
    tree = PrefixTree(2)
    tree.insert(keyed(1), [10])
    tree.insert(keyed(1, 2), [10, 11])
    assert [tree.evict_leaf(), tree.evict_leaf()] == [[11], [10]]


class NaiveCache:
    """Pages by the whole token sequence that leads to them."""

    def __init__(self):
        self.pages = {}

    def match(self, words, limit):
        found = []
        while len(found) < limit and words[: len(found) + 1] in self.pages:
            found.append(self.pages[words[: len(found) + 1]])
        return found

    def insert(self, words, pages):
        for index, page in enumerate(pages):
            self.pages.setdefault(words[: index + 1], page)

    def drop(self, pages):
        gone = set(pages)
        self.pages = {words: page for words, page in self.pages.items() if page not in gone}


@pytest.mark.parametrize("seed", range(5))
def test_tree_agrees_with_a_dictionary_of_prefixes(seed):
    rng = random.Random(seed)
    tree, naive, locks, fresh = PrefixTree(2), NaiveCache(), [], 0
    for _ in range(600):
        words = tuple(rng.randrange(3) for _ in range(rng.randint(1, 7)))
        action = rng.choice(["insert", "match", "evict", "unlock"])
        if action == "insert":
            pages = list(range(fresh, fresh + len(words)))
            fresh += len(words)
            found, node = tree.insert(keyed(*words), pages)
            assert found == naive.match(words, len(words))
            naive.insert(words, found + pages[len(found) :])
            tree.lock(node)
            locks.append((node, words))
        elif action == "match":
            limit = rng.randint(0, len(words))
            assert tree.match(keyed(*words), limit)[0] == naive.match(words, limit)
        elif action == "unlock" and locks:
            tree.unlock(locks.pop(rng.randrange(len(locks)))[0])
        elif action == "evict":
            gone = tree.evict_leaf()
            held = {naive.pages[words[: n + 1]] for _, words in locks for n in range(len(words))}
            assert not held & set(gone)
            assert gone or tree.evictable == 0
            naive.drop(gone)
        assert tree.cached == len(naive.pages)
        held = {naive.pages[words[: n + 1]] for _, words in locks for n in range(len(words))}
        assert tree.evictable == tree.cached - len(held)
    for node, _ in locks:
        tree.unlock(node)
    while tree.evictable:
        assert tree.evict_leaf()
    assert tree.cached == 0
    assert not tree.root.children
