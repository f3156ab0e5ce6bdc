"""The safetensors reader and writer: what they give back, and every file that is refused."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.safetensors import DTYPE_BITS, NUMPY_TYPES, open_safetensors, read_into
from kvcanary_cli.trace.safetensors_writer import RawTensor, write_safetensors
from tests.cli import spawn_without
from tests.scrub.dumps import file_of


def entry(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def refusal(path: str) -> InputError:
    with pytest.raises(InputError) as caught:
        open_safetensors(path)
    assert caught.value.where == path
    return caught.value


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numbers_come_back(tmp_path, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(NUMPY_TYPES[dtype])
    written = write_safetensors(tmp_path / "a", {"odd": np.arange(3, dtype=np.uint8), "x": array}, {"a": "é"})
    file = open_safetensors(str(tmp_path / "a"))
    assert (file.num_bytes, file.metadata) == (written, {"a": "é"})
    assert (file.tensors["x"].dtype, file.tensors["x"].shape) == (dtype, (2, 3, 4))
    np.testing.assert_array_equal(file.array_of("x"), array)
    assert file.bytes_of("x").tobytes() == array.tobytes()
    assert not file.bytes_of("x").flags.writeable


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_BITS) - set(NUMPY_TYPES)))
def test_other_types_come_back_as_bytes(tmp_path, dtype):
    data = np.arange(DTYPE_BITS[dtype], dtype=np.uint8)
    write_safetensors(tmp_path / "a", {"x": RawTensor(dtype=dtype, shape=(2, 4), data=data)})
    file = open_safetensors(str(tmp_path / "a"))
    assert file.bytes_of("x").tolist() == data.tolist()
    with pytest.raises(InputError, match=f"tensor 'x' is {dtype}, numbers are read of BOOL, U8"):
        file.array_of("x")


def test_layout_of_a_file_is_the_one_of_the_format(tmp_path):
    write_safetensors(tmp_path / "a", {"x": np.array([[1, 2]], np.int16)})
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert data[8 : 8 + length].rstrip() == b'{"x":{"dtype":"I16","shape":[1,2],"data_offsets":[0,4]}}'
    assert (8 + length) % 64 == 0
    assert data[8 + length :] == b"\x01\0\x02\0"


def test_scalars_empty_tensors_and_none_at_all(tmp_path):
    write_safetensors(tmp_path / "a", {"s": np.float32(2), "e": np.empty((0, 3), np.int8)})
    file = open_safetensors(str(tmp_path / "a"))
    assert (file.array_of("s").tolist(), file.array_of("e").shape) == (2.0, (0, 3))
    assert open_safetensors(file_of(tmp_path / "b", {})).tensors == {}


def test_tensors_are_in_the_order_of_their_bytes(tmp_path):
    path = file_of(tmp_path / "a", {"b": entry(offsets=(4, 8)), "a": entry()}, bytes(range(8)))
    file = open_safetensors(path)
    assert list(file.tensors) == ["a", "b"]
    assert file.bytes_of("b").tolist() == [4, 5, 6, 7]


def torch_save() -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return memory.getvalue()


NOT_SAFETENSORS = {
    "empty": (b"", "no tensors (the file is empty)"),
    "short": (b"\x01\0\0", "has 3 bytes, the length of a safetensors header alone takes 8"),
    "pickle": (pickle.dumps([1]), "is a pickle; loading it would run code, so it is refused"),
    "torch": (torch_save(), "is a zip archive (as of torch.save or npz); loading one can run code"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not the data"),
    "gzip": (b"\x1f\x8b" + bytes(20), "is compressed, tensors are read in place"),
    "text": (b'{"step": 1}\n' * 9, "its first 8 bytes say that the header has 4,188,"),
    "beyond": (
        (200).to_bytes(8, "little") + bytes(20),
        "the header has 200 bytes, the file ends after 20 of them",
    ),
    "large": (
        (100_000_001).to_bytes(8, "little"),
        "the header has 100,000,001 bytes, at most 100,000,000 are read",
    ),
}


@pytest.mark.parametrize("case", NOT_SAFETENSORS)
def test_files_that_are_something_else(tmp_path, case):
    content, message = NOT_SAFETENSORS[case]
    (tmp_path / "a").write_bytes(content)
    assert message.replace("4,188,", "") in str(refusal(str(tmp_path / "a")))


HEADERS = {
    "not utf-8": (b'{"\xff": 1}', "byte 10 of the header is not UTF-8"),
    "not json": (b"{", "the header is not JSON ("),
    "deep": (b"[" * 100_000, "the header is not JSON ("),
    "list": ([1], "the header is not a JSON object"),
    "repeated": (b'{"x": 1, "x": 2}', "the header has the key 'x' twice"),
    "repeated inside": (b'{"x": {"dtype": 1, "dtype": 2}}', "the header has the key 'dtype' twice"),
    "metadata": ({"__metadata__": {"a": 1}}, "$.__metadata__: is not a map of texts"),
    "metadata list": ({"__metadata__": []}, "$.__metadata__: is not a map of texts"),
    "no object": ({"x": 5}, "$.x: Expected `object`, got `int`"),
    "missing": ({"x": {"dtype": "U8", "shape": [1]}}, "$.x: Object missing required field `data_offsets`"),
    "unknown key": ({"x": entry(fmt=1)}, "$.x: Object contains unknown field `fmt`"),
    "bool size": ({"x": entry(shape=[True])}, "$.x: Expected `int`, got `bool`"),
    "dtype": ({"x": entry(dtype="BF61")}, "$.x.dtype: the type 'BF61' is not known, 22 are: BOOL"),
    "negative": ({"x": entry(shape=(-2, -2))}, "$.x.shape: a size is negative in [-2, -2]"),
    "backwards": ({"x": entry(offsets=(4, 0))}, "$.x.data_offsets: [4, 0] is no range of bytes"),
    "before": ({"x": entry(offsets=(-4, 0))}, "$.x.data_offsets: [-4, 0] is no range of bytes"),
    "size": ({"x": entry(dtype="F32")}, "$.x: F32 of shape [4] takes 16 bytes, its offsets hold 4 bytes"),
    "bits": (
        {"x": entry(dtype="F4", shape=(3,))},
        "$.x: F4 of shape [3] takes 12 bits, no whole number of bytes",
    ),
    "overlap": ({"a": entry(), "b": entry(offsets=(2, 6))}, "$.b: overlaps 'a' by 2 bytes"),
    "gap": ({"a": entry(), "b": entry(offsets=(5, 9))}, "$.b: 1 bytes before it belong to no tensor"),
    "gap at first": ({"b": entry(offsets=(2, 6))}, "$.b: 2 bytes before it belong to no tensor"),
    "end": ({"x": entry()}, "4 bytes at the end belong to no tensor"),
    "outside": ({"x": entry(shape=(9,), offsets=(0, 9))}, "the file has "),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_are_refused(tmp_path, case):
    header, message = HEADERS[case]
    assert message in str(refusal(file_of(tmp_path / "a", header, bytes(8))))


def test_a_near_type_is_a_hint(tmp_path):
    assert refusal(file_of(tmp_path / "a", {"x": entry(dtype="BF61")}, bytes(4))).hint == "did you mean BF16?"


def test_paths_that_are_refused(tmp_path):
    assert "no such file" in str(refusal(str(tmp_path / "none")))
    assert "not standard input" in refusal("-").hint
    assert "is a directory, a file is needed" in str(refusal(str(tmp_path)))
    with pytest.raises(InputError, match="can't be opened"):
        open_safetensors("a\0b")


def test_a_tensor_that_is_not_there(tmp_path):
    file = open_safetensors(file_of(tmp_path / "a", {"layers.1": entry()}, bytes(4)))
    with pytest.raises(InputError, match=r"there is no tensor 'layer.1' among 1") as caught:
        file.bytes_of("layer.1")
    assert caught.value.hint == "did you mean layers.1?"


def test_a_file_that_shrank(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    with pytest.raises(InputError, match="the file ends at byte 10, its header promises byte 24: it shrank"):
        read_into(descriptor, 8, np.empty(16, np.uint8), where="a")
    os.close(descriptor)


def test_what_can_not_be_written(tmp_path):
    with pytest.raises(ValueError, match="tensor 'x': the format has no type for complex128"):
        write_safetensors(tmp_path / "a", {"x": np.zeros(1, np.complex128)})
    with pytest.raises(ValueError, match="tensor 'x': the type 'F9' is not one of the format"):
        write_safetensors(tmp_path / "a", {"x": RawTensor(dtype="F9", shape=(1,), data=np.zeros(1))})
    with pytest.raises(ValueError, match="tensor 'x': 8 bytes for a shape that takes 32 bits"):
        write_safetensors(tmp_path / "a", {"x": RawTensor(dtype="BF16", shape=(2,), data=np.zeros(1))})
    with pytest.raises(ValueError, match="a tensor can't be called __metadata__"):
        write_safetensors(tmp_path / "a", {"__metadata__": np.zeros(1)})
    with pytest.raises(InputError, match="can't be written: No such file or directory"):
        write_safetensors(tmp_path / "no" / "a", {})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_file_before_it(tmp_path, monkeypatch):
    write_safetensors(tmp_path / "a", {"x": np.zeros(1)})
    before = (tmp_path / "a").read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="can't be written: No space left on device"):
        write_safetensors(tmp_path / "a", {"x": np.ones(1)})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == before


def test_a_pipe_is_written_and_not_replaced(tmp_path):
    # a device, such as /dev/null, neither: replaced by a file it would be gone for everybody
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    written = write_safetensors(tmp_path / "pipe", {"x": np.arange(4)})
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "a").write_bytes(os.read(reader, 4096))
    os.close(reader)
    assert (tmp_path / "a").stat().st_size == written
    assert open_safetensors(str(tmp_path / "a")).array_of("x").tolist() == [0, 1, 2, 3]


def test_a_link_is_followed(tmp_path):
    write_safetensors(tmp_path / "a", {"x": np.zeros(1)})
    (tmp_path / "link").symlink_to("a")
    write_safetensors(tmp_path / "link", {"x": np.ones(1)})
    assert (tmp_path / "link").is_symlink()
    assert open_safetensors(str(tmp_path / "a")).array_of("x").tolist() == [1]


def test_neither_needs_numba_or_torch():
    done = spawn_without({"numba", "torch", "triton"}, "--version")
    assert done.code == 0
