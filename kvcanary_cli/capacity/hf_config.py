"""A model's shape from its Hugging Face `config.json`, as far as sizing needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvcanary_cli.capacity.command import read_text
from kvcanary_cli.capacity.numbers import MAX_COUNT
from kvcanary_cli.capacity.tables import find_architecture, find_model, read_table
from kvcanary_cli.errors import InputError, UsageError, nearest

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Bits a weight by the method of quantization; scales included where they matter
_BITS = {"fp8": 8.0, "mxfp4": 4.25, "nvfp4": 4.5, "awq": 4.25, "gptq": 4.25, "modelopt": 8.0}
_FULL_BITS = 16.0


class HfModel(NamedTuple):
    """The model: where it was read, and its values under the names of `ModelChoice`."""

    source: str
    values: Mapping[str, object]


def read_hf_config(word: str) -> HfModel:
    """A `config.json`, or the name of a model of the built-in table.

    Raises: UsageError for a name that is neither, InputError for a file that is no model's config.
    """
    known = find_model(word)
    if known is not None:
        return HfModel(
            f"model table: {known.path}", {k: v for k, v in known._asdict().items() if k != "path"}
        )
    if not word.endswith(".json") and not Path(word).exists():
        names = [row["path"] for row in read_table("models")]
        close = nearest(word, [*names, *(name.rsplit("/", 1)[-1] for name in names)])
        raise UsageError(
            f"`--hf-config` {word} is neither a file nor a model of the built-in table",
            hint=f"did you mean `{close}`?" if close else "give the path of the model's config.json",
        )
    return HfModel(word, _values(_load(word), word))


def _load(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {error}", where=path) from error
    if not isinstance(data, dict):
        raise InputError("a model's config is a mapping", where=path)
    return data


def _values(whole: dict[str, Any], path: str) -> dict[str, object]:
    nested = whole.get("text_config")
    text = {**whole, **nested} if isinstance(nested, dict) else whole
    names = whole.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    layers = _count(text, "num_hidden_layers", path)
    heads = _count(text, "num_attention_heads", path)
    if layers is None or heads is None:
        lacking = "num_hidden_layers" if layers is None else "num_attention_heads"
        raise InputError(f"the config has no `{lacking}`", where=path)
    hidden = _count(text, "hidden_size", path) or 0
    values: dict[str, object] = {
        "architecture": architecture,
        "layers": layers,
        "kv_heads": _count(text, "num_key_value_heads", path) or heads,
        "head_dim": _count(text, "head_dim", path) or max(1, hidden // heads),
        "v_head_dim": _count(text, "v_head_dim", path),
        "dtype": _kv_dtype(whole, text),
        "context": _count(text, "max_position_embeddings", path),
        "weight_bytes": _weight_bytes(whole, text, layers, heads, hidden, path),
    }
    rank, rope = _count(text, "kv_lora_rank", path), _count(text, "qk_rope_head_dim", path)
    if rank is not None:
        values["latent_dim"] = rank + (rope or 0)
    if find_architecture(architecture).window == "yes":
        values |= _window(text, layers, path)
    return values


def _window(text: dict[str, Any], layers: int, path: str) -> dict[str, object]:
    window = _count(text, "sliding_window", path)
    if window is None:
        return {}
    kinds = text.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        return {"window": window}
    named = tuple("swa" if "sliding" in str(kind) else "full" for kind in kinds)
    return {"window": window, "layer_kinds": named, "swa_layers": named.count("swa") or None}


def _kv_dtype(whole: dict[str, Any], text: dict[str, Any]) -> str | None:
    """The type of the KV cache by default: the model's, or FP8 where the checkpoint says so."""
    quantized = whole.get("quantization_config")
    algorithm = quantized.get("kv_cache_quant_algo") if isinstance(quantized, dict) else None
    if isinstance(algorithm, str) and algorithm.upper() == "FP8":
        return "fp8"
    word = text.get("torch_dtype") or text.get("dtype")
    return _DTYPES.get(word, word) if isinstance(word, str) else None


def _weight_bytes(
    whole: dict[str, Any], text: dict[str, Any], layers: int, heads: int, hidden: int, path: str
) -> int | None:
    """Bytes of all weights, from the sizes of a decoder; None where the config lacks one of them."""
    inner = _count(text, "intermediate_size", path)
    vocabulary = _count(text, "vocab_size", path)
    if not hidden or inner is None or vocabulary is None or "kv_lora_rank" in text:
        return None
    head_dim = _count(text, "head_dim", path) or max(1, hidden // heads)
    kv_heads = _count(text, "num_key_value_heads", path) or heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    experts = _count(text, "num_experts", path) or _count(text, "num_local_experts", path)
    width = _count(text, "moe_intermediate_size", path) or inner
    feed_forward = 3 * hidden * (experts * width if experts else inner)
    ends = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
    quantized = whole.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    bits = _FULL_BITS if method is None else _BITS.get(str(method), 8.0)
    return int((layers * (attention + feed_forward)) * bits / 8 + ends * 2)


def _count(data: dict[str, Any], key: str, path: str) -> int | None:
    """A positive integer, None where it is absent or null."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InputError(f"`{key}` is {json.dumps(value)[:40]}, a count is wanted", where=path)
    return value or None
