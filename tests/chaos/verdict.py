"""The end of a chaos run: everything that the stores hold is compared with the ledgers, by a client without a cache."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lsmfs.repository import Repository
from lsmfs.tree.commits import Commit
from refstore.errors import NotFound
from refstore.refs import replay
from tests.chaos.checker import Content, expect_none, violations
from tests.chaos.lake import BRANCH, REPOSITORY, committed, got, scanned, value_of
from tests.chaos.ledger import Ledger, between, load

LIMIT = 10**6  # commits and events of a run: far more than a minute makes


async def judge(repository: Repository, folder: Path) -> Counter[str]:
    """Compare everything, with a final commit in between; what was counted on the way."""
    ledgers = load(folder)
    content = await scanned(repository)
    expect_none(violations(ledgers, content))
    final = await repository.commit(BRANCH, "final", allow_empty=True)
    assert await committed(repository, final.commit) == content
    assert await scanned(repository) == content
    await _check_point_reads(repository, ledgers, content)
    commits = await _check_commits(repository, folder, ledgers)
    return _counted(ledgers) + Counter(commits=commits) + await _check_journal(repository)


async def _check_point_reads(repository: Repository, ledgers: Mapping[str, Ledger], content: Content) -> None:
    """Each key that anybody ever wrote, alone and together with the others."""
    keys = sorted({key for ledger in ledgers.values() for intent in ledger.intents for key in intent.changes})
    assert await got(repository, keys) == content
    for key in keys:
        assert await _get(repository, key) == content.get(key), key


async def _get(repository: Repository, key: str) -> str | None:
    try:
        return value_of(await repository.get(BRANCH, key))
    except NotFound:
        return None


async def _check_commits(repository: Repository, folder: Path, ledgers: Mapping[str, Ledger]) -> int:
    """Every commit of the log can be read whole. Every one that was acknowledged is in the log, holds what was
    acknowledged before it began, and nothing that was begun after it ended."""
    log: dict[str, Commit] = {identity: commit async for identity, commit in repository.log(BRANCH, LIMIT)}
    contents = {identity: await committed(repository, commit) for identity, commit in log.items()}
    for done in (done for ledger in ledgers.values() for done in ledger.commits):
        assert done.id in log, f"commit {done.id} was acknowledged and is not in the log"
        seen = between(load(folder, done.before), load(folder, done.after))
        expect_none(f"commit {done.id}: {text}" for text in violations(seen, contents[done.id]))
    return len(log)


async def _check_journal(repository: Repository) -> Counter[str]:
    """Replaying the journal gives the head; how many events it has, by change."""
    events = await repository.refs.events(REPOSITORY, LIMIT)
    assert replay(events)[BRANCH] == await repository.refs.read(REPOSITORY, BRANCH)
    return Counter(f"{type(event.change).__name__.lower()} events" for event in events)


def _counted(ledgers: Mapping[str, Ledger]) -> Counter[str]:
    """What was acknowledged, by what it was, and what was not."""
    found: Counter[str] = Counter()
    for ledger in ledgers.values():
        found["acknowledged commits"] += len(ledger.commits)
        for intent in ledger.intents:
            outcome = ledger.outcomes.get(intent.number, "unheard")
            what = "claims" if intent.kind == "absent" else "units" if len(intent.changes) > 1 else "writes"
            found[f"{outcome} {what}"] += 1
    return found
