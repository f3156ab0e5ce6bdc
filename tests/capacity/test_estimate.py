"""Pools that nobody states: the model from a config or the table, the estimate and its range."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.capacity.audit import Audit, audit
from kvcanary_cli.capacity.hf_config import read_hf_config
from kvcanary_cli.capacity.mem_fraction import Reserve, default_fraction
from kvcanary_cli.capacity.prefill_graph import buckets
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.errors import InputError, KvCanaryError, UsageError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write(tmp_path, data: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(path)


def audited(*words: str, gpu: str = "H100", **options: str) -> Audit:
    return audit(make_request(command=["sglang", "serve", *words], gpu=gpu, **options))


@pytest.mark.parametrize(
    ("gpu_mib", "chunk", "batch", "tp", "fraction"),
    [
        (15360, 2048, 8, 1, 0.735),
        (23028, 4096, 48, 1, 0.684),
        (24564, 4096, 48, 1, 0.704),
        (32607, 4096, 48, 1, 0.777),
        (46068, 4096, 32, 1, 0.843),
        (81920, 8192, 256, 1, 0.830),
        (81559, 8192, 256, 1, 0.830),
        (81559, 8192, 512, 8, 0.812),
        (143771, 8192, 256, 1, 0.903),
        (143771, 8192, 512, 8, 0.893),
        (183359, 16384, 512, 1, 0.854),
        (183359, 16384, 512, 8, 0.849),
    ],
)
def test_memory_fractions(gpu_mib, chunk, batch, tp, fraction):
    reserve = Reserve(
        gpu_mib=gpu_mib,
        tokens=chunk,
        ranks=tp,
        attn_dp=1,
        graph_batch=batch,
        prefill_buckets=len(buckets(chunk)),
        is_mla=False,
        is_multimodal=False,
    )
    assert default_fraction(reserve) == fraction


@pytest.mark.parametrize(
    ("limit", "number"), [(2048, 42), (4096, 50), (8192, 58), (16384, 74), (3, 0), (4, 1)]
)
def test_buckets(limit, number):
    assert len(buckets(limit)) == number
    assert all(size <= limit for size in buckets(limit))


@pytest.mark.parametrize(
    ("gpu", "words", "model", "published"),
    [
        # published logs: 106.62 GiB of 40,960 B a token on each of eight ranks
        ("H200", ["--tp", "8"], "meta-llama/Llama-3.1-70B", 2_795_207),
        ("H100", [], "Llama-3.1-8B", 400_000),
    ],
)
def test_published_pools_are_plausible(gpu, words, model, published):
    estimate = audited(*words, gpu=gpu, hf_config=model).setup.pool.estimate
    assert estimate.smallest <= published <= estimate.largest
    assert estimate.smallest < estimate.tokens < estimate.largest
    assert abs(estimate.tokens / published - 1) < 0.05


def test_a_config_gives_what_the_table_has(tmp_path):
    by_file = audited(hf_config=write(tmp_path, LLAMA)).setup
    by_name = audited(hf_config="meta-llama/Llama-3.1-8B").setup
    for name in ("architecture", "layers", "kv_heads", "head_dim", "dtype", "context"):
        assert getattr(by_file.model, name) == getattr(by_name.model, name)
    assert abs(by_file.model.weight_bytes / by_name.model.weight_bytes - 1) < 0.01
    assert by_file.pool.context_length == 131_072


def test_shapes_that_differ(tmp_path):
    latent = {
        **LLAMA,
        "architectures": ["DeepseekV3ForCausalLM"],
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    assert read_hf_config(write(tmp_path, latent)).values["latent_dim"] == 576
    kinds = ["sliding_attention", "full_attention"] * 16
    window = {"sliding_window": 128, "layer_types": kinds}
    hybrid = read_hf_config(
        write(tmp_path, {**LLAMA, **window, "architectures": ["GptOssForCausalLM"]})
    ).values
    assert (hybrid["window"], hybrid["swa_layers"]) == (128, 16)
    # this server has no window pool for other architectures
    assert "window" not in read_hf_config(write(tmp_path, {**LLAMA, **window})).values
    nested = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {**LLAMA, "num_hidden_layers": 5},
    }
    assert read_hf_config(write(tmp_path, nested)).values["layers"] == 5
    fp8 = {**LLAMA, "quantization_config": {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}}
    assert read_hf_config(write(tmp_path, fp8)).values["dtype"] == "fp8"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "this is not JSON"),
        ([1], "a model's config is a mapping"),
        ({}, "the config has no `num_hidden_layers`"),
        ({"num_hidden_layers": 3}, "the config has no `num_attention_heads`"),
        ({"num_hidden_layers": -3, "num_attention_heads": 1}, "`num_hidden_layers` is -3, a count is wanted"),
        ({"num_hidden_layers": "x", "num_attention_heads": 1}, '`num_hidden_layers` is "x", a count'),
        ("[" * 100_000, "this is not JSON"),
    ],
)
def test_files_that_are_no_config(tmp_path, data, message):
    path = write(tmp_path, data)
    with pytest.raises(InputError, match=message) as caught:
        read_hf_config(path)
    assert caught.value.where == path


def test_names_that_are_not_known():
    with pytest.raises(UsageError, match="is neither a file nor a model") as caught:
        read_hf_config("llama-3.1-8")
    assert "Llama-3.1-8B" in caught.value.hint


@pytest.mark.parametrize(
    "options", [{"pool_tokens": "1000k"}, {"from_log": "max_total_num_tokens=1000000"}, {"words": "1000000"}]
)
def test_a_stated_pool_wins(tmp_path, options):
    words = ["--max-total-tokens", options.pop("words")] if "words" in options else []
    if "from_log" in options:
        log = tmp_path / "server.log"
        log.write_text(options["from_log"], encoding="utf-8")
        options["from_log"] = str(log)
    pool = audited(*words, hf_config="Qwen/Qwen3-8B", **options).setup.pool
    assert (pool.tokens, pool.estimate) == (1_000_000, None)


def test_weights_that_leave_no_room():
    with pytest.raises(KvCanaryError, match="leave no room for a pool"):
        audited(hf_config="meta-llama/Llama-3.1-70B")


def test_nothing_is_estimated_unless_asked():
    with pytest.raises(UsageError, match="the tokens of the pool"):
        audited("--model-path", "Qwen/Qwen3-8B")


def test_more_room_by_the_flags_that_give_it():
    def tokens(*words: str) -> int:
        return audited(*words, hf_config="Qwen/Qwen3-8B").setup.pool.tokens

    default = tokens()
    assert tokens("--mem-fraction-static", "0.9") > default
    assert tokens("--kv-cache-dtype", "fp8_e4m3") == pytest.approx(2 * default, rel=1e-4)
    assert tokens("--tp", "2") > 2 * default
    assert tokens("--speculative-algorithm", "EAGLE3") < default


def test_a_verdict_that_depends_on_the_estimate_is_said():
    # 3 x pool against what requests can share, and half the pool against 4,096 requests: no rule flips here
    assert "pool-estimate" not in {f.rule.id for f in audited(hf_config="Qwen/Qwen3-8B").findings}
    # between both ends of the range the pool passes the chunk
    estimate = audited(hf_config="Qwen/Qwen3-8B").setup.pool.estimate
    chunk = str(estimate.tokens + 1)
    words = [
        "--chunked-prefill-size",
        chunk,
        "--max-prefill-tokens",
        str(estimate.tokens),
        "--mem-fraction-static",
    ]
    found = audited(*words, "0.83", hf_config="Qwen/Qwen3-8B")
    assert "pool-estimate" in {f.rule.id for f in found.findings}


@pytest.mark.parametrize("names", [None, [], [5], "LlamaForCausalLM"])
def test_a_config_without_an_architecture(tmp_path, names):
    assert read_hf_config(write(tmp_path, {**LLAMA, "architectures": names})).values["architecture"] is None
