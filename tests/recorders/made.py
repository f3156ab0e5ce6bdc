"""Requests, staged arrays and a book whose lines a test can read."""

from __future__ import annotations

import json
from array import array
from types import SimpleNamespace

import numpy as np

from kvcanary_cli.recorders.book import Book
from kvcanary_cli.recorders.targets import KINDS
from kvcanary_cli.recorders.tokens import Tokens


class Here:
    """What `Staged` is to its reader, without torch."""

    def __init__(self, *numbers):
        self._array = np.array(numbers, np.int64)

    def numbers(self):
        return self._array

    def wait(self):
        return self._array


def request(rid="A", prompt=(5, 6, 7), output=()):
    return SimpleNamespace(rid=rid, origin_input_ids=array("q", prompt), output_ids=array("q", output))


def ids(req) -> bytes:
    return bytes(req.origin_input_ids) + bytes(req.output_ids)


class Reading:
    """A book and the events it wrote so far; `new` gives those since the last call."""

    def __init__(self, *, page_size=1, kinds=KINDS):
        self._lines: list[bytes] = []
        tokens = Tokens(is_hashed=False)
        self.book = Book(self._lines.append, kinds, tokens, num_slots=64, page_size=page_size)

    def new(self):
        text = b"\n".join(self._lines).decode()
        self._lines.clear()
        return [json.loads(line) for line in text.splitlines()]
