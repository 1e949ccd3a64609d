"""The transcripts of tests/scenarios over a server: the same commands print the same, but for what is listed here."""

import difflib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.client.served import Served
from tests.scenarios import transcript
from tests.scenarios.test_scenarios import SCENARIOS
from tests.scenarios.transcript import parse, play, written

PACK = r"(?<=/data/)p[0-9a-f]+-[0-9a-v]{20}-[0-9a-f]+"  # where a server puts small bodies; in process each is alone


class Other(NamedTuple):
    """What is other over a server, and why."""

    here: str
    over: str
    why: str


EVERYWHERE = [
    Other(" in lsmfs-data; its branch", " at <server>; its branch", "init says where it made the repository"),
    Other("$ cp lsmfs-data/objects/", "$ cp <store>/", "a store that is damaged is the server's"),
    Other(" lsmfs-data/objects/", " <store>/", "the same"),
]
OTHERS: dict[str, list[Other]] = {
    "cherry-pick": [
        Other(" --committer ben", "", "who commits is who the server knows the key's owner to be"),
        Other("committer          ben", "committer          ana", "the same"),
    ],
    "repositories": [
        Other(
            "error: lsmfs-data holds no installation: run `lsmfs init` first, or say --data FOLDER\n[exit 3]\n",
            "no repositories yet: create one with `lsmfs init NAME`\n",
            "a server is there before its first repository",
        ),
    ],
    "stage": [
        Other("writers        3", "writers        1", "a server has one writer for all who write to a branch"),
        Other(
            '{"repository": "lake", "branch": "main", "reason": "count", "tables": 1, "records": 2, "written": 1, '
            '"kept": 0, "seconds": <seconds>, "event": "compacted", "level": "info", "timestamp": "<time>"}\n'
            "1 compactions, 0 errors\n",
            "error: this works on stores and not over <server>: say --data FOLDER, where the installation is\n"
            "[exit 2]\n",
            "a server has its own compactor",
        ),
        Other(
            '"version":7,"base_commit":"<commit 1>","l1_tables":0,"l1_bytes":0,"l2_ranges":1,"l2_records":2,'
            '"l2_tombstones":0,"l2_bytes":<bytes>,"seals":0,"writers":3',
            '"version":6,"base_commit":"<commit 1>","l1_tables":1,"l1_bytes":<bytes>,"l2_ranges":0,"l2_records":0,'
            '"l2_tombstones":0,"l2_bytes":0,"seals":0,"writers":1',
            "so nothing was compacted",
        ),
    ],
    "objects": [
        Other("lake/data/<data 1> [0, +13]", "lake/data/<data 3> [0, +13]", "small bodies are packed, and not shared"),
    ],
}
ELSEWHERE = {
    "import": "the server reads the source: test_imports",
    "storage": "where a repository may be stored is the server's to allow, and compactor works on stores",
}


def changed(text: str, name: str) -> str:
    for other in EVERYWHERE:
        text = text.replace(other.here, other.over)
    for other in OTHERS.get(name, []):
        assert other.here in text, f"{name}: {other} is there no longer"
        text = text.replace(other.here, other.over)
    return text


@pytest.mark.parametrize("path", [path for path in SCENARIOS if path.stem not in ELSEWHERE], ids=lambda path: path.stem)
def test_a_scenario_prints_the_same_over_a_server(
    path: Path, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transcript, "_DATA", re.compile(f"{transcript._DATA.pattern}|{PACK}"))
    for name, value in server.settings().items():
        monkeypatch.setenv(name, value)
    promised = changed(path.read_text(), path.stem)
    store = str(server.folder / "data" / "objects")
    played = play(parse(promised.replace("<store>", store)))
    printed = written(played).replace(store, "<store>").replace(server.url, "<server>")
    promised = written(parse(promised))
    lines = difflib.unified_diff(promised.splitlines(), printed.splitlines(), "promised", "printed", lineterm="")
    assert promised == printed, "\n".join(lines)
