"""The only place that knows time, randomness and new ids, so that a seed replays a bug."""

import random
import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall clock time in microseconds: for people, never for order."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """An id that nobody else makes: 20 characters of [0-9a-v], 100 random bits."""
        ...


_DIGITS = "0123456789abcdefghijklmnopqrstuv"


class SystemClock:
    """The machine's clock and its entropy."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def jitter(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return id_of(self._random.getrandbits(100))


def id_of(bits: int) -> str:
    """100 bits as 20 characters."""
    return "".join(_DIGITS[bits >> shift & 31] for shift in range(95, -1, -5))
