"""The hash that cuts ranges: the vectorised one says what its definition says, key by key."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm import boundary

MULTIPLIER, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


def defined(key: bytes) -> int:
    """Eight bytes at a time, the last ones padded with zeros, folded into the length."""
    state = len(key) * MULTIPLIER & BITS
    for at in range(0, len(key), 8):
        folded = (state ^ int.from_bytes(key[at : at + 8], "little")) * MULTIPLIER & BITS
        state = folded ^ folded >> 29
    return state


def hashed(keys: list[bytes], before: bytes = b"") -> list[int]:
    offsets = np.cumsum([len(before), *map(len, keys)]).astype(np.int32)
    return [int(value) for value in boundary.hash_keys(offsets, before + b"".join(keys))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=100), max_size=50), st.binary(max_size=9))
def test_many_keys_hash_as_defined_wherever_they_begin(keys: list[bytes], before: bytes) -> None:
    assert hashed(keys, before) == [defined(key) for key in keys]


def test_keys_of_several_blocks_hash_as_defined() -> None:
    keys = [b"k%d" % number * (1 + number % 7) for number in range(20_000)]
    assert hashed(keys) == [defined(key) for key in keys]
