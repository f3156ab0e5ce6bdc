"""From flags to the numbers of the formulas: defaults, divisions, contradictions, origins."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.setup import MissingInputsError, resolve
from kvcanary_cli.errors import InputError, KvCanaryError, UsageError
from tests.capacity.launches import audited, request, setup, sizes, write_config


def refusal(*words: str, **options: str | None) -> KvCanaryError:
    with pytest.raises(KvCanaryError) as caught:
        setup(*words, **options)
    return caught.value


# Parallelism


def test_replicas_divide_nothing():
    found = setup("--dp-size", "4", "--max-running-requests", "100")
    assert (found.parallel.attn_dp, found.prefill.chunk) == (1, 8192)
    assert sizes("--dp-size", "4", "--max-running-requests", "100").running.requests == 100


@pytest.mark.parametrize(
    "words", [["--attn-dp-size", "4"], ["--dp-size", "4", "--enable-dp-attention"]], ids=["flag", "alias"]
)
def test_attention_dp_divides_chunk_and_requests(words):
    words = ["--tp-size", "8", "--max-running-requests", "1003", "--chunked-prefill-size", "4096", *words]
    found = setup(*words)
    assert (found.parallel.attn_dp, found.parallel.attn_tp, found.prefill.chunk) == (4, 2, 1024)
    assert found.prefill.max_tokens == 16_384
    assert sizes(*words).running.requests == 250


def test_at_least_one_request_a_group():
    assert sizes("--tp", "8", "--attn-dp-size", "8", "--max-running-requests", "3").running.requests == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--tp", "6", "--attn-dp-size", "4"],
            "`--tp-size` is 6, which 4 attention data-parallel groups do not divide",
        ),
        (
            ["--tp", "8", "--dp", "2", "--attn-dp-size", "4"],
            "`--dp-size` is 2 and `--attn-dp-size` is 4, only one of them may be above 1",
        ),
        (
            ["--tp", "8", "--dp", "2", "--attn-dp-size", "4", "--enable-dp-attention"],
            "`--attn-dp-size` is 4, but `--enable-dp-attention` makes it `--dp-size`, which is 2",
        ),
        (
            ["--tp", "8", "--attn-cp-size", "3"],
            "`--attn-cp-size` is 3, it does not divide the 8 ranks of a group",
        ),
        (["--tp", "0"], "`--tp` is 0, it must be at least 1"),
        (["--max-running-requests", "-4"], "`--max-running-requests` is -4, it must be at least 1"),
        (["--max-running-requests", "0"], "`--max-running-requests` is 0, it must be at least 1"),
        (["--max-prefill-tokens", "0"], "`--max-prefill-tokens` is 0, it must be at least 1"),
        (["--max-total-tokens", "-1"], "`--max-total-tokens` is -1, it must be at least 1"),
        (
            ["--max-total-tokens", "9T"],
            "`--max-total-tokens` is 9,000,000,000,000, the server counts to 2,147,483,647",
        ),
        (
            ["--chunked-prefill-size", "-9999999999"],
            "`--chunked-prefill-size` is -9,999,999,999, the server counts to 2,147,483,647",
        ),
        (
            ["--chunked-prefill-size", "1000", "--page-size", "64"],
            "`--chunked-prefill-size` is 1,000, which is not a multiple of the page size 64",
        ),
        (
            ["--tp", "3", "--attn-dp-size", "3", "--page-size", "64"],
            "`--chunked-prefill-size` over 3 data-parallel groups is 2,730, which is not a multiple of the page "
            "size 64",
        ),
        (["--context-length", "4096"], "`--context-length` is 131,072 for kvcanary and 4,096 for the server"),
    ],
)
def test_contradictions(words, message):
    assert str(refusal(*words)) == message


def test_a_decode_server_has_no_page_rule_for_chunks():
    words = ["--chunked-prefill-size", "1000", "--page-size", "64", "--disaggregation-mode", "decode"]
    assert setup(*words).prefill.chunk == 1000


# Chunk and prefill


@pytest.mark.parametrize(
    ("words", "chunk"),
    [
        ([], 8192),
        (["--chunked-prefill-size", "0"], 0),
        (["--chunked-prefill-size", "-1"], -1),
        (["--tp", "8", "--attn-dp-size", "8", "--chunked-prefill-size", "-1"], -1),
        (["--tp", "8", "--attn-dp-size", "8", "--chunked-prefill-size", "4"], 0),
        (["--enable-mis", "--chunked-prefill-size", "4096"], -1),
    ],
)
def test_chunk_of_a_rank(words, chunk):
    assert setup(*words).prefill.chunk == chunk


# GPU


@pytest.mark.parametrize(
    ("memory", "tp", "chunk", "batch"),
    [
        ("20479", "1", 2048, 8),
        ("20480", "1", 4096, 48),
        ("20480", "4", 4096, 160),
        ("35839", "3", 4096, 48),
        ("35840", "1", 4096, 32),
        ("61439", "4", 4096, 160),
        ("61440", "1", 8192, 256),
        ("92160", "4", 8192, 512),
        ("163839", "1", 8192, 256),
        ("163840", "1", 16_384, 512),
        ("163840", "8", 16_384, 512),
    ],
)
def test_defaults_by_memory(memory, tp, chunk, batch):
    found = setup("--tp", tp, gpu=None, gpu_memory=memory)
    assert (found.prefill.chunk, found.graph.max_batch) == (chunk, batch)


@pytest.mark.parametrize(
    ("version", "chunk", "batch"), [("0.5.16", 2048, 24), ("0.5.18", 2048, 24), ("0.5.20", 4096, 48)]
)
def test_older_defaults(version, chunk, batch):
    found = setup(gpu="A10", version=version)
    assert (found.prefill.chunk, found.graph.max_batch) == (chunk, batch)


@pytest.mark.parametrize("name", ["H100", "h100", "NVIDIA H100 80GB HBM3", "nvidia-h100"])
def test_spellings_of_a_gpu(name):
    found = setup(gpu=name)
    assert (found.inputs["gpu"].value, found.inputs["gpu_memory_mib"].value) == ("H100", 81_559)
    assert found.inputs["gpu_memory_mib"].origin is Origin.DEFAULT


def test_unknown_gpu():
    error = refusal(gpu="H1000")
    assert str(error) == "the GPU `H1000` is not in the table of GPUs"
    assert error.hint.startswith("did you mean H100?")
    assert "A100-40 or A100-80" in refusal(gpu="A100").hint
    assert refusal(gpu="zzz").hint.startswith("known: T4, ")


def test_unknown_gpu_with_its_memory():
    assert setup(gpu="H1000", gpu_memory="80GiB").graph.max_batch == 256


def test_gpu_and_memory_that_do_not_fit():
    message = "the GPU A10 has 23,028 MiB, but its memory is given as 81,920 MiB"
    assert str(refusal(gpu="A10", gpu_memory="80GiB")) == message


def test_a_gpu_option_replaces_the_whole_section_of_a_config(tmp_path):
    path = write_config(
        tmp_path, "pool: {tokens: 400000, context_length: 4096}\ngpu: {name: H100, memory_mib: 81559}"
    )
    found = resolve(make_request(config_path=path, gpu="T4"))
    assert (found.prefill.chunk, found.inputs["gpu_memory_mib"].value) == (2048, 15_360)


def test_an_unknown_gpu_in_a_config_names_the_line(tmp_path):
    path = write_config(tmp_path, "pool: {tokens: 400000, context_length: 4096}\ngpu: {name: H1000}")
    with pytest.raises(InputError) as caught:
        resolve(make_request(config_path=path))
    assert str(caught.value) == f"{path}:2: $.gpu: the GPU `H1000` is not in the table of GPUs"


def test_no_gpu_where_nothing_depends_on_it():
    words = ["--chunked-prefill-size", "4096", "--cuda-graph-max-bs-decode", "16"]
    assert setup(*words, gpu=None).graph.max_batch == 16


# What is missing


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        (
            {"pool_tokens": None},
            [],
            "launch flags don't say the tokens of the pool (`--pool-tokens`, max_total_num_tokens in the server's "
            "start-up log)",
        ),
        ({"context_length": None}, [], "launch flags don't say the context length (`--context-length`)"),
        (
            {"gpu": None},
            [],
            "launch flags don't say the GPU, for the default of `--chunked-prefill-size` and "
            "`--cuda-graph-max-bs-decode` (`--gpu` or `--gpu-memory`)",
        ),
        (
            {"gpu": None},
            ["--chunked-prefill-size", "4096"],
            "launch flags don't say the GPU, for the default of `--cuda-graph-max-bs-decode` (`--gpu` or "
            "`--gpu-memory`)",
        ),
        (
            {"gpu": None, "context_length": None},
            ["--cuda-graph-bs-decode", "1", "2"],
            "launch flags don't say 2 things: the GPU, for the default of `--chunked-prefill-size` (`--gpu` or "
            "`--gpu-memory`); the context length (`--context-length`)",
        ),
    ],
)
def test_missing_inputs_name_their_flags(options, words, message):
    error = refusal(*words, **options)
    assert isinstance(error, MissingInputsError)
    assert str(error) == message


def test_nothing_to_check():
    with pytest.raises(UsageError, match="there is nothing to check"):
        make_request(pool_tokens="400000")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_tokens": "0"}, "`--pool-tokens` is 0, it ranges from 1 to 2,147,483,647"),
        ({"pool_tokens": "-5"}, "`--pool-tokens` is -5, it ranges from 1 to 2,147,483,647"),
        ({"pool_tokens": "9G"}, "`--pool-tokens` is 9,000,000,000, it ranges from 1 to 2,147,483,647"),
        (
            {"pool_tokens": "many"},
            "`--pool-tokens` wants an integer such as 16384, 16k or 16Ki, found `many`",
        ),
        (
            {"context_length": "1.5"},
            "`--context-length` wants an integer such as 16384, 16k or 16Ki, found `1.5`",
        ),
        ({"gpu_memory": "0"}, "`--gpu-memory` is 0 MiB, it ranges from 1 to 2,147,483,647"),
        ({"gpu_memory": "big"}, "`--gpu-memory` wants a size such as 81559MiB or 80GiB, found `big`"),
        (
            {"version": "0.5.19"},
            "`--sglang-version` 0.5.19 is not a release whose sizing is known (0.5.16, 0.5.18, 0.5.20, 0.5.22, 0.5.23)",
        ),
    ],
)
def test_refused_options(options, message):
    assert str(refusal(**options)) == message


# Canary and environment


def test_environment_assignments():
    result = audited(
        env={"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "yes", "SGLANG_KV_CANARY_RING_CAPACITY": "2048"}
    )
    assert (result.setup.canary.is_token_check_on, result.setup.canary.ring_capacity) == (True, 2048)
    assert result.setup.inputs["ring_capacity"].origin is Origin.ENVIRONMENT


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "maybe"},
            "`SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT` wants true, 1, yes, y or false, 0, no, n, found `maybe`",
        ),
        (
            {"SGLANG_KV_CANARY_RING_CAPACITY": "1k"},
            "`SGLANG_KV_CANARY_RING_CAPACITY` wants an integer, found `1k`",
        ),
        (
            {"SGLANG_KV_CANARY_RING_CAPACITY": "0"},
            "`SGLANG_KV_CANARY_RING_CAPACITY` is 0, it must be at least 1",
        ),
    ],
)
def test_refused_environment(env, message):
    with pytest.raises(UsageError) as caught:
        resolve(request(env=env))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([], 1024),
        (["--disaggregation-mode", "decode"], 1024 + 0),
        (["--disaggregation-mode", "decode", "--disaggregation-decode-extra-slots", "7"], 1024 + 7),
    ],
)
def test_rows_of_the_token_table(words, rows):
    result = audited(
        "--max-running-requests", "1024", *words, env={"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}
    )
    assert result.sizes.memory.token_table == (rows + 1) * (131_072 + 4 + 1) * 4


def test_a_small_decode_server_has_extra_rows():
    words = ["--max-running-requests", "32", "--disaggregation-mode", "decode"]
    result = audited(*words, env={"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"})
    assert result.sizes.memory.token_table == (32 + 1 + 64) * (131_072 + 4 + 1) * 4
    assert audited(*words).sizes.memory.token_table is None


def test_every_input_has_its_origin():
    found = setup("--tp", "8").inputs
    assert {value.origin for value in found.values()} == {Origin.FLAG, Origin.DEFAULT}
    assert (found["tp_size"].source, found["pool_tokens"].source) == ("--tp", "--pool-tokens")
    assert all(value.source for value in found.values())
