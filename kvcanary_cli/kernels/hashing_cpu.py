"""The canary's hashes for Numba. Twins: `hashing.py`, `hashing_ref.py`.

Everything here works on uint64; stamps hold the same bits as int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kvcanary_cli.kernels import hashing_ref
from kvcanary_cli.kernels._sources import (
    SOURCE_ADDRESS,
    SOURCE_PAGE_SIZE,
    SOURCE_ROW_STRIDE,
    SOURCE_TOKEN_BYTES,
    SOURCE_WORDS,
)

HEAD = np.uint64(hashing_ref.HEAD)

_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_WORD_BYTES = np.uint64(8)


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    """The uint64 at an address. The caller answers for the address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], cgutils.intp_t.as_pointer())
        return builder.load(pointer)

    return types.uint64(types.uint64), codegen


@intrinsic
def prefetch(typingctx: Any, words: Any, index: Any) -> Any:
    """Ask for the cache line of `words[index]`; an index outside the array does no harm."""
    if not isinstance(words, types.Array) or not isinstance(index, types.Integer):
        return None
    byte_pointer = ir.IntType(8).as_pointer()
    flag = ir.IntType(32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.gep(array.data, [args[1]])
        prototype = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, prototype, "llvm.prefetch.p0i8")
        read, most_local, data = flag(0), flag(3), flag(1)
        builder.call(function, [builder.bitcast(place, byte_pointer), read, most_local, data])
        return context.get_dummy_value()

    return types.void(words, types.int64), codegen


@njit(cache=True)
def mix(value):
    """The splitmix64 finaliser on uint64, without the increment."""
    value = (value ^ (value >> _SHIFT_1)) * _FACTOR_1
    value = (value ^ (value >> _SHIFT_2)) * _FACTOR_2
    return value ^ (value >> _SHIFT_3)


@njit(cache=True)
def chain(prev_hash, token, position):
    """Hash of the chain that ends with this token at this position; uint64 in and out."""
    return mix(mix(mix(prev_hash) ^ token) ^ position)


@njit(cache=True, error_model="numpy")
def hash_slot(table, slot):
    """Hash of a slot's bytes in all sources of a table ([sources, 5] int64, `source_table`), as uint64.

    `slot` is not negative and within every source; the launchers see to both.
    """
    value = np.uint64(0)
    for number in range(table.shape[0]):
        page_size = np.uint64(table[number, SOURCE_PAGE_SIZE])
        page = np.uint64(slot) // page_size
        offset = np.uint64(slot) - page * page_size
        address = np.uint64(table[number, SOURCE_ADDRESS])
        address += page * np.uint64(table[number, SOURCE_ROW_STRIDE])
        address += offset * np.uint64(table[number, SOURCE_TOKEN_BYTES])
        source_hash = np.uint64(0)
        for _ in range(table[number, SOURCE_WORDS]):
            source_hash = mix(source_hash ^ load_word(address))
            address += _WORD_BYTES
        value = mix(value ^ source_hash)
    return value
