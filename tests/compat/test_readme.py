"""What the README says of the server is run as it stands there."""

import re
import sys
from pathlib import Path

import pytest

from tests.compat.support import aws_environment, run
from tests.server.live import ADMIN, Live

README = Path(__file__).parents[2] / "README.md"
SECTION = re.search(r"^## The server\n(.*?)^## ", README.read_text(), re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", SECTION[1] if SECTION else "", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.xdist_group("compat")


def environment(server: Live, folder: Path) -> dict[str, str]:
    """What the section's first block exports."""
    names = {
        "LSMFS_ENDPOINT_URL": server.url,
        "LSMFS_ACCESS_KEY_ID": ADMIN.access_key_id,
        "LSMFS_SECRET_ACCESS_KEY": ADMIN.secret,
        "LAKECTL_SERVER_ENDPOINT_URL": server.url,
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": ADMIN.access_key_id,
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": ADMIN.secret,
    }
    exports = BLOCKS[0][1]
    given = aws_environment(server, folder) | names
    assert set(re.findall(r"(\w+)=", exports)) <= set(given), "the README exports something that this test does not set"
    return given


def test_the_server_section_of_the_readme_runs_as_written(server: Live, tmp_path: Path) -> None:
    server.repository("quickstart")
    (tmp_path / "README.md").write_text("the manual\n")
    variables = environment(server, tmp_path)
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds == ["sh", "python", "python", "sh"]
    s3, sdk, commands = [text for _, text in BLOCKS[1:]]
    told = run([sys.executable, "-c", s3], variables, tmp_path)
    assert "b'hello'" in told
    assert "main/hello.txt" in told
    told = run([sys.executable, "-c", sdk], variables, tmp_path)
    assert "['tables/a.csv']" in told
    variables["PATH"] += ":/usr/bin:/bin"
    told = run(["sh", "-e", "-c", commands], variables, tmp_path)
    assert "docs/README.md" in told
    assert "the manual" in told
