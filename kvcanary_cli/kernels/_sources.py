"""KV byte sources, whatever the array library: their rules, and the table of numbers that kernels walk.

A source is one KV tensor seen as bytes, one row a page. Slot s lies in row `s // page_size`, from column
`(s % page_size) * num_bytes_per_token` on. Kernels take any number of sources as one table of addresses, so
that neither Numba nor Triton compiles anew for another number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels._checks import check_dtype, check_rank, device_name, is_torch
from kvcanary_cli.kernels.consts import PARTIAL_BYTES, HashMode

# columns of a source table row, all int64
SOURCE_ADDRESS, SOURCE_ROW_STRIDE, SOURCE_PAGE_SIZE, SOURCE_TOKEN_BYTES, SOURCE_WORDS = range(5)
SOURCE_COLUMNS = 5

GRAIN = 16  # bytes; addresses, strides and lengths are multiples of it, so that kernels read 16 bytes at once


@dataclass(frozen=True)
class KvSource:
    """One KV tensor, seen as bytes.

    Args:
        tensor: [pages, row_bytes] uint8, rows contiguous, 16-byte aligned, at least
            page_size * num_bytes_per_token wide; the distance between rows may be larger.
        page_size: slots a row.
        num_bytes_per_token: bytes from one slot of a row to the next, a multiple of 16.
        read_bytes: leading bytes of a slot that are hashed in mode ALL, a multiple of 16.

    ValueError names the field, the rule and the value.
    """

    tensor: Any
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        check_dtype("KvSource.tensor", self.tensor, "uint8")
        check_rank("KvSource.tensor", self.tensor, 2)
        if self.page_size < 1:
            _refuse("page_size", "be positive", self.page_size)
        _check_grain("num_bytes_per_token", self.num_bytes_per_token)
        _check_grain("read_bytes", self.read_bytes)
        if self.read_bytes > self.num_bytes_per_token:
            rule = f"be at most num_bytes_per_token={self.num_bytes_per_token}"
            _refuse("read_bytes", rule, self.read_bytes)
        self._check_memory()

    def _check_memory(self) -> None:
        pages, row_bytes = (int(size) for size in self.tensor.shape)
        row_stride, byte_stride = self._strides()
        if row_bytes < self.page_size * self.num_bytes_per_token:
            wanted = self.page_size * self.num_bytes_per_token
            rule = f"have rows of page_size * num_bytes_per_token={wanted} bytes"
            _refuse("tensor", rule, row_bytes)
        if byte_stride != 1:
            _refuse("tensor", "have contiguous rows", f"a stride of {byte_stride} bytes")
        if pages > 1 and (row_stride < row_bytes or row_stride % GRAIN):
            rule = f"have rows at a distance of at least {row_bytes} bytes and a multiple of {GRAIN}"
            _refuse("tensor", rule, row_stride)
        if self.address % GRAIN:
            _refuse("tensor", f"be aligned to {GRAIN} bytes", f"address 0x{self.address:x}")

    def _strides(self) -> tuple[int, int]:
        if is_torch(self.tensor):
            row, byte = self.tensor.stride()
            return int(row), int(byte)
        row, byte = self.tensor.strides
        return int(row), int(byte)

    @property
    def address(self) -> int:
        """Address of the first byte, on the tensor's device."""
        if is_torch(self.tensor):
            return int(self.tensor.data_ptr())
        return int(self.tensor.ctypes.data)

    @property
    def num_slots(self) -> int:
        """Slots the tensor has bytes for."""
        return int(self.tensor.shape[0]) * self.page_size

    def hashed_bytes(self, hash_mode: int) -> int:
        """Leading bytes of a slot that this mode reads."""
        if hash_mode == HashMode.NONE:
            return 0
        return min(self.read_bytes, PARTIAL_BYTES) if hash_mode == HashMode.PARTIAL else self.read_bytes


def table_rows(sources: Sequence[KvSource], hash_mode: int) -> tuple[tuple[int, ...], ...]:
    """The source table: one row of `SOURCE_COLUMNS` numbers a source, none at all in mode NONE."""
    if hash_mode == HashMode.NONE:
        return ()
    return tuple(
        (
            source.address,
            source._strides()[0],
            source.page_size,
            source.num_bytes_per_token,
            source.hashed_bytes(hash_mode) // 8,
        )
        for source in sources
    )


def check_sources(sources: Sequence[KvSource], hash_mode: int, num_slots: int, buffer: Any) -> None:
    """ValueError unless the mode is known and each source has bytes for every slot, where the stamps are."""
    if hash_mode not in tuple(HashMode):
        known = ", ".join(f"{mode.name} ({mode.value})" for mode in HashMode)
        raise ValueError(messages.broken_rule("hash_mode", f"be one of {known}", hash_mode))
    for number, source in enumerate(sources):
        name = f"sources[{number}].tensor"
        if source.num_slots < num_slots:
            rule = f"have bytes for all {num_slots} slots of canary_buf"
            raise ValueError(messages.broken_rule(name, rule, source.num_slots))
        if device_name(source.tensor) != device_name(buffer):
            want, got = device_name(buffer), device_name(source.tensor)
            raise ValueError(messages.wrong_device(name, "canary_buf", want, got))


def _check_grain(field: str, value: int) -> None:
    if value < GRAIN or value % GRAIN:
        _refuse(field, f"be a positive multiple of {GRAIN}", value)


def _refuse(field: str, rule: str, got: object) -> None:
    raise ValueError(messages.broken_rule(f"KvSource.{field}", rule, got))
