"""The first ten minutes of a user: each command line is run, and everything that it prints is compared."""

import re
import shlex
from pathlib import Path

import pytest

from lsmfs.cli import run

FILES = {"one.csv": "1\n", "two.csv": "2\n", "better.csv": "2.0\n"}
TRANSCRIPT = """\
$ lsmfs init lake
created repository lake in lsmfs-data; its branch is lsmfs://lake/main
$ lsmfs put one.csv lake/main/raw/
2 bytes, etag b026324c6904b2a9cb4b88d6d61c81d1, at lsmfs://lake/main/raw/one.csv
$ lsmfs put two.csv lake/main/raw/
2 bytes, etag 26ab0db90d72e28ad0ba1e22ee510510, at lsmfs://lake/main/raw/two.csv
$ lsmfs commit lake/main -m "first load"
committed <commit 1> on lake/main
$ lsmfs branch create lake/dev
created branch lake/dev at <commit 1>
$ lsmfs put better.csv lake/dev/raw/two.csv
4 bytes, etag 3cf918272ffa5de195752d73f3da3e5e, at lsmfs://lake/dev/raw/two.csv
$ lsmfs put one.csv lake/dev/clean/
2 bytes, etag b026324c6904b2a9cb4b88d6d61c81d1, at lsmfs://lake/dev/clean/one.csv
$ lsmfs rm lake/dev/raw/one.csv
removed 1 from lake/dev
$ lsmfs diff lake/dev
+ clean/one.csv  2 bytes
- raw/one.csv  2 bytes
~ raw/two.csv  2 -> 4 bytes
$ lsmfs commit lake/dev -m "clean the first load"
committed <commit 2> on lake/dev
$ lsmfs diff lake/main dev
+ clean/one.csv  2 bytes
- raw/one.csv  2 bytes
~ raw/two.csv  2 -> 4 bytes
$ lsmfs diff lake/main dev --stat
         paths  bytes before  bytes after
added        1             0            2
removed      1             2            0
changed      1             2            4
$ lsmfs branch list lake
<commit 2>  dev
<commit 1>  main  (default)
$ lsmfs merge lake/dev main -m "the clean load"
merged lake/dev into lake/main: <commit 3>
$ lsmfs log lake/main -n 2
commit     <commit 3>
merged     <commit 2>
committer  ana
created    <time>

    the clean load

commit     <commit 1>
committer  ana
created    <time>

    first load

$ lsmfs show lake/main
commit     <commit 3>
parent     <commit 1>
merged     <commit 2>
committer  ana
created    <time>
entries    2

    the clean load

+ clean/one.csv  2 bytes
- raw/one.csv  2 bytes
~ raw/two.csv  2 -> 4 bytes
$ lsmfs tag create lake/v1 main
lake/v1 is <commit 3>
$ lsmfs put two.csv lake/main/raw/
2 bytes, etag 26ab0db90d72e28ad0ba1e22ee510510, at lsmfs://lake/main/raw/two.csv
$ lsmfs get lake/v1/raw/two.csv
2.0
$ lsmfs get lake/main~1/raw/one.csv
1
$ lsmfs ls lake/v1 --recursive
<time>             2  clean/one.csv
<time>             4  raw/two.csv
$ lsmfs tag list lake
<commit 3>  v1
$ lsmfs branch delete lake/dev
deleted branch lake/dev, it was at <commit 2>
"""

COMMIT = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{12}(?=  ))\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Names:
    """Numbers for commits, in the order in which they are met."""

    def __init__(self) -> None:
        self._met: list[str] = []

    def replace(self, text: str) -> str:
        return TIME.sub("<time>", COMMIT.sub(self._name, text))

    def _name(self, match: re.Match[str]) -> str:
        short = match[0][:12]
        if short not in self._met:
            self._met.append(short)
        return f"<commit {self._met.index(short) + 1}>"


@pytest.mark.usefixtures("empty")
def test_the_first_ten_minutes_print_what_is_promised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ana")
    for name, content in FILES.items():
        Path(name).write_text(content)
    names, told = Names(), ""
    for line in re.findall(r"^\$ .*\n", TRANSCRIPT, re.MULTILINE):
        assert run(shlex.split(line)[2:]) == 0, line
        shown = capsys.readouterr()
        assert shown.err == "", line
        told += line + names.replace(shown.out)
    assert told == TRANSCRIPT
