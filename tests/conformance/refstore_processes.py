"""Writers that are processes of their own, each with a fresh interpreter: nothing but the store is shared."""

import asyncio
import multiprocessing
import traceback

from refstore.errors import Conflict, Unavailable
from refstore.refs import Refs
from tests.conformance.refstore_backends import open_address
from tests.conformance.refstore_histories import append, replace

JOIN_SECONDS_MAX = 180.0  # of a store with slow appends, on a busy machine


def write_in_processes(address: str, repository: str, processes: int, appends: int) -> None:
    """Each process appends its own tables to one branch, all at once; the first also compacts now and then."""
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    workers = [
        context.Process(target=_write, args=(address, repository, number, appends, failures))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(JOIN_SECONDS_MAX)
        if worker.is_alive():
            worker.kill()
            worker.join()
    codes = [worker.exitcode for worker in workers]
    if any(codes):
        raise AssertionError(f"exit codes {codes}: {'killed' if failures.empty() else failures.get()}")


def _write(
    address: str, repository: str, number: int, appends: int, failures: "multiprocessing.SimpleQueue[str]"
) -> None:
    try:
        asyncio.run(_append_all(address, repository, number, appends))
    except BaseException:
        failures.put(traceback.format_exc()[-4000:])
        raise


async def _append_all(address: str, repository: str, number: int, appends: int) -> None:
    store = open_address(address)
    try:
        for seq in range(1, appends + 1):
            await _append(store, repository, f"w{number}", seq)
            if number == 0 and seq % 10 == 0:
                await _compact(store, repository, f"run-{seq}")
    finally:
        await store.aclose()


async def _append(store: Refs, repository: str, writer: str, seq: int) -> None:
    """As a writer does: an append that lost its answer or too many races is repeated, which its number makes safe."""
    while True:
        try:
            await store.change(repository, "main", append(seq, writer))
            return
        except Unavailable:
            await asyncio.sleep(0.01)


async def _compact(store: Refs, repository: str, run: str) -> None:
    branch = await store.read(repository, "main")
    try:
        await store.change(repository, "main", replace(branch.l1[:5], branch.l2, run))
    except (Conflict, Unavailable):
        return  # others were first; the next round compacts
