"""Names are built and parsed back without loss, and what is no name of ours is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs import paths
from lsmfs.clock import SystemClock, id_of
from lsmfs.paths import TableFile
from refstore.errors import Corrupt
from refstore.records import CommitId

HEX = st.text("0123456789abcdef", min_size=1, max_size=64)
FILES = st.builds(
    TableFile,
    kind=st.sampled_from("tgu"),
    generation=st.integers(0, 2**40),
    unique=st.integers(0, 2**100 - 1).map(id_of) | HEX,
    size_bytes=st.integers(0, 2**50),
    digest=st.text("0123456789abcdef", min_size=32, max_size=32),
)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)


@given(FILES)
def test_a_file_name_says_back_what_it_was_made_of(file: TableFile) -> None:
    assert paths.parse_table(str(file)) == file
    assert paths.generation_of(str(file)) == file.generation
    assert paths.is_run(str(file)) == (file.kind == "u")


@given(st.integers(0, 2**40), HASHES)
def test_a_run_id_says_back_what_it_was_made_of(generation: int, content: str) -> None:
    name = paths.run_id(generation, content)
    assert paths.parse_run(name) == (generation, content)
    assert paths.generation_of(name) == generation
    assert paths.is_run(name)


@given(FILES, FILES)
def test_different_files_have_different_paths(one: TableFile, other: TableFile) -> None:
    same = paths.layer_path("lake", str(one)) == paths.layer_path("lake", str(other))
    assert same == (one == other)


def test_every_kind_has_its_folder() -> None:
    digest, content = "0" * 32, "f" * 64
    assert paths.layer_path("lake", f"t0-a-1-{digest}") == f"lake/tables/t0-a-1-{digest}.parquet"
    assert paths.layer_path("lake", f"u0-a-1-{digest}") == f"lake/tables/u0-a-1-{digest}.parquet"
    assert paths.layer_path("lake", f"g0-a-1-{digest}") == f"lake/ranges/g0-a-1-{digest}.parquet"
    assert paths.layer_path("lake", f"r0-{content}") == f"lake/runs/r0-{content}.parquet"
    assert paths.commit_path("lake", CommitId(content)) == f"lake/commits/{content}.json"
    assert paths.data_path("lake", "abc") == "lake/data/abc"


@given(st.integers(0, 2**40), HASHES, st.integers(0, 2**40))
def test_the_address_of_a_block_says_back_what_it_was_made_of(generation: int, digest: str, size: int) -> None:
    address = paths.data_path("data", paths.block_name(generation, digest, size))
    assert paths.parse_block(address) == (generation, digest, size)
    assert paths.data_generation(address) == generation


@given(st.integers(0, 2**40), st.integers(0, 2**100 - 1))
def test_the_address_of_other_bytes_says_back_its_generation_and_is_no_block(generation: int, bits: int) -> None:
    address = paths.data_path("lake", paths.whole_name(generation, id_of(bits)))
    assert paths.data_generation(address) == generation
    assert paths.parse_block(address) is None


@pytest.mark.parametrize(
    "name",
    ["", paths.EMPTY, "abc", "b0", f"b0-{'0' * 63}-1", f"b0-{'0' * 64}-", f"b0-{'0' * 64}-1\n", f"B0-{'0' * 64}-1",
     f"b-1-{'0' * 64}-1", f"b0-{'0' * 64}-1/data", "d0-", "d-a", "d0-a\n", "d0-../x", "d0-a/b", "x/data/../d0-a"],
)  # fmt: skip
def test_what_is_no_data_file_of_ours_is_corrupt(name: str) -> None:
    assert paths.parse_block(f"lake/data/{name}") is None
    with pytest.raises(Corrupt, match="no address of ours"):
        paths.data_generation(f"lake/data/{name}")


BAD = ["", "t", "x", "t-", "t0-a-1-0", f"T0-a-1-{'0' * 32}", f"t0-A-1-{'0' * 32}", f"t0-a-1-{'0' * 32}\n",
       f"t0-../x-1-{'0' * 32}", f"t-1-a-1-{'0' * 32}", "r0-" + "0" * 63, "r0-" + "0" * 65, "r-" + "0" * 64,
       "r0-" + "G" * 64, "r0-" + "0" * 64 + "\n"]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name_of_ours_is_corrupt(name: str) -> None:
    for parse in (paths.parse_table, paths.parse_run, paths.generation_of):
        with pytest.raises(Corrupt):
            parse(name)
    with pytest.raises(Corrupt):
        paths.layer_path("lake", name)


@given(st.text(max_size=40))
def test_no_text_leads_out_of_the_repository(name: str) -> None:
    try:
        path = paths.layer_path("lake", name)
    except Corrupt:
        return
    assert path.startswith("lake/")
    assert ".." not in path


def test_new_ids_fit_into_names_and_do_not_repeat() -> None:
    clock = SystemClock()
    ids = {clock.new_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    assert {len(one) for one in ids} == {20}
    assert paths.parse_table(str(TableFile("t", 0, ids.pop(), 1, "0" * 32)))
    assert (id_of(0), id_of(2**100 - 1)) == ("0" * 20, "v" * 20)
