import gzip

import pytest

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.trace.formats import MOONCAKE, REQUEST_FORMATS, TRACE_V1, open_requests, sniff


def written(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"ev": "header", "format": "kvcanary-trace"}\n', TRACE_V1),
        ('\n{"ev":"note"}\n', TRACE_V1),
        ('{"ev": "header", "form', TRACE_V1),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n', MOONCAKE),
        ('{"timestamp": 1000.0, "input_length": 5, "output_length": 1}\n', MOONCAKE),
        # damaged rows go to the reader, which says what is wrong with them
        ('{"input_length": true, "output_length": 1, "hash_ids": [0]}\n', MOONCAKE),
        ('{"timestamp": 0, "input_length": 5, "output_len', MOONCAKE),
        ('{"timestamp": NaN, "input_length": 5}\n', MOONCAKE),
    ],
)
def test_known_formats_whatever_the_file_is_called(tmp_path, text, found):
    assert sniff(written(tmp_path, text, "data.csv")) == found
    assert sniff(written(tmp_path, gzip.compress(text.encode()), "data.txt")) == found


@pytest.mark.parametrize(
    "text",
    [
        '{"chat_id": 0, "timestamp": 0.0, "input_length": 502, "output_length": 9, "hash_ids": [1]}\n',
        '{"timestamp": 61.114, "input_length": 502, "output_length": 9}\n',
        '{"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": {"history": []}}\n',
        '{"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": [1]}\n',
        '{"timestamp": 82, "input_length": 3112, "hash_ids": {"history": []}}\n',
        '{"timestamp": 1723, "event": {}}\n',
        '"timestamp input_length"\n',
        '"timestamp","input_length","output_length"\n',
    ],
    ids=lambda text: text[:24],
)
def test_other_formats_are_not_taken_for_known_ones(tmp_path, text):
    with pytest.raises(InputError):
        sniff(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4}', "dynamo-agentic"),
        ('{"schema": "dynamo.agentic_mooncake", "ver', "dynamo-agentic"),
        ('{"schema": "dynamo.request.trace.v1", "event_type": "request_end"}', "dynamo"),
        ('{"event_type": "request_payload", "request_id": "r"}', "dynamo"),
        ('{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 502}', "bailian"),
        ('{"input_toks": 10, "output_toks": 70}', "llmservingsim"),
        ('{"session_id": "s", "arrival_time_ns": 5, "sub_requests": []}', "llmservingsim"),
        ('{"num_turns": 1, "input_prompt_length": 20}', "applied-compute"),
        ('{"timestamp": 1.5, "seq_len": 600, "chunk_hashes": []}', "lmcache-lookup"),
        (
            '{"timestamp": "82", "input_length": 31, "hash_ids": {"history": []}, "session_id": "s"}',
            "ragpulse",
        ),
        ('{"request_id": 0, "type": "text", "input_length": 271, "hash_ids": [0]}', "servegen"),
        ('{"id": "x", "block_size": 64, "requests": [], "totals": {}}', "weka"),
        ('{\n"id": "x",\n"block_size": 64,\n"requests": []\n}', "weka"),
        ('{"created_time": 5, "input_tokens": 20, "output_tokens": 3}', "mooncake"),
        ('{"messages": [], "output_length": 4, "timestamp": 3}', "mooncake"),
    ],
)
def test_request_traces_by_the_keys_of_their_first_row(tmp_path, text, found):
    assert sniff(written(tmp_path, text + "\n", "data.csv")) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"conversations": [{"from": "human"}], "id": "x"}',
            "is a data set of texts: it has no arrival times and",
        ),
        ('{"prompt": "Hi"}', "is a data set of texts: it has no arrival times and no lengths in tokens"),
        (
            '{"type": "master_rpc_trace", "time_unit": "us"}',
            "is a log of Mooncake's store, whose operations are",
        ),
        ('{"passage_id": 0, "token_length": 84}', "is a side table of RAGPulse"),
    ],
)
def test_files_that_are_no_request_traces(tmp_path, text, message):
    path = written(tmp_path, text + "\n")
    with pytest.raises(InputError, match=message) as caught:
        sniff(path)
    assert caught.value.where == f"{path}:1"


def test_registry_has_every_format():
    for name, found in REQUEST_FORMATS.items():
        assert found.name == name
        assert found.title


def test_unknown_format_name_is_met_with_the_closest(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_requests("x", format_name="moncake")
    assert caught.value.message.startswith("`--input-format` is 'moncake', known are trace-v1, mooncake, ")
    assert caught.value.hint == "did you mean mooncake?"


def test_format_can_be_forced(tmp_path):
    row = '{"timestamp": 5, "input_length": 20, "output_length": 3}\n'
    with pytest.raises(InputError, match='key "chat_id" is missing'):
        open_requests(written(tmp_path, row), format_name="bailian")


def test_a_trace_is_no_request_trace_and_a_pipe_needs_a_name(tmp_path):
    with pytest.raises(InputError, match="is a trace v1, a request trace is needed"):
        open_requests(written(tmp_path, '{"ev": "header"}\n'))
    with pytest.raises(InputError, match="<stdin>: the format of a pipe has to be named"):
        open_requests("-")


def test_unknown_format_shows_its_first_line_and_lists_the_known(tmp_path):
    path = written(tmp_path, "\nTIME,TOKENS\n1,2\n")
    with pytest.raises(InputError) as caught:
        sniff(path)
    assert str(caught.value) == f"{path}:2: the format is not known, the first line is: TIME,TOKENS"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("`--input-format NAME` forces one of mooncake, ")


def test_long_first_line_is_cut(tmp_path):
    with pytest.raises(InputError) as caught:
        sniff(written(tmp_path, "x" * 200))
    assert caught.value.message.endswith("is: " + "x" * 80 + "...")


def test_files_without_records_are_refused_by_what_they_are(tmp_path):
    with pytest.raises(InputError, match="no records"):
        sniff(written(tmp_path, "\n\n"))
    with pytest.raises(InputError, match="Git LFS pointer"):
        sniff(written(tmp_path, "version https://git-lfs.github.com/spec/v1\nsize 5\n"))


def test_standard_input_counts_as_a_trace():
    assert sniff("-") == TRACE_V1
