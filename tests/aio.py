"""`@aio` makes an async test a plain one, in a fresh event loop: all that we need of an asyncio plugin."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")


def aio(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run the async test with `asyncio.run`; its name, arguments and marks stay, so pytest sees its fixtures."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
