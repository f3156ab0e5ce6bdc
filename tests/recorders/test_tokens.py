"""Hashed token ids: in range, equal where replay compares, and of no use to a reader."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.recorders.tokens import Tokens

IDS = np.arange(1000, dtype=np.int64)


def test_same_token_at_the_same_place_is_equal_and_elsewhere_not():
    tokens = Tokens(is_hashed=True)
    assert np.array_equal(tokens.run(IDS, 5), tokens.run(IDS, 5))
    assert not np.array_equal(tokens.run(IDS, 5), tokens.run(IDS, 6))
    assert len(np.unique(tokens.run(np.full(1000, 7), 0))) == 1000


def test_every_recorder_has_a_salt_of_its_own():
    assert not np.array_equal(Tokens(is_hashed=True).run(IDS, 0), Tokens(is_hashed=True).run(IDS, 0))


def test_hashes_are_in_the_range_of_the_format():
    hashed = Tokens(is_hashed=True).run(np.array([0, 1, 151_935, -1, 1 << 40, (1 << 62) + 1]), 0)
    assert ((hashed >= 0) & (hashed < 1 << 31)).all()
    assert len(np.unique(hashed)) == 6


def test_siphash_1_3_of_one_block():
    # the reference algorithm written out with Python's integers
    salt = bytes(range(16))
    word = 77 | 5 << 32
    assert int(Tokens(is_hashed=True, salt=salt).at(np.array([77]), np.array([5]))[0]) == reference(
        salt, word
    )


def reference(salt: bytes, word: int) -> int:
    mask = (1 << 64) - 1
    k0, k1 = int.from_bytes(salt[:8], "little"), int.from_bytes(salt[8:], "little")
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rotate(value, by):
        return (value << by | value >> (64 - by)) & mask

    def sip_round():
        v[0] = v[0] + v[1] & mask
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = v[2] + v[3] & mask
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = v[0] + v[3] & mask
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = v[2] + v[1] & mask
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    for block in (word, 8 << 56):
        v[3] ^= block
        sip_round()
        v[0] ^= block
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return (v[0] ^ v[1] ^ v[2] ^ v[3]) & 0x7FFFFFFF


def test_plain_ids_stay_as_they_are_unless_the_format_has_no_room_for_them():
    tokens = Tokens(is_hashed=False)
    assert np.array_equal(tokens.run(IDS, 0), IDS)
    odd = tokens.run(np.array([3, -1, 1 << 40]), 0)
    assert odd[0] == 3
    assert ((odd >= 0) & (odd < 1 << 31)).all()
