"""What is known of the model: from the config, else from the table of published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.tables import find_model

if TYPE_CHECKING:
    from kvcanary_cli.capacity.config import Config


class ModelChoice(NamedTuple):
    """What is known of the model; everything may be None."""

    architecture: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    window: int | None = None
    ratio: float | None = None
    swa_layers: int | None = None


def resolve_model(inputs: Inputs) -> ModelChoice:
    """The model of the config, completed from the table of published models where the path is one of them."""
    path = inputs.text("model_path", "--model-path", default=None)
    known = None if path is None else find_model(path)
    config = inputs.request.config
    values: dict[str, object] = {}
    for name in ModelChoice._fields:
        stated = None if config is None else getattr(config.model, name)
        if config is not None and stated is not None:
            inputs.note(f"model_{name}", stated, Origin.FILE, f"{config.path}: model.{name}")
        elif known is not None and name != "ratio" and not _is_own_model(config):
            stated = getattr(known, name)
            if stated is not None:
                inputs.default(f"model_{name}", stated, f"model table: {known.path}")
        values[name] = stated
    return ModelChoice(**values)  # type: ignore[arg-type]


def _is_own_model(config: Config | None) -> bool:
    """Whether a config describes a model itself: then the table adds nothing to it."""
    return config is not None and config.model.layers is not None
