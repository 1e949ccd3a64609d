"""Where a Range ends: decided by content, so equal content is cut alike whoever wrote it and in whatever order.

A range ends after a key whose hash is among the lowest one in ROWS_MEAN, or where its weight reaches WEIGHT_MAX. A
local edit therefore moves few boundaries: after the next key that ends a range by its hash, all is as before.

The hash is ours because it must never change: stored trees depend on it. It folds 8 bytes of the key at a time for
many keys at once, which numpy does at 20 M keys a second.
"""

from typing import Any

import numpy as np

ROWS_MEAN = 32 * 1024  # a range is about 2 MB in Parquet: one request to read, few ranges for a million keys
WEIGHT_MAX = 32 * 1024 * 1024  # four times the usual weight of a mean range: bounds memory for large metadata

_BLOCK = 8 * 1024  # keys hashed at a time, so that intermediate arrays stay in the processor's cache
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _ONE = np.uint64(29), np.uint64(1)
_MASKS = np.array([(1 << 8 * left) - 1 for left in range(9)], np.uint64)  # of a word's first so many bytes

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def hash_keys(offsets: np.ndarray[Any, np.dtype[np.int32]], data: Any) -> Hashes:
    """A stable 64-bit hash of each key."""
    count = len(offsets) - 1
    hashes = np.empty(count, np.uint64)
    if not count:
        return hashes
    for block in range(0, count, _BLOCK):
        some = offsets[block : block + _BLOCK + 1]
        first, last = int(some[0]), int(some[-1])
        padding = np.zeros(16 + (first - last) % 8, np.uint8)  # a word beyond the last key may be looked at, not used
        padded = np.concatenate([np.frombuffer(data, np.uint8, last - first, first), padding])
        hashes[block : block + _BLOCK] = _hash_block(
            padded.view("<u8"), some[:-1].astype(np.int64) - first, np.diff(some)
        )
    return hashes


def _hash_block(words: Any, starts: Any, lengths: Any) -> Hashes:
    """Keys begin anywhere, but reading aligned words and shifting them is twice as fast as gathering unaligned ones."""
    state: Hashes = lengths.astype(np.uint64) * _MULTIPLIER
    shift = (starts & 7).astype(np.uint64) << np.uint64(3)
    unshift = np.uint64(63) - shift  # after a shift by one: shifting by 64 is not defined
    at = starts >> 3
    low = words[at]
    for position in range(0, int(lengths.max()), 8):
        at += 1
        high = words.take(at, mode="clip")
        low >>= shift
        low |= (high << _ONE) << unshift
        if (left := lengths - position).min() >= 8:
            state ^= low
            state *= _MULTIPLIER
            state ^= state >> _SHIFT
        else:
            low &= _MASKS.take(left, mode="clip")
            folded = (state ^ low) * _MULTIPLIER
            state = np.where(left > 0, folded ^ (folded >> _SHIFT), state)
        low = high
    return state


def ends(
    offsets: np.ndarray[Any, np.dtype[np.int32]], data: Any, rows_mean: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each key, whether a range ends after it by its hash."""
    ending: np.ndarray[Any, np.dtype[np.bool_]] = hash_keys(offsets, data) >> np.uint64(20) < _threshold(rows_mean)
    return ending


def _threshold(rows_mean: int) -> np.uint64:
    return np.uint64((1 << 44) // rows_mean)


def ends_after(key: bytes, rows_mean: int) -> bool:
    """Whether a range ends after this one key by its hash."""
    return bool(ends(np.array([0, len(key)], np.int32), key, rows_mean)[0])


def cuts(ending: Any, weights: Any, weight_max: int) -> list[int]:
    """The row numbers after which to cut, given each row's ending flag and weight, beginning after a cut. Each cut
    depends on the rows before it alone, so a range that is kept by reference stays right whatever follows it."""
    result: list[int] = []
    total = np.cumsum(weights)
    start = 0
    for stop in [*(np.flatnonzero(ending) + 1).tolist(), len(weights)]:
        while start < stop:
            forced = _reaches(total, start, weight_max)
            if forced >= stop:
                break
            result.append(forced)
            start = forced
        if start < stop and (ending[stop - 1] or _reaches(total, start, weight_max) == stop):
            result.append(stop)
            start = stop
    return result


def _reaches(total: Any, start: int, weight_max: int) -> int:
    """The row number after which the rows from `start` weigh weight_max or more; past the end if they never do."""
    base = total[start - 1] if start else 0
    return int(np.searchsorted(total, base + weight_max, side="left")) + 1
