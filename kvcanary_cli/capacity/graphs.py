"""CUDA graph settings of the decode phase: the largest captured batch, and whether there is one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcanary_cli.capacity.arguments import Given
from kvcanary_cli.capacity.flags import PHASELESS_GRAPH_FLAGS
from kvcanary_cli.capacity.inputs import Inputs, as_int, check_range
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.tables import Tier, Version
from kvcanary_cli.errors import nearest

if TYPE_CHECKING:
    from kvcanary_cli.capacity.server_log import Stated

MAX_BS = "--cuda-graph-max-bs-decode"
BS_LIST = "--cuda-graph-bs-decode"
GRAPH_CONFIG = "--cuda-graph-config"
_SECTIONS = ("decode", "prefill")
_KEYS = ("backend", "max_bs", "bs")


class Graph(NamedTuple):
    """Decode graph settings.

    Args:
        max_batch: requests in the largest graph; it counts in the capacities even if disabled.
        setting: the flag that decides it.
        is_on: whether the decode phase has a graph.
    """

    max_batch: int
    setting: str
    is_on: bool


def needs_gpu_default(inputs: Inputs) -> bool:
    """Whether the largest batch comes from the GPU's default."""
    decode = graph_config(inputs.given(GRAPH_CONFIG)).get("decode", {})
    if _logged(inputs) is not None:
        return False
    return not ("bs" in decode or "max_bs" in decode or inputs.given(BS_LIST) or inputs.given(MAX_BS))


def resolve_graph(inputs: Inputs, tier: Tier | None, *, limit: int | None, disaggregation: str) -> Graph:
    """Strongest first: `--cuda-graph-config`, the flags of the phase, the switches that disable, the GPU.

    Within each of the first two a list of batches decides over a maximum. The default shrinks to the limit of
    running requests over all data-parallel groups, where that was given.
    """
    decode = graph_config(inputs.given(GRAPH_CONFIG)).get("decode", {})
    is_on = _is_on(inputs, decode, disaggregation)
    batch, setting = _given_batch(inputs, decode)
    if batch is None:
        logged = _logged(inputs)
        if tier is None and logged is not None:
            batch = logged.value if limit is None else min(logged.value, limit)
            origin = Origin.LOG if inputs.request.log is None else inputs.request.log.origin
            inputs.note("cuda_graph_max_bs_decode", batch, origin, logged.source)
            return Graph(max_batch=batch, setting=setting, is_on=is_on)
        batch = 0 if tier is None else tier.graph_batch
        source = "server, by GPU memory"
        if limit is not None and limit < batch:
            batch, source = limit, "server, by --max-running-requests"
        inputs.default("cuda_graph_max_bs_decode", batch, source)
    return Graph(max_batch=batch, setting=setting, is_on=is_on)


def _logged(inputs: Inputs) -> Stated | None:
    """Upper bound of the largest batch by a start-up log: the write requests count it."""
    log = inputs.request.log
    return None if log is None else log.write_req or log.graph_batch


def _given_batch(inputs: Inputs, decode: dict[str, Any]) -> tuple[int | None, str]:
    config = inputs.given(GRAPH_CONFIG)
    if config is not None and ("bs" in decode or "max_bs" in decode):
        batch = max(decode["bs"]) if "bs" in decode else decode["max_bs"]
        return _noted(inputs, config, batch), GRAPH_CONFIG
    listed = inputs.given(BS_LIST)
    if listed is not None and isinstance(listed.value, tuple):
        batch = max(batch for batch in listed.value if isinstance(batch, int))
        return _noted(inputs, listed, batch), spelled_graph_flag(inputs.request.version, BS_LIST)
    given = inputs.given(MAX_BS)
    setting = spelled_graph_flag(inputs.request.version, MAX_BS)
    return (None if given is None else _noted(inputs, given, as_int(given))), setting


def _noted(inputs: Inputs, given: Given, batch: int) -> int:
    check_range(given, batch, low=0)
    inputs.note("cuda_graph_max_bs_decode", batch, given.place.origin, given.place.name(given.spelled))
    return batch


def _is_on(inputs: Inputs, decode: dict[str, Any], disaggregation: str) -> bool:
    backend = inputs.given("--cuda-graph-backend-decode")
    switches = [inputs.given(flag) for flag in ("--disable-decode-cuda-graph", "--disable-cuda-graph")]
    if disaggregation == "prefill":
        by, is_on = inputs.given("--disaggregation-mode"), False
    elif "backend" in decode:
        by, is_on = inputs.given(GRAPH_CONFIG), decode["backend"] != "disabled"
    elif backend is not None:
        by, is_on = backend, backend.value != "disabled"
    else:
        by = next((given for given in switches if given is not None), None)
        is_on = by is None
    if by is None:
        inputs.default("decode_cuda_graph", is_on, "server")
    else:
        inputs.note("decode_cuda_graph", is_on, by.place.origin, by.place.name(by.spelled))
    return is_on


def spelled_graph_flag(version: Version, flag: str) -> str:
    """A graph flag as the release spells it."""
    if version.phaseless_graph_flags:
        for old, new in PHASELESS_GRAPH_FLAGS.items():
            if new == flag:
                return old
    return flag


def graph_config(given: Given | None) -> dict[str, dict[str, Any]]:
    """The sections of `--cuda-graph-config`; a key close to a known one is refused, others are not."""
    if given is None:
        return {}
    try:
        data = json.loads(str(given.value))
    except (ValueError, RecursionError) as error:
        raise given.place.error(f"`{given.spelled}` is not JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(section, dict) for section in data.values()):
        raise given.place.error(
            f'`{given.spelled}` wants an object with sections, such as {{"decode": {{"max_bs": 256}}}}'
        )
    _check_names(given, data, _SECTIONS, "section")
    for section in data.values():
        _check_names(given, section, _KEYS, "key")
        _check_batches(given, section)
    return data


def _check_names(given: Given, names: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in names:
        close = nearest(name, known)
        if name not in known and close is not None:
            raise given.place.error(
                f"`{given.spelled}` has the {what} `{name}`, which the server does not know",
                hint=f"did you mean `{close}`?",
            )


def _check_batches(given: Given, section: dict[str, Any]) -> None:
    max_bs, batches = section.get("max_bs"), section.get("bs")
    if max_bs is None:
        section.pop("max_bs", None)
    elif isinstance(max_bs, bool) or not isinstance(max_bs, int):
        raise given.place.error(
            f"`{given.spelled}` wants an integer for max_bs, found `{json.dumps(max_bs)}`"
        )
    if batches is None:
        section.pop("bs", None)
        return
    is_list = isinstance(batches, list) and batches
    if not is_list or not all(isinstance(batch, int) and not isinstance(batch, bool) for batch in batches):
        raise given.place.error(
            f"`{given.spelled}` wants a list of integers for bs, found `{json.dumps(batches)}`"
        )
