"""One change of a launch: the value that makes a rule hold, solved from the formula."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

from kvcanary_cli.capacity.flags import PHASELESS_GRAPH_FLAGS
from kvcanary_cli.capacity.graphs import (
    BS_LIST,
    GRAPH_CONFIG,
    MAX_BS,
    graph_config,
    spelled_graph_flag,
)
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.prefill_graph import BACKEND_PREFILL, BS_PREFILL, MAX_BS_PREFILL
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.setup import CANARY, MAX_RUNNING, TOKEN_CHECK, Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels.consts import SERVER_PLAN_LANES, SERVER_SCATTER_BATCH_BLOCK

SCATTER_REQUESTS = SERVER_SCATTER_BATCH_BLOCK - 1
"""Requests of a step that the scatter of token ids takes: it needs one offset more than requests."""

PLAN_REQUESTS = SERVER_PLAN_LANES
"""Requests that one program of the plan kernel scans."""

_LISTS = ("-bs", "-bs-decode", "-bs-prefill")

LARGEST = "largest that works"
SMALLEST = "smallest that works"


class Change(NamedTuple):
    """A flag, or with `is_env` an environment variable, and its value; `note` says why this one.

    With `is_removal` the flag is left out; `value` is then empty.
    """

    flag: str
    value: str = ""
    note: str = ""
    is_env: bool = False
    is_removal: bool = False

    @property
    def words(self) -> list[str]:
        """The words to append to a launch command; none for a variable and for what is left out."""
        if self.is_env or self.is_removal:
            return []
        # a list takes several words, a switch none
        is_list = self.flag.endswith(_LISTS)
        return [self.flag, *(self.value.split(" ") if is_list else [self.value] if self.value else [])]

    @property
    def text(self) -> str:
        """The change as it is pasted into a shell; `without FLAG` for what is taken out of the command."""
        if self.is_removal:
            return f"without {self.flag}"
        return f"{self.flag}={self.value}" if self.is_env else shlex.join(self.words)


def lower_running(setup: Setup, limit: int) -> Change:
    """As many running requests as leave each data-parallel group at most `limit`."""
    attn_dp = setup.parallel.attn_dp
    return Change(flag=MAX_RUNNING, value=str(limit * attn_dp), note=_largest(attn_dp))


def lower_graph(request: Request, setup: Setup, limit: int) -> Change:
    """The decode graph's largest batch at `limit`, in the flag that decides it now."""
    setting = setup.graph.setting
    given = request.arguments.values.get(BS_LIST)
    if setting in (BS_LIST, _old(BS_LIST)) and given is not None and isinstance(given.value, tuple):
        kept = [str(batch) for batch in given.value if isinstance(batch, int) and batch <= limit]
        return Change(
            flag=setting, value=" ".join(kept or [str(limit)]), note=f"without batches above {limit:,}"
        )
    if setting == GRAPH_CONFIG:
        data = graph_config(request.arguments.values.get(GRAPH_CONFIG))
        decode = dict(data.get("decode", {}))
        if "bs" in decode:
            decode["bs"] = [batch for batch in decode["bs"] if batch <= limit] or [limit]
        if "max_bs" in decode:
            decode["max_bs"] = min(decode["max_bs"], limit)
        value = json.dumps({**data, "decode": decode}, separators=(",", ":"))
        return Change(flag=GRAPH_CONFIG, value=value, note=f"batches up to {limit:,}")
    return Change(flag=setting, value=str(limit), note=LARGEST)


def raise_graph(setup: Setup, batch: int) -> Change | None:
    """The decode graph's largest batch at `batch`; None where a list or JSON decides it."""
    flag = spelled_graph_flag(setup.version, MAX_BS)
    if setup.graph.setting != flag:
        return None
    return Change(flag=flag, value=str(batch), note=SMALLEST)


def lower_prefill_graph(request: Request, setup: Setup, limit: int) -> list[Change]:
    """Prefill graphs of at most `limit` tokens, in the flag that decides them now."""
    setting = setup.prefill_graph.setting
    if setting == GRAPH_CONFIG:
        data = graph_config(request.arguments.values.get(GRAPH_CONFIG))
        prefill = {key: value for key, value in data.get("prefill", {}).items() if key != "bs"}
        value = json.dumps({**data, "prefill": {**prefill, "max_bs": limit}}, separators=(",", ":"))
        return [Change(flag=GRAPH_CONFIG, value=value, note=f"prefills up to {limit:,}")]
    if setting == BS_PREFILL:
        kept = " ".join(str(size) for size in setup.prefill_graph.sizes if size <= limit)
        return [Change(flag=BS_PREFILL, value=kept, note=f"without sizes above {limit:,}")]
    return [Change(flag=MAX_BS_PREFILL, value=str(limit), note="graphs that fit")]


def disable_prefill_graph(request: Request) -> list[Change]:
    """Prefill without a graph, in the strongest of the flags that are in use."""
    data = graph_config(request.arguments.values.get(GRAPH_CONFIG))
    if "backend" in data.get("prefill", {}):
        value = {**data, "prefill": {**data["prefill"], "backend": "disabled"}}
        text = json.dumps(value, separators=(",", ":"))
        return [Change(flag=GRAPH_CONFIG, value=text, note="no prefill graph")]
    return [Change(flag=BACKEND_PREFILL, value="disabled", note="no prefill graph")]


def lower_chunk(setup: Setup, sizes: Sizes) -> Change | None:
    """The largest chunk that no prefill forward can exceed the capacity with; None below one page.

    A chunk of up to max(max prefill tokens, requests x draft tokens) is covered: the capacity is at least
    the smaller of chunk and max prefill, and at least requests x draft tokens.
    """
    if setup.prefill.is_forced:
        return None
    covered = covered_tokens(setup, sizes)
    page_size, attn_dp = setup.pool.page_size, setup.parallel.attn_dp
    chunk = covered // page_size * page_size
    if chunk == 0:
        return None
    note = _largest(page_size * attn_dp) if setup.pool.tokens > covered else ""
    return Change(flag=CHUNK, value=str(chunk * attn_dp), note=note)


def any_chunk(setup: Setup) -> Change:
    """The smallest chunk there is, one page for each data-parallel group."""
    return Change(flag=CHUNK, value=str(setup.pool.page_size * setup.parallel.attn_dp))


def raise_prefill(tokens: int) -> Change:
    """Max prefill tokens that cover a forward of `tokens`."""
    return Change(flag=MAX_PREFILL, value=str(tokens), note=SMALLEST)


def token_check_off() -> Change:
    """The token check left out, and with it the kernel that has the limit."""
    return Change(flag=TOKEN_CHECK, value="0", note="that kernel is then not launched", is_env=True)


def leave_out(request: Request, flag: str, note: str = "") -> tuple[Change, ...]:
    """A flag, or a variable in front of the command, taken out; a variable is set to 0."""
    if not flag.startswith("--"):
        return (Change(flag=flag, value="0", note=note, is_env=True),)
    given = request.arguments.values.get(flag)
    return (Change(flag=flag if given is None else given.spelled, note=note, is_removal=True),)


def canary_off() -> Change:
    """The last resort."""
    return Change(flag=CANARY, value="none", note="no other setting helps")


def covered_tokens(setup: Setup, sizes: Sizes) -> int:
    """Tokens of a forward that the write entries cover whatever the chunk is."""
    return max(setup.prefill.max_tokens, sizes.write_req * setup.speculation.draft_tokens)


def _largest(step: int) -> str:
    return LARGEST if step == 1 else f"largest multiple of {step:,} that works"


def _old(flag: str) -> str | None:
    return next((old for old, new in PHASELESS_GRAPH_FLAGS.items() if new == flag), None)
