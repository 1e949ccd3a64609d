"""What deploy/ has fits the program: its configurations pass the check, its commands exist, its names agree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
import yaml

from lsmfs.cli import app
from lsmfs.installation import Configuration
from lsmfs.server.config import ServerConfig
from lsmfs.server.config_file import keys, load, variable_of
from lsmfs.server.config_stores import configuration_of
from lsmfs.server.run import CLOSE_SECONDS_MAX
from tests.servers.missing import missing

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
IMAGE_PORT = 8000
# Read by the server beside its configuration, and the clouds' own.
VARIABLES = {"LSMFS_ACCESS_KEY_ID", "LSMFS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    found = [each for path in MANIFESTS for each in documents(path) if each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in found}


def loaded(text: str, tmp_path: Path) -> ServerConfig:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    return load(file, {}).config


def check_command(words: list[str]) -> None:
    """The words after `lsmfs` are a command that exists, with options that it has."""
    root = typer.main.get_command(app)
    command = root.commands[words[0]]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options, words


@pytest.mark.parametrize("path", [*MANIFESTS, *DEPLOY.glob("*.yaml"), *DEPLOY.glob("*/server.yaml")], ids=str)
def test_every_yaml_file_can_be_read(path: Path) -> None:
    assert all(isinstance(each, dict) for each in documents(path))


@pytest.mark.parametrize("name", ["compose", "systemd"])
def test_the_example_configurations_pass_the_check(name: str, tmp_path: Path) -> None:
    config = loaded((DEPLOY / name / "server.yaml").read_text(), tmp_path)
    assert config.data == "/var/lib/lsmfs"


def test_servers_and_compactors_in_kubernetes_have_the_same_stores(tmp_path: Path) -> None:
    data = of_kind("ConfigMap")["lsmfs"]["data"]
    config = loaded(data["server.yaml"], tmp_path)
    own = msgspec.json.decode(data["lsmfs.json"], type=Configuration)
    assert (configuration_of(config).store, configuration_of(config).refs) == (own.store, own.refs)
    assert not config.services.compactor


def test_deployments_run_commands_that_exist_and_mount_what_is_defined() -> None:
    deployments = of_kind("Deployment")
    assert set(deployments) == {"lsmfs-server", "lsmfs-compactor"}
    for deployment in deployments.values():
        spec = deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["replicas"] >= 2
        assert deployment["spec"]["selector"]["matchLabels"].items() <= _labels(deployment).items()
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["containers"]:
            check_command(container["args"])
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
            assert container["securityContext"]["readOnlyRootFilesystem"]
        assert volumes["configuration"]["configMap"]["name"] in of_kind("ConfigMap")
        for mount in spec["containers"][0]["volumeMounts"]:
            if "subPath" in mount:
                assert mount["subPath"] in of_kind("ConfigMap")["lsmfs"]["data"]


def test_the_service_reaches_the_servers_and_their_probes_have_the_right_port_and_time(tmp_path: Path) -> None:
    deployment = of_kind("Deployment")["lsmfs-server"]
    assert of_kind("Service")["lsmfs"]["spec"]["selector"].items() <= _labels(deployment).items()
    budget = of_kind("PodDisruptionBudget")["lsmfs-server"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= _labels(deployment).items()
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    config = loaded(of_kind("ConfigMap")["lsmfs"]["data"]["server.yaml"], tmp_path)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [address.port for address in config.addresses] == [ports["http"]]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert (probes["livenessProbe"]["path"], probes["readinessProbe"]["path"]) == ("/_health", "/readyz")
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = pause + config.limits.shutdown_seconds_max + CLOSE_SECONDS_MAX
    assert spec["terminationGracePeriodSeconds"] > needed


def test_compose_has_a_server_redis_and_s3_and_waits_for_a_graceful_end(tmp_path: Path) -> None:
    compose = documents(DEPLOY / "compose.yaml")[0]
    services = compose["services"]
    assert set(services) == {"server", "redis", "s3"}
    server = services["server"]
    check_command(server["command"])
    config = loaded((DEPLOY / "compose" / "server.yaml").read_text(), tmp_path)
    assert server["ports"] == [f"127.0.0.1:{IMAGE_PORT}:{config.addresses[0].port}"]
    assert (config.metadata.db.redis.url or "").startswith("redis://redis:")
    assert (config.blockstore.s3.endpoint or "").startswith("http://s3:")
    assert int(server["stop_grace_period"][:-1]) > config.limits.shutdown_seconds_max + CLOSE_SECONDS_MAX
    mounted = server["volumes"][0].split(":")
    assert (DEPLOY / mounted[0]).exists()
    assert mounted[1] == server["command"][2]
    assert set(server["environment"]) <= VARIABLES | {variable_of(key) for key, _ in keys(ServerConfig)}
    named = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == set(compose["volumes"])


def test_the_image_runs_a_command_that_exists_as_an_ordinary_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = dict(line.split(" ", 1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line))
    assert lines["ENTRYPOINT"] == '["lsmfs"]'
    check_command(msgspec.json.decode(lines["CMD"]))
    assert lines["USER"] != "root"
    assert lines["EXPOSE"] == str(IMAGE_PORT)
    assert "LSMFS_DATA=/var/lib/lsmfs" in lines["ENV"]
    extras = set(re.findall(r"/src\[(.*)\]", lines["RUN"])[0].split(","))
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = ", project, re.MULTILINE) for extra in extras)
    assert "server" in extras


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_run_commands_that_exist(unit: Path) -> None:
    (words,) = re.findall(r"^ExecStart=/opt/lsmfs/bin/lsmfs (.*)$", unit.read_text(), re.MULTILINE)
    check_command(words.split())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_finds_no_fault_in_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/lsmfs/bin/lsmfs", sys.executable))  # which is here for sure
    found = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    ours = [line for line in found.stderr.splitlines() if unit.name in line]
    assert (found.returncode, ours) == (0, []), found.stderr


def _labels(deployment: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels
