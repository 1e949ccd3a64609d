"""`@aio` makes an async test a plain one, in a fresh event loop: all that we need of an asyncio plugin."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")

HANGS_AFTER_SECONDS = 300  # no test takes nearly as long: one that waits forever fails, and says where it waited


def aio(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run the async test with `asyncio.run`; its name, arguments and marks stay, so pytest sees its fixtures."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(HANGS_AFTER_SECONDS):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run
