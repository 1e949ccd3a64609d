"""`python -m tests.servers.install`: get the real servers that the tests start, as far as this machine allows.

One line for each thing, none for what is there already. It never fails: a server that cannot be had is named, with the
tests that will be skipped for it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import azurite, dynamodb

PROGRAMS = {  # program: (Debian package, what is skipped without it)
    "redis-server": ("redis-server", "the Redis tests"),
    "java": ("default-jre-headless", "the DynamoDB and Spark tests"),
    "mvn": ("maven", "the DynamoDB tests, if its jars are not there yet"),
    "npm": ("npm", "the Azure tests, if Azurite is not there yet"),
}
APT_SECONDS_MAX = 600
MAVEN_SECONDS_MAX = 600

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>lsmfs.test</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.amazonaws</groupId><artifactId>DynamoDBLocal</artifactId><version>{dynamodb.VERSION}</version>
  </dependency></dependencies>
</project>
"""


def main() -> None:
    for program, (package, skipped) in PROGRAMS.items():
        if shutil.which(program) is None and not is_needless(program):
            say(f"{program}: {install_package(package, program) or f'missing, {skipped} will be skipped'}")
    if not has_jars():
        say(f"DynamoDB Local: {fetch_jars() or 'no jars, the DynamoDB tests will be skipped'}")
    if not azurite.is_installed():
        say(f"Azurite: {azurite.install() or 'missing, the Azure tests will be skipped'}")


def is_needless(program: str) -> bool:
    """Whether what the program would fetch is there already."""
    return (program == "mvn" and has_jars()) or (program == "npm" and azurite.is_installed())


def say(line: str) -> None:
    print(line, flush=True)


def has_jars() -> bool:
    return (dynamodb.jars() / f"DynamoDBLocal-{dynamodb.VERSION}.jar").exists()


def install_package(package: str, program: str) -> str:
    """What was done; nothing if it could not be done."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return ""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", package]
    if not run(install, APT_SECONDS_MAX, quiet):  # a fresh image has no package lists
        run(["apt-get", "update", "-qq"], APT_SECONDS_MAX, quiet)
        run(install, APT_SECONDS_MAX, quiet)
    return f"installed package {package}" if shutil.which(program) else ""


def fetch_jars() -> str:
    """What was done; nothing if it could not be done. A half-filled directory is never left under the final name."""
    maven = shutil.which("mvn")
    if maven is None:
        return ""
    parent = dynamodb.jars().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        work = Path(directory)
        (work / "pom.xml").write_text(POM)
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        if not run([maven, "-q", "-B", "-f", str(work / "pom.xml"), *copy], MAVEN_SECONDS_MAX):
            return ""
        _name_native_libraries(work / "jars")
        if not has_jars():  # another process may have been first
            (work / "jars").rename(dynamodb.jars())
    return f"fetched to {dynamodb.jars()}"


def _name_native_libraries(directory: Path) -> None:
    """Maven adds the version to the file name; sqlite4java looks for the plain one."""
    for library in directory.glob("*sqlite4java-*-*.*"):
        if library.suffix in (".so", ".dylib", ".dll"):
            shutil.copy(library, library.with_stem(library.stem.rpartition("-")[0]))


def run(command: list[str], seconds_max: int, environment: dict[str, str] | None = None) -> bool:
    try:
        done = subprocess.run(command, timeout=seconds_max, env=environment, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return False
    if done.returncode != 0:
        print(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-500:]}", file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    main()
