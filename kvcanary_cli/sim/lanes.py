"""A request on its way through the scheduler model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.prefix import Node
from kvcanary_cli.sim.tokens import request_tokens
from kvcanary_cli.trace.requests import Request


@dataclass(slots=True, eq=False)
class Lane:
    """State of one request, from its arrival to its end; retraction puts it back to the start.

    Attributes:
        reach: most columns it ever uses, as the function of that name says.
        asked: output tokens that its client asked for; a server plans with them, not knowing the real number.
        queued: number of its entry into the waiting queue, which says who came first.
        tokens: [input_length + output_length] int64, or nothing before the first `start`.
        row: page-table row, 0 while waiting.
        pages: page of each `page_size` columns that the row has.
        length: tokens written, so the prefix of its next forward.
        generated: output tokens sampled so far. The last of them has no slot yet.
        goal: tokens to prefill: the prompt, after a retraction also what was generated before it.
        shared: leading pages that the prefix cache holds too.
        node: where those pages end in the tree, locked; None: nothing locked.
        window_done: leading pages that have left the window, or whose window slots the cache keeps.
        has_truth: whether the trace knows this request's tokens already.
    """

    request: Request
    reach: int
    asked: int
    queued: int = 0
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    row: int = 0
    pages: list[int] = field(default_factory=list)
    length: int = 0
    generated: int = 0
    goal: int = 0
    shared: int = 0
    node: Node | None = None
    window_done: int = 0
    has_truth: bool = False

    @property
    def rid(self) -> str:
        """Name of the request."""
        return self.request.rid

    @property
    def is_finished(self) -> bool:
        """Whether every output token was sampled."""
        return self.generated >= self.request.output_length

    @property
    def outstanding(self) -> int:
        """Output tokens that may still come, for all the server knows."""
        return max(0, self.asked - self.generated)

    def start(self, *, seed: int) -> np.ndarray:
        """Set what has to be prefilled, and make the tokens; called before a match in the cache."""
        self.goal = self.request.input_length + self.generated
        if not len(self.tokens):
            self.tokens = request_tokens(self.request, seed=seed)
        return self.tokens

    def reset(self) -> None:
        """Forget row, pages and progress; what was generated stays known."""
        self.row = self.length = self.goal = self.shared = self.window_done = 0
        self.pages = []
        self.node = None


def reach(request: Request, step_tokens: int) -> int:
    """Most columns that a request ever uses: the last sampled token gets none, drafts need some more."""
    return request.input_length + max(request.output_length - 1, 0) + step_tokens - 1


def check_fits(request: Request, columns: int, config: SimConfig, *, largest: int) -> None:
    """Refuse an arrival that could never be served.

    Args:
        columns: that it uses at most.
        largest: pages that one request may have.

    Raises: InputError.
    """
    if request.input_length < 1:
        raise InputError(
            f"request {request.rid} has a prompt of {request.input_length:,} tokens, 1 is needed"
        )
    if columns > config.row_width:
        raise InputError(
            f"request {request.rid} needs {columns:,} page-table columns, a row has {config.row_width:,}",
            hint=f"a row holds the context length: `--context-length {columns}` or more serves it",
        )
    pages = -(-columns // config.page_size)
    if pages > largest:
        tokens = pages * config.page_size
        raise InputError(
            f"request {request.rid} needs {pages:,} pages of {config.page_size:,} slots, the pool has {largest:,}",
            hint=f"a pool of {tokens:,} tokens serves it: `--pool-tokens {tokens}`, or that number in a config",
        )
