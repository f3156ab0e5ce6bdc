"""Speculative decoding: draft tokens a request writes per step, and how many runners bring buffers."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.inputs import Inputs, as_int
from kvcanary_cli.capacity.tables import Algorithm, algorithm_names, find_algorithm
from kvcanary_cli.errors import nearest

# What the server puts in place of `--max-running-requests` with any algorithm
DEFAULT_RUNNING = 48

STEPS = "--speculative-num-steps"
TOPK = "--speculative-eagle-topk"
BREADTH = "--speculative-ngram-max-bfs-breadth"
_DRAFT = "--speculative-num-draft-tokens"
# (steps, topk, draft tokens) where none of the three is given and the algorithm leaves it to the model
_SHAPE_LLAMA = (5, 4, 8)
_SHAPE_OTHER = (3, 1, 4)
# Algorithms whose draft size doesn't come from steps and topk
_FREE_DRAFT = frozenset({"NGRAM", "DFLASH", "DSPARK"})


class Speculation(NamedTuple):
    """The draft: `draft_tokens` at least 1; `topk` and `steps` None without an algorithm.

    `given` are those of the shape's flags that the launch has.
    """

    algorithm: str | None
    steps: int | None
    topk: int | None
    draft_tokens: int
    runners: int
    given: frozenset[str] = frozenset()


def resolve_speculation(inputs: Inputs, architecture: str | None) -> Speculation:
    """Shape of the draft from flags, else from the algorithm's default.

    Raises: UsageError or InputError for an unknown algorithm and for flags that the server refuses together.
    """
    given = inputs.given("--speculative-algorithm")
    if given is None:
        # the server multiplies by this flag even where no algorithm is set
        draft = inputs.integer("speculative_num_draft_tokens", _DRAFT)
        return Speculation(algorithm=None, steps=None, topk=None, draft_tokens=max(1, draft or 1), runners=1)
    algorithm = find_algorithm(str(given.value))
    if algorithm is None:
        names = algorithm_names()
        close = nearest(str(given.value).upper(), names)
        raise given.place.error(
            f"`{given.spelled}` takes {', '.join(names)}, found `{given.value}`",
            hint=f"did you mean `{close}`?" if close else None,
        )
    inputs.note("speculative_algorithm", algorithm.name, given.place.origin, given.place.name(given.spelled))
    steps, topk, draft = (
        _free_shape(inputs, algorithm)
        if algorithm.name in _FREE_DRAFT
        else _shape(inputs, algorithm, architecture)
    )
    return Speculation(
        algorithm=algorithm.name,
        steps=steps,
        topk=topk,
        draft_tokens=max(1, draft),
        runners=2 if algorithm.has_draft_runner else 1,
        given=frozenset(flag for flag in (STEPS, TOPK, _DRAFT) if inputs.given(flag) is not None),
    )


def _free_shape(inputs: Inputs, algorithm: Algorithm) -> tuple[int, int, int]:
    """Shape of the algorithms that take their number of draft tokens by itself."""
    default = None if algorithm.draft_tokens == "given" else int(algorithm.draft_tokens)
    draft = inputs.integer(
        "speculative_num_draft_tokens", _DRAFT, low=1, default=default, source=f"server: {algorithm.name}"
    )
    if draft is None:
        inputs.lack(f"the draft tokens of {algorithm.name} (`{_DRAFT}`)")
        draft = 1
    topk = int(algorithm.topk)
    if algorithm.name == "NGRAM":
        topk = inputs.integer("speculative_ngram_breadth", BREADTH, low=1) or topk
    return int(algorithm.steps), topk, draft


def _shape(inputs: Inputs, algorithm: Algorithm, architecture: str | None) -> tuple[int, int, int]:
    """(steps, topk, draft tokens) of the algorithms that draft in steps."""
    if inputs.given(STEPS) is None:
        for flag in (TOPK, _DRAFT):
            if inputs.given(flag) is not None:
                raise inputs.place(flag).error(
                    f"`{flag}` is given without `{STEPS}`, the server takes all three or none",
                    hint=f"add `{STEPS}`, or leave `{flag}` out",
                )
        return _default_shape(inputs, algorithm, architecture)
    steps = inputs.count("speculative_num_steps", STEPS, default=1)
    if inputs.given(TOPK) is None:
        raise inputs.place(STEPS).error(f"`{STEPS}` is given without `{TOPK}`", hint=f"add `{TOPK}`")
    topk = inputs.count("speculative_eagle_topk", TOPK, default=1)
    draft = inputs.given(_DRAFT)
    if topk == 1:
        if draft is not None and as_int(draft) == steps + 1:
            return steps, topk, inputs.count("speculative_num_draft_tokens", _DRAFT, default=1)
        inputs.default("speculative_num_draft_tokens", steps + 1, "server: steps + 1 where topk is 1")
        return steps, topk, steps + 1
    if draft is None:
        raise inputs.place(TOPK).error(
            f"`{TOPK}` is {topk:,} and `{_DRAFT}` is not given, only topk 1 makes it follow from the steps",
            hint=f"add `{_DRAFT}`",
        )
    return steps, topk, inputs.count("speculative_num_draft_tokens", _DRAFT, default=1)


def _default_shape(inputs: Inputs, algorithm: Algorithm, architecture: str | None) -> tuple[int, int, int]:
    source = f"server: {algorithm.name}"
    if algorithm.draft_tokens != "model":
        shape = (int(algorithm.steps), int(algorithm.topk), int(algorithm.draft_tokens))
    elif architecture is None:
        inputs.lack(
            f"the draft's shape, whose default depends on the model (`{STEPS}`, `{TOPK}`, `{_DRAFT}`)"
        )
        shape = _SHAPE_OTHER
    else:
        is_llama = architecture == "LlamaForCausalLM" or architecture.startswith("Grok1")
        shape = _SHAPE_LLAMA if is_llama else _SHAPE_OTHER
        source = f"{source} with {architecture}"
    for name, value in zip(("num_steps", "eagle_topk", "num_draft_tokens"), shape, strict=True):
        inputs.default(f"speculative_{name}", value, source)
    return shape
