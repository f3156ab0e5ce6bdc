"""Families of models that the server treats in a way of their own, and what differs between releases."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.changes import PLAN_REQUESTS, SCATTER_REQUESTS
from kvcanary_cli.capacity.tables import find_architecture, find_version, read_table
from kvcanary_cli.errors import KvCanaryError
from tests.capacity.launches import audited, write_config

RELEASES = ["0.5.16", "0.5.18", "0.5.20", "0.5.22", "0.5.23"]


def model(tmp_path, text: str, *words: str, **options: str):
    path = write_config(tmp_path, f"model: {{{text}}}")
    return audited(*words, config_path=path, **options)


def test_deepseek_v4(tmp_path):
    result = model(tmp_path, "architecture: DeepseekV4ForCausalLM, window: 128, layers: 4, swa_layers: 2")
    # 256 requests where none are asked for, a tenth of the pool for the window, one group of buffers
    assert result.sizes.running.requests == 256
    assert result.setup.window.tokens == 40_000
    assert result.setup.groups == 1
    assert result.sizes.memory.buffers == 2 * 32 * 40_000
    assert result.setup.inputs["max_running_requests"].source == "server: DeepseekV4ForCausalLM"
    assert (
        model(
            tmp_path, "architecture: DeepseekV4ForCausalLM", "--max-running-requests", "9"
        ).setup.max_running
        == 9
    )


@pytest.mark.parametrize(
    ("architecture", "pool", "window"),
    [
        ("DeepseekV3ForCausalLM", "mla", "no"),
        ("DeepseekV32ForCausalLM", "dsa", "no"),
        ("DeepseekV4ForCausalLM", "dsv4", "yes"),
        ("Gemma3ForCausalLM", "mha", "never"),
        ("Gemma4ForCausalLM", "mha", "yes"),
        ("Llama4ForConditionalGeneration", "mha", "yes"),
        ("LlamaForCausalLM", "mha", "no"),
        ("Olmo2ForCausalLM", "mha", "never"),
        (None, "mha", "no"),
    ],
)
def test_the_longest_prefix_of_a_name_decides(architecture, pool, window):
    found = find_architecture(architecture)
    assert (found.pool, found.window) == (pool, window)


def test_mamba_states_cap_the_requests(tmp_path):
    def requests(*words: str, architecture: str = "Qwen3NextForCausalLM") -> tuple[int, str]:
        result = model(tmp_path, f"architecture: {architecture}", *words)
        return result.sizes.running.requests, result.sizes.running_by

    states = ["--max-mamba-cache-size", "600"]
    assert requests() == (2048, "built in")
    assert requests(*states) == (600, "--max-mamba-cache-size")
    assert requests(*states, "--tp", "2", "--attn-dp-size", "2") == (300, "--max-mamba-cache-size")
    assert requests(*states, "--max-running-requests", "500") == (500, "--max-running-requests")
    assert requests(*states, architecture="LlamaForCausalLM") == (2048, "built in")


def test_pages_of_a_model(tmp_path):
    assert model(tmp_path, "architecture: MiniMaxM3ForCausalLM").setup.pool.page_size == 128


def test_layers_are_split_over_stages(tmp_path):
    text = "layers: 61, kv_heads: 1, head_dim: 576, latent_dim: 576, dtype: bf16"
    one, two = (model(tmp_path, text, "--pp-size", pp).sizes.memory.kv for pp in ("1", "2"))
    # the larger stage has 31 of 61
    assert (one, two) == (70_272 * 400_000, 35_712 * 400_000)


@pytest.mark.parametrize(
    ("dtype", "units"),
    [("auto", 64), ("fp8_e4m3", 32), ("mxfp8", 33), ("fp4_mx_block16", 18), ("nvfp4", 18)],
)
def test_kv_types(tmp_path, dtype, units):
    text = "layers: 2, kv_heads: 8, head_dim: 128, dtype: bf16"
    result = model(tmp_path, text, "--kv-cache-dtype", dtype)
    assert result.sizes.memory.kv == 2 * 8 * 256 * 400_000 * units // 32


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_answers(release):
    result = audited("--chunked-prefill-size", "32768", version=release)
    assert [finding.rule.id for finding in result.findings if finding.rule.severity == "error"] == [
        "entry-chunk"
    ]


def test_limits_of_all_releases_are_those_of_the_rules():
    assert [row["version"] for row in read_table("versions")] == RELEASES
    for release in RELEASES:
        version = find_version(release)
        assert (version.plan_lanes, version.scatter_block - 1) == (PLAN_REQUESTS, SCATTER_REQUESTS)


@pytest.mark.parametrize(
    ("release", "flag"),
    [(name, "--cuda-graph-max-bs" + ("" if name < "0.5.20" else "-decode")) for name in RELEASES],
)
def test_the_message_names_the_flag_of_the_release(release, flag):
    words = ["--tp", "8", "--attn-dp-size", "2", "--max-running-requests", "2002"]
    result = audited(*words, version=release)
    message = next(f.hit.server_message for f in result.findings if f.rule.id == "req-rounding")
    assert f"; raise {flag} or check" in message
    assert f"{flag} 1004" in [" ".join(change.text for change in fix.changes) for fix in result.fixes]


@pytest.mark.parametrize(("release", "is_accepted"), [(name, name < "0.5.20") for name in RELEASES])
def test_an_ambiguous_prefix_by_release(release, is_accepted):
    if is_accepted:
        assert audited("--cuda-graph-max-bs", "128", version=release).setup.graph.max_batch == 128
        return
    with pytest.raises(KvCanaryError) as caught:
        audited("--cuda-graph-max-bs", "128", version=release)
    assert caught.value.message == (
        "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
    )


@pytest.mark.parametrize(
    ("release", "chunk", "batch"),
    [(n, 2048 if n < "0.5.20" else 4096, 24 if n < "0.5.20" else 48) for n in RELEASES],
)
def test_small_gpus_by_release(release, chunk, batch):
    found = audited(version=release, gpu="A10").setup
    assert (found.prefill.chunk, found.graph.max_batch) == (chunk, batch)


def test_a_context_beyond_the_models_own():
    words = ["--model-path", "Qwen/Qwen3-8B", "--context-length", "40961"]
    with pytest.raises(KvCanaryError, match="the model's own context is 40,960"):
        audited(*words, context_length=None)
    allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert audited(*words, env=allowed, context_length=None).setup.pool.context_length == 40_961
    assert audited(*words[:3], "40960", context_length=None).setup.pool.context_length == 40_960
    assert audited(*words[:2], context_length=None).setup.pool.context_length == 40_960


@pytest.mark.parametrize(
    ("architecture", "words", "tokens"),
    [
        ("Step3p5ForCausalLM", [], 320_000),
        ("Step3p5ForCausalLM", ["--enable-hicache"], 400_000),
        ("InklingForCausalLM", ["--enable-hicache"], 40_000),
        ("InklingForCausalLM", ["--swa-full-tokens-ratio", "0.5"], 200_000),
    ],
)
def test_ratios_of_models(tmp_path, architecture, words, tokens):
    result = model(tmp_path, f"architecture: {architecture}, window: 128", *words)
    assert result.setup.window.tokens == tokens


def test_full_layers_beside_window_layers_can_be_swept(tmp_path):
    words = ["--kv-canary", "log", "--kv-canary-sweep-interval", "9"]
    for swa_layers, fires in [(3, False), (4, True)]:
        result = model(tmp_path, f"window: 128, layers: 4, swa_layers: {swa_layers}", *words)
        assert ("sweep-cache" in {finding.rule.id for finding in result.findings}) is fires


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--cuda-graph-bs-decode", "1", "4096", "4097"], "--cuda-graph-bs-decode 1 4096"),
        (
            ["--cuda-graph-config", '{"decode":{"bs":[1,4096,4097]}}'],
            '--cuda-graph-config \'{"decode":{"bs":[1,4096]}}\'',
        ),
    ],
)
def test_a_batch_at_the_limit_stays(words, fix):
    found = audited(*words).fixes
    assert [" ".join(change.text for change in each.changes) for each in found] == [fix]
