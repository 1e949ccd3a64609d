"""What all clients are tried with: bytes that differ everywhere, more than one part of them, and programs to run."""

import random
import subprocess
import sys
from pathlib import Path

from tests.server.live import ADMIN, REGION, Live
from tests.servers.missing import missing
from tests.servers.seaweedfs import find_program

MEBIBYTE = 1024 * 1024
PART_BYTES = 5 * MEBIBYTE  # the least that S3 allows
LARGE = random.Random(7).randbytes(2 * PART_BYTES + 12_345)  # three parts, the last one short
PROGRAM_SECONDS_MAX = 120
ODD_NAMES = ("a b+c.txt", "ü/é ß.txt", "q?x=1&y=2#z.txt", "100%.txt", "it's (1), [2]; {3}=~!*.txt")


def program(name: str) -> str:
    found = find_program(name)
    if found is None:
        missing(f"no {name} on this machine")
    return found


def run(command: list[str], environment: dict[str, str], folder: Path, is_right: bool = True) -> str:
    """What a program says that must end well, or must not."""
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX
    )
    said = ended.stdout + ended.stderr
    assert (ended.returncode == 0) is is_right, f"{' '.join(command)}: {ended.returncode}\n{said}"
    return ended.stdout if is_right else said


def aws_environment(server: Live, folder: Path) -> dict[str, str]:
    """For programs that read what the AWS programs read, and nothing of the user's own."""
    return {
        "PATH": str(Path(sys.executable).parent),
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "AWS_ACCESS_KEY_ID": ADMIN.access_key_id,
        "AWS_SECRET_ACCESS_KEY": ADMIN.secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": server.url,
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
