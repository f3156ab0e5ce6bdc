"""Capacity configs: what they may hold, and how they are refused."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.audit import audit
from kvcanary_cli.capacity.config import load_capacities, read_config
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.setup import MissingInputsError, resolve
from kvcanary_cli.errors import InputError
from tests.capacity.launches import write_config
from tests.cli import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
WHOLE = """\
pool: {tokens: 400000, page_size: 1, context_length: 131072}
gpu: {name: H100, memory_mib: 81559}
args: ["--model-path", "m", "--chunked-prefill-size", "8192"]
capacities: {write_req: 2048, write_entry: 8192, verify: 1200000}
model: {layers: 32, kv_heads: 8, head_dim: 128, window: null, dtype: bf16}
simulate: {scheduler: sglang, step_ms: 25, prefill_tokens_per_s: 20000, mixed_chunk: false, seed: 0}
"""


def refusal(tmp_path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read_config(write_config(tmp_path, text))
    return caught.value


SHIPPED = [path for path in CONFIGS if "pool:" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_pass(path):
    result = audit(make_request(config_path=str(path)))
    assert result.fixes == []
    assert {row.status for row in result.capacities} <= {"INFO", "OK"}
    assert len(result.capacities) == 4
    # the audit has compared what they state
    stated = result.request.config.capacities
    sizes = (result.sizes.write_req, result.sizes.write_entry, result.sizes.verify)
    assert (stated.write_req, stated.write_entry, stated.verify) == sizes
    assert result.sizes.memory.kv is not None


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_say_where_their_figures_are_from(path):
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert "config.json of " in " ".join(comments)
    assert "max_total_num_tokens" in " ".join(comments) or "pull request" in " ".join(comments)


def test_eight_models_are_shipped():
    names = " ".join(path.name for path in SHIPPED)
    models = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-32b", "qwen3-235b")
    assert [m for m in (*models, "deepseek-v3", "gpt-oss-120b", "gemma-3-27b") if m not in names] == []


def test_the_canary_refuses_the_shipped_config_that_leaves_it_off():
    path = str(ROOT / "configs" / "deepseek-v3-tp8-h200.yaml")
    result = audit(make_request(config_path=path, command=["--kv-canary", "log"]))
    assert "pool-class" in {finding.rule.id for finding in result.findings}


def test_whole_file(tmp_path):
    config = read_config(write_config(tmp_path, WHOLE))
    assert (config.pool.tokens, config.gpu.name, config.capacities.verify) == (400_000, "H100", 1_200_000)
    assert (config.model.window, config.simulate.step_ms) == (None, 25)
    assert config.args[-1] == "8192"


def test_sections_may_be_empty_or_left_out(tmp_path):
    config = read_config(write_config(tmp_path, "pool:\ngpu:\n"))
    assert (config.pool.tokens, config.gpu.name, config.args) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "line", "path", "message", "hint"),
    [
        ("poool: {}", 1, "$.poool", "the key `poool` is not known here", "did you mean `pool`?"),
        ("pool:\n  page_sise: 1", 2, "$.pool.page_sise", "the key `page_sise`", "did you mean `page_size`?"),
        ("zebra: 1", 1, "$.zebra", "the key `zebra` is not known here, which has pool, gpu, args", None),
        ("model: {3: 1}", 1, "$.model.3", "the key `3` is not known here", None),
        ("pool: {tokens: many}", 1, "$.pool.tokens", "expected `int | null`, got `str`", None),
        ("gpu: {}\npool:\n  tokens: 0", 3, "$.pool.tokens", "expected `int` >= 1", None),
        ("pool: {tokens: -5}", 1, "$.pool.tokens", "expected `int` >= 1", None),
        ("pool: {tokens: 99999999999}", 1, "$.pool.tokens", "expected `int` <= 2147483647", None),
        ("pool: {tokens: 4.5}", 1, "$.pool.tokens", "expected `int | null`, got `float`", None),
        ("model: {ratio: 1.5}", 1, "$.model.ratio", "expected `float` <= 1", None),
        ("pool: [1]", 1, "$.pool", "expected `object | null`, got `array`", None),
        ("args: text", 1, "$.args", "expected `object | array | null`, got `str`", None),
    ],
)
def test_refused_values(tmp_path, text, line, path, message, hint):
    error = refusal(tmp_path, text)
    assert error.where.endswith(f"c.yaml:{line}")
    assert (error.path, error.hint) == (path, hint)
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("pool: {}\ngpu: {}\npool: {}", 3, "the key `pool` stands here again, it was given on line 1"),
        ("pool:\n  tokens: 1\n  tokens: 2", 3, "the key `tokens` stands here again, it was given on line 2"),
        ("pool: {tokens: 1", 1, "this is not YAML"),
        ("a: b: c", 1, "this is not YAML"),
        ("pool: !!python/object:os.system {}", 1, "this is not YAML"),
        ("? [1]\n: 2", 1, "a key is a list or a mapping"),
        ("[" * 60 + "]" * 60, 1, "values are nested deeper than 50 levels"),
        ("pool: &a [*a]", 1, "values are nested deeper than 50 levels"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "\n".join(
                f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]" for i in range(6)
            ),
            1,
            "the file holds more than 100,000 values",
        ),
    ],
    ids=["key-twice", "inner-key-twice", "open", "colons", "tag", "list-as-key", "deep", "itself", "aliases"],
)
def test_what_is_not_a_config_file(tmp_path, text, line, message):
    error = refusal(tmp_path, text)
    assert error.message.startswith(message)
    assert error.where.endswith(f"c.yaml:{line}")


@pytest.mark.parametrize(
    ("text", "found"), [("", "nothing"), ("[1]", "a list"), ("text", "a str"), ("# comment", "nothing")]
)
def test_what_is_not_a_mapping(tmp_path, text, found):
    assert refusal(tmp_path, text).message.endswith(f"found {found}")


def test_more_than_one_document(tmp_path):
    assert refusal(tmp_path, "pool: {}\n---\ngpu: {}").message.startswith("this is not YAML")


def given(tmp_path, args: str) -> dict[str, object]:
    request = make_request(config_path=write_config(tmp_path, f"args: {args}"))
    return {name: given.value for name, given in request.arguments.values.items()}


def test_args_as_a_list(tmp_path):
    assert given(tmp_path, '["--tp", 8, "--mem-fraction-static", 0.8]') == {
        "--tp-size": 8,
        "--mem-fraction-static": 0.8,
    }


def test_args_as_a_mapping(tmp_path):
    mapping = (
        "{tp-size: 8, --max-total-tokens: 1Mi, disable-radix-cache: true, enable-dp-attention: false, "
        "cuda-graph-bs-decode: [1, 2], cuda-graph-config: {decode: {max_bs: 8}}, chunked-prefill-size: -1, "
        "api-key: null, served-model-name: -x}"
    )
    assert given(tmp_path, mapping) == {
        "--tp-size": 8,
        "--max-total-tokens": 1_048_576,
        "--disable-radix-cache": True,
        "--cuda-graph-bs-decode": (1, 2),
        "--cuda-graph-config": '{"decode":{"max_bs":8}}',
        "--chunked-prefill-size": -1,
        "--served-model-name": "-x",
    }


def test_args_errors_name_file_and_line(tmp_path):
    path = write_config(tmp_path, "pool: {}\nargs: {tp-size: eight}")
    with pytest.raises(InputError) as caught:
        make_request(config_path=path)
    assert str(caught.value) == f"{path}:2: `--tp-size` wants an integer, found `eight`"


def test_flags_beat_the_config(tmp_path):
    path = write_config(tmp_path, WHOLE)
    request = make_request(config_path=path, command=["--chunked-prefill-size", "4096"], pool_tokens="500k")
    setup = resolve(request)
    assert (setup.prefill.chunk, setup.pool.tokens, setup.pool.setting) == (4096, 500_000, "--pool-tokens")
    assert setup.inputs["chunked_prefill_size"].origin == "flag"
    assert (setup.inputs["context_length"].origin, setup.inputs["context_length"].source) == (
        "file",
        f"{path}: pool.context_length",
    )


def test_args_file_stands_between_config_and_command(tmp_path):
    path = write_config(tmp_path, WHOLE)
    launch = write_config(tmp_path, "--chunked-prefill-size 2048 --max-prefill-tokens 4096", "launch.sh")
    low = resolve(make_request(config_path=path, args_file=launch))
    high = resolve(
        make_request(config_path=path, args_file=launch, command=["--chunked-prefill-size", "1024"])
    )
    assert (low.prefill.chunk, low.prefill.max_tokens) == (2048, 4096)
    assert low.inputs["model_path"].source == f"{path}: --model-path"
    assert (high.prefill.chunk, high.prefill.max_tokens) == (1024, 4096)


def test_the_servers_own_config_file(tmp_path):
    own = write_config(
        tmp_path, "tp-size: 8\nchunked-prefill-size: 1024\ndisable-radix-cache: true", "server.yaml"
    )
    request = make_request(command=["sglang", "serve", "--config", own, "--tp", "4"])
    assert {name: given.value for name, given in request.arguments.values.items()} == {
        "--config": own,
        "--tp-size": 4,
        "--chunked-prefill-size": 1024,
        "--disable-radix-cache": True,
    }
    assert request.arguments.values["--chunked-prefill-size"].place.file == own
    with pytest.raises(InputError, match="No such file"):
        make_request(command=["sglang", "serve", "--config", str(tmp_path / "absent.yaml")])
    with pytest.raises(InputError, match="is a mapping of flags to values"):
        make_request(command=["sglang", "serve", "--config", write_config(tmp_path, "[1]", "list.yaml")])


@pytest.mark.parametrize("name", ["write_req", "write_entry", "verify"])
def test_stated_capacities_are_compared(tmp_path, name):
    text = WHOLE.replace(f"{name}: ", f"{name}: 9")
    path = write_config(tmp_path, text)
    with pytest.raises(InputError) as caught:
        audit(make_request(config_path=path))
    assert caught.value.path == f"$.capacities.{name}"
    assert caught.value.where == f"{path}:4"
    assert "is stated, but" in caught.value.message


def test_stated_capacities_say_nothing_about_other_flags(tmp_path):
    path = write_config(tmp_path, WHOLE)
    assert audit(make_request(config_path=path, pool_tokens="500000")).sizes.verify == 1_500_000


def test_load_computes(tmp_path):
    loaded = load_capacities(write_config(tmp_path, WHOLE[: WHOLE.index("capacities")]))
    assert (loaded.write_req_capacity, loaded.write_entry_capacity, loaded.verify_capacity) == (
        2048,
        8192,
        1_200_000,
    )
    assert (loaded.pool.tokens, loaded.pool.page_size, loaded.pool.context_length) == (400_000, 1, 131_072)


def test_load_takes_what_is_stated(tmp_path):
    loaded = load_capacities(write_config(tmp_path, WHOLE.replace("verify: 1200000", "verify: 7")))
    assert (loaded.write_req_capacity, loaded.verify_capacity) == (2048, 7)
    assert loaded.simulate.prefill_tokens_per_s == 20_000


def test_load_of_stated_capacities_alone(tmp_path):
    loaded = load_capacities(write_config(tmp_path, "capacities: {write_req: 64, verify: 12240}"))
    assert (loaded.write_req_capacity, loaded.write_entry_capacity, loaded.verify_capacity) == (
        64,
        None,
        12_240,
    )
    assert loaded.pool.tokens is None


def test_load_of_too_little(tmp_path):
    with pytest.raises(MissingInputsError, match="`--pool-tokens`"):
        load_capacities(write_config(tmp_path, "gpu: {name: H100}"))


def alone(tmp_path, write_req: int, write_entry: int, verify: int, **options):
    text = f"capacities: {{write_req: {write_req}, write_entry: {write_entry}, verify: {verify}}}"
    return audit(make_request(config_path=write_config(tmp_path, text), **options))


def test_capacities_alone_are_judged_by_what_bounds_them(tmp_path):
    result = alone(tmp_path, 2048, 20_000, 1_200_000)
    assert (result.sizes.write_req, result.sizes.write_entry, result.sizes.verify) == (
        2048,
        20_000,
        1_200_000,
    )
    assert result.setup.pool.tokens == 400_000
    assert result.setup.inputs["pool_tokens"].source.endswith("c.yaml: capacities.verify")
    assert result.setup.inputs["pool_tokens"].origin == "file"
    assert [f.rule.id for f in result.findings] == ["verify-share"]
    too_many = alone(tmp_path, 4097, 20_000, 1_200_000)
    assert "req-plan" in {f.rule.id for f in too_many.findings}


@pytest.mark.parametrize(("entry", "verify"), [(100, 1_200_000), (20_000, 1_200_001)])
def test_capacities_that_can_not_be(tmp_path, entry, verify):
    with pytest.raises(InputError, match="is stated, but"):
        alone(tmp_path, 2048, entry, verify)


def test_two_of_three_capacities_are_not_enough(tmp_path):
    with pytest.raises(MissingInputsError):
        audit(make_request(config_path=write_config(tmp_path, "capacities: {write_req: 5, verify: 30}")))
