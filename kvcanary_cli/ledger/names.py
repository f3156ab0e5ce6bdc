"""Numbers for names, so that arrays can hold them: holders, and ids of transfers and host keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvcanary_cli.ledger.columns import CACHE_NAME, NOBODY
from kvcanary_cli.ledger.records import CACHE


class Names:
    """Every name gets a number from 1 on, in order of appearance; 0 is nobody.

    Attributes:
        acts_for: [>= number of names] int32; for a transfer the number of its request, else the name's own.
        row_of: [>= number of names] int32; page-table row of each request that has one, else 0.
    """

    def __init__(self) -> None:
        self._numbers: dict[str | None, int] = {None: NOBODY, CACHE: CACHE_NAME}
        self._names: list[str | None] = [None, CACHE]
        self.acts_for: npt.NDArray[np.int32] = np.arange(64, dtype=np.int32)
        self.row_of: npt.NDArray[np.int32] = np.zeros(64, np.int32)

    def number(self, name: str | None) -> int:
        """The number of a name; a new one is given a number."""
        number = self._numbers.get(name)
        if number is None:
            number = len(self._names)
            self._numbers[name] = number
            self._names.append(name)
            if number >= self.acts_for.size:
                grown = np.arange(2 * self.acts_for.size, dtype=np.int32)
                grown[: self.acts_for.size] = self.acts_for
                self.acts_for = grown
                self.row_of = np.concatenate([self.row_of, np.zeros(self.row_of.size, np.int32)])
        return number

    def name(self, number: int) -> str | None:
        """The name of a number; None for nobody."""
        return self._names[number]

    def act_for(self, name: str, rid: str) -> None:
        """A transfer holds slots for this request from now on."""
        number = self.number(name)
        request = self.number(rid)
        self.acts_for[number] = request
