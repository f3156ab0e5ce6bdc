import gzip

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import MOONCAKE, TRACE_V1, sniff


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
        '{"schema": "dynamo.agentic_mooncake", "version": 2, "input_length": 5, "output_length": 1}\n',
        '{"request_id": 0, "type": "text", "input_length": 271, "hash_ids": [0]}\n',
        '{"timestamp": 1723, "event": {}}\n',
        '{"input_toks": 10, "output_toks": 70}\n',
        '"timestamp input_length"\n',
        '"timestamp","input_length","output_length"\n',
    ],
    ids=lambda text: text[:24],
)
def test_other_formats_are_not_taken_for_known_ones(tmp_path, text):
    with pytest.raises(InputError):
        sniff(written(tmp_path, text))


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
