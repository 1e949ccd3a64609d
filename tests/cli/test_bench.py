"""`bench`: it measures, and leaves nothing."""

import sqlite3

from tests.cli.support import Lake
from tests.servers.redis import call, redis_server


def test_bench_measures_each_verb_beside_the_bare_stores(lake: Lake) -> None:
    lake.put("mine")
    measures = lake.json("bench", "--entries", "500")
    assert [each["step"] for each in measures] == ["put", "get", "list", "commit"]
    assert all(each["count"] == 500 and each["bare_count"] > 0 and each["ratio"] > 0 for each in measures)
    assert lake.keys() == ["mine"]


def test_bench_removes_its_objects_and_its_refs(lake: Lake) -> None:
    result = lake("bench", "--entries", "50")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["step", "beside", "entries", "seconds", "lsmfs", "bare", "ratio"]
    assert [path for path in (lake.data / "objects").glob("bench-*/**/*") if path.is_file()] == []
    connection = sqlite3.connect(lake.data / "refs.db")
    for table, column in (("branch", "repository"), ("journal", "repository"), ("item", "partition")):
        query = f"SELECT count(*) FROM {table} WHERE {column} LIKE 'bench-%'"
        assert connection.execute(query).fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM item WHERE CAST(key AS TEXT) LIKE 'bench-%'").fetchone() == (0,)
    connection.close()
    assert [line["repository"] for line in lake("repos", "--json").lines] == ["lake"]


def test_bench_cleans_up_in_redis_too(empty: Lake) -> None:
    with redis_server() as server:
        assert empty("init", "lake", "--refs", f"redis://127.0.0.1:{server.port}/0").code == 0
        assert empty("bench", "--entries", "20").code == 0
        assert [line["repository"] for line in empty("repos", "--json").lines] == ["lake"]
        count, _, journal = call(server.port, "KEYS *bench-*").split()
        assert count == "*1"  # Redis keeps a stream that has been emptied
        assert call(server.port, f"XLEN {journal}") == ":0\r\n"
