"""The `lakefs` package from PyPI, unchanged, against the API."""

import io
from collections.abc import Iterator
from pathlib import Path

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import ConflictException, NotFoundException, ObjectExistsException

from tests.api.live import serving
from tests.api.support import ADMIN

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path / "lake") as url:
        yield Client(  # type: ignore[no-untyped-call]
            host=url, username=ADMIN.access_key_id, password=ADMIN.secret
        )


@pytest.fixture
def repository(client: Client) -> lakefs.Repository:
    return lakefs.Repository("lake", client=client).create("local://lake")


def test_a_repository_is_created_listed_found_and_deleted(client: Client) -> None:
    repository = lakefs.Repository("lake", client=client).create("local://lake", default_branch="trunk")
    assert repository.properties.default_branch == "trunk"
    assert [each.id for each in lakefs.repositories(client=client)] == ["lake"]
    with pytest.raises(ConflictException):
        lakefs.Repository("lake", client=client).create("local://lake")
    assert lakefs.Repository("lake", client=client).create("local://lake", exist_ok=True).id == "lake"
    repository.delete()
    assert list(lakefs.repositories(client=client)) == []
    with pytest.raises(NotFoundException):
        _ = lakefs.Repository("lake", client=client).metadata


def test_metadata_of_a_repository_comes_back(repository: lakefs.Repository) -> None:
    assert dict(repository.metadata) == {}


def test_objects_are_uploaded_read_listed_and_deleted(repository: lakefs.Repository) -> None:
    branch = repository.branch("main")
    made = branch.object("a/b c+d.txt").upload("hello", content_type="text/plain", metadata={"colour": "red"})
    assert made.stat().metadata == {"colour": "red"}
    assert made.stat().content_type == "text/plain"
    with made.reader(mode="rb") as reader:
        assert reader.read(2) == b"he"
        reader.seek(1)
        assert reader.read() == b"ello"
    assert [each.path for each in branch.objects(prefix="a/")] == ["a/b c+d.txt"]
    assert [type(each).__name__ for each in branch.objects(delimiter="/")] == ["CommonPrefix"]
    branch.object("empty").upload(b"")
    assert branch.object("empty").reader(mode="rb").read() == b""
    branch.delete_objects(["empty"])
    made.delete()
    assert list(branch.objects()) == []
    assert not made.exists()


def test_exclusive_uploads_do_not_replace(repository: lakefs.Repository) -> None:
    stored = repository.branch("main").object("once")
    stored.upload("a", mode="x")
    with pytest.raises(ObjectExistsException):
        stored.upload("b", mode="x")
    assert stored.reader(mode="r").read() == "a"


def test_a_writer_streams_more_than_its_buffer(repository: lakefs.Repository) -> None:
    body = bytes(range(256)) * 4096 * 8
    with repository.branch("main").object("large").writer(mode="wb") as writer:
        for at in range(0, len(body), 1_000_000):
            writer.write(body[at : at + 1_000_000])
    found = repository.branch("main").object("large")
    assert found.stat().size_bytes == len(body)
    with found.reader(mode="rb") as reader:
        assert io.BytesIO(body).read() == reader.read()


def test_objects_are_copied_within_a_repository(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("a").upload("x")
    repository.branch("other").create("main")
    main.object("a").copy("other", "b")
    assert repository.branch("other").object("b").reader(mode="r").read() == "x"


def test_commits_diffs_merges_and_tags(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("base").upload("0")
    assert [(each.type, each.path) for each in main.uncommitted()] == [("added", "base")]
    first = main.commit("first", metadata={"who": "me"})
    assert first.get_commit().metadata == {"who": "me"}
    dev = repository.branch("dev").create("main")
    dev.object("new").upload("1")
    dev.commit("second")
    assert [(each.type, each.path) for each in main.diff(dev)] == [("added", "new")]
    merged = dev.merge_into(main)
    assert main.head.id == merged
    assert len(main.get_commit().parents) == 2  # type: ignore[no-untyped-call]
    assert [each.message for each in main.log(max_amount=2)][-1:] != []
    tag = repository.tag("v1").create("main")
    assert tag.get_commit().id == merged
    with pytest.raises(ConflictException):
        repository.tag("v1").create("main")
    assert [each.id for each in repository.tags()] == ["v1"]
    tag.delete()
    assert [each.id for each in repository.branches()] == ["dev", "main"]
    dev.delete()


def test_conflicts_are_told_and_a_strategy_decides(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    dev = repository.branch("dev").create("main")
    for branch, text in ((main, "m"), (dev, "d")):
        branch.object("same").upload(text)
        branch.commit(f"on {text}")
    with pytest.raises(ConflictException, match="Conflict"):
        dev.merge_into(main)
    dev.merge_into(main, strategy="source-wins")
    assert main.object("same").reader(mode="r").read() == "d"


def test_revert_reset_and_cherry_pick(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("a").upload("1")
    main.commit("one")
    main.object("b").upload("2")
    second = main.commit("two")
    main.revert(second.get_commit().id)
    assert [each.path for each in main.objects()] == ["a"]
    main.object("c").upload("3")
    main.reset_changes()
    assert [each.path for each in main.objects()] == ["a"]
    dev = repository.branch("dev").create("main~3")
    dev.cherry_pick(second.get_commit().id)
    assert [each.path for each in dev.objects()] == ["b"]


def test_a_transaction_is_seen_whole_or_not_at_all(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    with main.transact(commit_message="together") as tx:
        tx.object("a").upload("1")
        tx.object("b").upload("2")
        assert list(main.objects()) == []
    assert [each.path for each in main.objects()] == ["a", "b"]
    assert [each.id for each in repository.branches()] == ["main"]
    with pytest.raises(ZeroDivisionError), main.transact() as tx:
        tx.object("never").upload(str(1 // 0))
    assert [each.path for each in main.objects()] == ["a", "b"]


def test_a_hundred_and_more_are_listed_over_pages(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    for number in range(12):
        main.object(f"n/{number:03}").upload(str(number))
    assert len(list(main.objects(max_amount=5))) == 5
    assert [each.path for each in main.objects(prefix="n/", after="n/009")] == ["n/010", "n/011"]
