"""What is known of the model: from the config, else from the table of published ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.tables import Architecture, find_architecture, find_model

if TYPE_CHECKING:
    from kvcanary_cli.capacity.config import Config


# Values that are listed among the inputs; the others only serve estimates
_SHOWN = frozenset({"architecture", "layers", "kv_heads", "head_dim", "dtype", "window", "swa_layers"})


class ModelChoice(NamedTuple):
    """What is known of the model; everything may be None.

    Args:
        v_head_dim: where it differs from `head_dim`.
        latent_dim: of MLA, elements that a layer keeps of one token on every rank.
        context: tokens of the model's own context.
        layer_kinds: `full` or `swa` for each layer, where the config says it.
    """

    architecture: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    window: int | None = None
    ratio: float | None = None
    swa_layers: int | None = None
    v_head_dim: int | None = None
    latent_dim: int | None = None
    context: int | None = None
    weight_bytes: int | None = None
    layer_kinds: tuple[str, ...] | None = None

    @property
    def family(self) -> Architecture:
        """What the server does for models of this architecture."""
        return find_architecture(self.architecture)


def resolve_model(inputs: Inputs) -> ModelChoice:
    """The model of the config, completed from `--hf-config`, else from the table of published models."""
    path = inputs.text("model_path", "--model-path", default=None)
    config = inputs.request.config
    known, source = _known(inputs, path)
    values: dict[str, object] = {}
    for name in ModelChoice._fields:
        stated = None if config is None else getattr(config.model, name, None)
        if config is not None and stated is not None:
            inputs.note(f"model_{name}", stated, Origin.FILE, f"{config.path}: model.{name}")
        elif not _is_own_model(config):
            stated = known.get(name)
            if stated is not None and name in _SHOWN:
                inputs.default(f"model_{name}", stated, source)
        values[name] = stated
    return ModelChoice(**values)  # type: ignore[arg-type]


def _known(inputs: Inputs, path: str | None) -> tuple[Mapping[str, object], str]:
    """(values by name, their source) of what is known beside the config."""
    if inputs.request.hf_model is not None:
        return inputs.request.hf_model.values, inputs.request.hf_model.source
    known = None if path is None else find_model(path)
    return ({}, "") if known is None else (known._asdict(), f"model table: {known.path}")


def _is_own_model(config: Config | None) -> bool:
    """Whether a config describes a model itself: then nothing else adds to it."""
    return config is not None and config.model.layers is not None
