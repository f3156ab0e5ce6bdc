"""Pasted launch commands and files that hold one."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.audit import audit
from kvcanary_cli.capacity.command import read_args_file, read_command
from kvcanary_cli.capacity.flags import flag_table
from kvcanary_cli.capacity.origin import COMMAND_LINE
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.tables import find_version
from kvcanary_cli.errors import InputError, UsageError

TABLE = flag_table(find_version("0.5.23"))
TP = {"--tp-size": 8}


def read(*words: str):
    return read_command(words, TABLE, COMMAND_LINE)


def values(arguments) -> dict[str, object]:
    return {name: given.value for name, given in arguments.values.items()}


@pytest.mark.parametrize(
    "line",
    [
        "python -m sglang.launch_server --tp 8",
        "python3 -m sglang.launch_server --tp 8",
        "/opt/venv/bin/python3.12 -u -m sglang.launch_server --tp 8",
        "sglang serve --tp 8",
        "/usr/bin/sglang serve --tp 8",
        "python /src/sglang/launch_server.py --tp 8",
        "uv run python -m sglang.launch_server --tp 8",
        "docker run --gpus all -p 30000:30000 lmsysorg/sglang:latest python3 -m sglang.launch_server --tp 8",
        "--tp 8",
        "python -m sglang.launch_server --tp 8 > log.txt",
        "python -m sglang.launch_server --tp 8 2>&1 | tee log",
        "python -m sglang.launch_server --tp 8 &",
        "python -m sglang.launch_server --tp 8; echo done",
        "cd /srv && python -m sglang.launch_server --tp 8 && echo done",
    ],
)
def test_programs(line):
    assert values(read(*line.split(" "))) == TP


@pytest.mark.parametrize(
    "line",
    [
        "A=1 B=two python -m sglang.launch_server --tp 8",
        "env A=1 B=two sglang serve --tp 8",
        "export A=1; export B=two; sglang serve --tp 8",
        "docker run -e A=1 -e B=two image python -m sglang.launch_server --tp 8",
        "A=1 B=two --tp 8",
    ],
)
def test_environment_in_front(line):
    found = read(*line.split(" "))
    assert {name: given.value for name, given in found.env.items()} == {"A": "1", "B": "two"}
    assert values(found) == TP


def test_an_assignment_behind_the_program_is_not_environment():
    with pytest.raises(UsageError, match="`A=1` is neither a flag"):
        read("sglang", "serve", "A=1")


def test_no_flags_at_all():
    assert values(read("sglang", "serve")) == {}


@pytest.mark.parametrize("words", [["python", "-m", "vllm.serve", "--tp", "8"], ["sglang", "chat"], ["8"]])
def test_other_programs(words):
    with pytest.raises(UsageError) as caught:
        read(*words)
    assert str(caught.value) == (
        f"`{words[0]}` starts no server: no `sglang.launch_server` and no `sglang serve` follows"
    )


def test_nothing():
    with pytest.raises(UsageError, match=r"^there is no launch command$"):
        read()


def args_file(tmp_path, text: str) -> str:
    path = tmp_path / "launch.sh"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_args_file(tmp_path):
    path = args_file(
        tmp_path,
        "#!/bin/bash\n"
        "export SGLANG_KV_CANARY_RING_CAPACITY=2048  # rows\n"
        "exec python -m sglang.launch_server \\\n"
        "  --model-path 'my model' \\\n"
        '  --cuda-graph-config "{\\"decode\\": {\\"max_bs\\": 8}}" \\\r\n'
        "  --tp 8\n",
    )
    found = read_args_file(path, TABLE)
    assert values(found) == {
        "--model-path": "my model",
        "--cuda-graph-config": '{"decode": {"max_bs": 8}}',
        "--tp-size": 8,
    }
    assert found.env["SGLANG_KV_CANARY_RING_CAPACITY"].value == "2048"
    assert found.values["--tp-size"].place.file == path


def test_a_backslash_at_the_end_of_a_line_joins_words(tmp_path):
    path = args_file(tmp_path, "--model-path my\\\nmodel --t\\\r\np 8\n")
    assert values(read_args_file(path, TABLE)) == {"--model-path": "mymodel", "--tp-size": 8}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("--tp 8 \\\n--model-path 'x\n--dp 2\n", 2, "a quote or backslash begins here and does not end"),
        ('"', 1, "a quote or backslash begins here and does not end"),
        ("--tp 8\n--model-path x \\", 2, "a quote or backslash begins here and does not end"),
    ],
)
def test_open_quotes_in_a_file(tmp_path, text, line, message):
    path = args_file(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_args_file(path, TABLE)
    assert caught.value.where == f"{path}:{line}"


def test_shell_variables_are_left_alone(tmp_path):
    path = args_file(
        tmp_path,
        'sglang serve --port $PORT --model-path "$MODEL" --tp 8 $EXTRA "${MORE[@]}" --log-level ${LEVEL}\n',
    )
    found = read_args_file(path, TABLE)
    assert values(found) == {
        "--port": "$PORT",
        "--model-path": "$MODEL",
        "--tp-size": 8,
        "--log-level": "${LEVEL}",
    }
    assert found.unknown == ("$EXTRA", "${MORE[@]}")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--tp $TP", "--tp` is `$TP"),
        ("--chunked-prefill-size ${CHUNK}", "--chunked-prefill-size` is `${CHUNK}"),
        ("--max-total-tokens=$N", "--max-total-tokens` is `$N"),
        ("--cuda-graph-bs-decode $SIZES", "--cuda-graph-bs-decode` is `$SIZES"),
        ("--mem-fraction-static $M", "--mem-fraction-static` is `$M"),
        ("--kv-cache-dtype $(dtype)", "--kv-cache-dtype` is `$(dtype)"),
    ],
)
def test_a_variable_in_place_of_a_number_that_matters(tmp_path, words, flag):
    path = args_file(tmp_path, f"sglang serve {words}\n")
    options = {"pool_tokens": "400000", "context_length": "4096", "gpu": "H100"}
    with pytest.raises(InputError) as caught:
        audit(make_request(args_file=path, **options))
    assert f"`{flag}`, a shell variable whose value is not known here" in str(caught.value)
    assert caught.value.where == path


def test_a_variable_may_be_given_again(tmp_path):
    path = args_file(tmp_path, "sglang serve --tp $TP --port $PORT\n")
    options = {"pool_tokens": "400000", "context_length": "4096", "gpu": "H100"}
    result = audit(make_request(args_file=path, command=["--tp", "4"], **options))
    assert result.setup.parallel.tp == 4


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_files_without_a_command(tmp_path, text):
    with pytest.raises(InputError, match="the file holds no launch command"):
        read_args_file(args_file(tmp_path, text), TABLE)


def test_errors_in_a_file_name_it(tmp_path):
    path = args_file(tmp_path, "--tp eight")
    with pytest.raises(InputError) as caught:
        read_args_file(path, TABLE)
    assert str(caught.value) == f"{path}: `--tp` wants an integer, found `eight`"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "No such file"),
        ("folder", "Is a directory"),
        ("bytes", "byte 1 is not UTF-8 text"),
        ("a\0b", "null byte"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"-\xff")
    with pytest.raises(InputError, match=message) as caught:
        read_args_file(str(tmp_path / name), TABLE)
    assert caught.value.where == str(tmp_path / name)
