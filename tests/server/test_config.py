"""The server's configuration: every key, errors with their line, the environment, and no secret shown."""

from pathlib import Path

import pytest
import yaml

from lsmfs.cli import run
from lsmfs.installation import Configuration, create_installation
from lsmfs.server.config import Address, Limits, Secret, ServerConfig, value_of
from lsmfs.server.config_file import FILE_BYTES_MAX, Loaded, keys, load, shown, variable_of
from lsmfs.server.config_stores import configuration_of, environment_of, prepare
from refstore.errors import Invalid, NotFound

SEED = """\
---
logging:
  format: text # or json
  level: DEBUG # or INFO, WARN, ERROR, NONE
  output: "-" # for stdout, or a path to a log file
blockstore:
  type: s3 # or "local"
  s3:
    region: eu-west-1
    bucket: lake
    profile: default
    credentials_file: /does/not/matter
    credentials:
      access_key_id: "AKIA"
      access_secret_key: "hush-key"
      session_token: "hush-token"
  local:
    path: ~/lakefs/data
gateways:
  s3:
    listen_address: "0.0.0.0:8000"
    domain_name: s3.example.com
    region: us-east-1
api:
  listen_address: "0.0.0.0:8001"
"""


def loaded(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Loaded:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    return load(file, environment or {})


def test_every_key_of_the_original_table_is_read(tmp_path: Path) -> None:
    config = loaded(tmp_path, SEED).config
    assert (config.logging.format, config.logging.level, config.logging.output) == ("text", "DEBUG", "-")
    assert configuration_of(config).store == "s3://lake?region=eu-west-1"
    assert environment_of(config, {"AWS_SESSION_TOKEN": "of other keys", "HOME": "/h"}) == {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "hush-key",
        "AWS_SESSION_TOKEN": "hush-token",
        "AWS_REGION": "eu-west-1",
        "HOME": "/h",
    }
    assert config.gateways.s3.domain_name == "s3.example.com"
    assert config.addresses == [Address("0.0.0.0", 8000), Address("0.0.0.0", 8001)]


def test_without_a_file_the_defaults_are_one_local_port_and_embedded_stores() -> None:
    config = load(None, {}).config
    assert config == ServerConfig()
    assert config.addresses == [Address("127.0.0.1", 8000)]
    assert configuration_of(config) == Configuration()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("logging:\n  levle: INFO\n", 2, "logging.levle: no such key: did you mean logging.level?"),
        ("logging:\n  level: LOUD\n", 2, "logging.level: 'LOUD' is not DEBUG, INFO, WARN, ERROR or NONE"),
        ("loging: {}\n", 1, "loging: no such key: did you mean logging?"),
        ("\nbucket: lake\n", 2, "bucket: no such key: did you mean blockstore.s3.bucket?"),
        ("zzz: 1\n", 1, "zzz: no such key: there is listen, data"),
        ("logging: text\n", 1, "logging: must have keys below it (format, level, output)"),
        ("- a\n", 1, "the file: must have keys below it"),
        ("workers: many\n", 1, "workers: 'many' is not a whole number"),
        ("workers: [1]\n", 1, "workers: must be one value: a whole number"),
        ("data: x\nworkers: 0\n", 2, "workers: must be more than 0"),
        ("workers: 1000\n", 1, "workers: must be at most 256"),
        ("data: x\ndata: y\n", 2, "data: stands twice"),
        ("services:\n  compactor: maybe\n", 2, "services.compactor: 'maybe' is not true or false"),
        ("limits:\n  header_seconds_max: .inf\n", 2, "'.inf' is not a number"),
        ("metadata:\n  db:\n    type: badger\n", 3, "metadata.db.type: badger is not used here: write sqlite"),
        ("metadata:\n  db:\n    badger:\n      path: x\n", 3, "metadata.db.badger: badger is not used here"),
        ("metadata:\n  badger:\n    path: x\n", 2, "metadata.badger: badger is not used here"),
        ("metadata:\n  db:\n    type: redis\n", 3, "metadata.db.type: redis needs metadata.db.redis.url: add it"),
        ("blockstore:\n\n  type: s3\n", 3, "blockstore.type: s3 needs blockstore.s3.bucket: add it"),
        ("blockstore:\n  type: gs\n  gs: {url: 's3://x'}\n", 3, "blockstore.gs.url: is no address: write gs://"),
        ("blockstore:\n  type: s3\n  s3: {bucket: a/b}\n", 3, "blockstore.s3.bucket: 'a/b' is no bucket"),
        ("listen: here\n", 1, "listen: 'here' is no address: write HOST:PORT"),
        ("listen: 127.0.0.1:99999\n", 1, "listen: '127.0.0.1:99999' is no address"),
        ("listen: ::1:80\n", 1, "listen: '::1:80' is no address"),
        ("api:\n  listen_address: x:y\n", 2, "api.listen_address: 'x:y' is no address"),
        ("tls:\n  key_file: k\n", 1, "tls: certificate_file and key_file go together"),
        (
            "tls:\n  key_file: k\n  certificate_file: none.pem\n",
            3,
            "tls.certificate_file: none.pem and key_file k cannot",
        ),
        ("auth: {server_key: hush, server_key_file: f}\n", 1, "auth: server_key and server_key_file"),
        (
            "blockstore:\n  s3:\n    credentials: {access_key_id: A}\n",
            3,
            "blockstore.s3.credentials: access_key_id and",
        ),
        ("a: [\n", 2, "correct the file"),
        ("listen: x\n\tdata: y\n", 2, "correct the file"),
        ("data: *undefined\n", 1, "found undefined alias '...'"),
    ],
)
def test_an_error_names_the_file_the_line_and_the_key(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        loaded(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'server.yaml'}:{line}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "blockstore: {type: s3, s3: {bucket: b, endpoint: 'http://u:hush@h:1'}}",
        "metadata: {db: {type: redis, redis: {url: 'redis://:hush@h:1'}}}",
        "metadata: {db: {type: redis, redis: {url: 'redis://h:1?password=hush'}}}",
        "metadata: {db: {type: redis, redis: {url: 'hush'}}}",
        "auth: {server_key: [hush]}",
        "auth: {server_key: *hush}",
        "auth: {server_key: !hush!hush x}",
        "blockstore: {s3: {credentials: {access_secret_key: hush}}}",
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        loaded(tmp_path, text)
    assert "hush" not in str(caught.value)


def test_a_file_of_hostile_size_or_depth_or_bytes_is_refused(tmp_path: Path) -> None:
    for text in ("#" * (FILE_BYTES_MAX + 1), "[" * 5000, "\x00"):
        with pytest.raises(Invalid):
            loaded(tmp_path, text)
    bomb = "a: &a [x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{f'*{chr(97 + n)},' * 9}]\n" for n in range(20))
    with pytest.raises(Invalid, match="no such key"):
        loaded(tmp_path, bomb)


def test_every_key_has_a_variable_of_its_own() -> None:
    names = [variable_of(key) for key, _ in keys(ServerConfig)]
    assert len(set(names)) == len(names) > 40
    assert "LSMFS_GATEWAYS_S3_LISTEN_ADDRESS" in names


def test_the_environment_outranks_the_file_and_an_empty_variable_does_not(tmp_path: Path) -> None:
    environment = {"LSMFS_LOGGING_LEVEL": "error", "LSMFS_LIMITS_CONNECTIONS_MAX": "7", "LSMFS_LOGGING_FORMAT": ""}
    config = loaded(tmp_path, "logging: {level: INFO, format: json}\n", environment).config
    assert (config.logging.level, config.logging.format) == ("ERROR", "json")
    assert config.limits == Limits(connections_max=7)


def test_an_error_of_the_environment_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^LSMFS_WORKERS: workers: 'x' is not a whole number"):
        load(None, {"LSMFS_WORKERS": "x"})
    with pytest.raises(Invalid, match=r"^LSMFS_LISTEN: listen: 'x' is no address"):
        load(None, {"LSMFS_LISTEN": "x"})


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("gateways: {s3: {listen_address: 'h:1'}}\napi: {listen_address: 'h:1'}", ["h:1"]),
        ("gateways: {s3: {listen_address: 'h:1'}}", ["h:1"]),
        ("api: {listen_address: ':2'}", ["127.0.0.1:2"]),
        ("listen: '[::1]:5'\napi: {listen_address: 'h:1'}", ["[::1]:5", "h:1"]),
    ],
)
def test_the_ports_are_those_that_are_given_each_once(tmp_path: Path, text: str, addresses: list[str]) -> None:
    assert [str(each) for each in loaded(tmp_path, text).config.addresses] == addresses


def test_listen_on_the_command_line_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("api: {listen_address: 'h:1'}")
    assert load(tmp_path / "f", {}, {"listen": ":9"}).config.addresses == [Address("127.0.0.1", 9)]


def test_secrets_are_shown_as_stars_everywhere(tmp_path: Path) -> None:
    config = loaded(tmp_path, SEED + "auth: {server_key: hush-server}\n").config
    text = repr(config) + str(config) + str(shown(config)) + yaml.safe_dump(shown(config))
    assert "hush" not in text
    assert "***" in text
    for key, kind in keys(ServerConfig):
        value = value_of(config, key)
        assert isinstance(value, Secret) == (kind == Secret | None and value is not None)


def test_a_profile_of_a_credentials_file_is_used(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id=d\naws_secret_access_key=ds\n[w]\naws_access_key_id=w\n"
                    "aws_secret_access_key=100%s\naws_session_token=t\n")  # fmt: skip
    text = f"blockstore:\n  type: s3\n  s3:\n    bucket: b\n    credentials_file: {file}\n"
    found = environment_of(loaded(tmp_path, text).config, {})
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("d", "ds")
    found = environment_of(loaded(tmp_path, text + "    profile: w\n").config, {})
    assert (found["AWS_SECRET_ACCESS_KEY"], found["AWS_SESSION_TOKEN"]) == ("100%s", "t")
    with pytest.raises(Invalid, match=r"server.yaml:6: blockstore.s3.profile: .* has no profile 'x'"):
        loaded(tmp_path, text + "    profile: x\n")
    file.write_text("hush")
    with pytest.raises(Invalid, match=r"server.yaml:5: .* is no credentials file") as caught:
        loaded(tmp_path, text)
    assert "hush" not in str(caught.value)


def test_the_stores_become_urls(tmp_path: Path) -> None:
    text = """
blockstore: {type: s3, s3: {bucket: b, prefix: /a b/, endpoint: 'http://h:1', ordered: true}}
metadata: {db: {type: redis, redis: {url: 'redis://h:1/0?wait_replicas=1', username: u, password: 'p@/'}}}
"""
    found = configuration_of(loaded(tmp_path, text).config)
    assert found.store == "s3://b/a%20b?region=us-east-1&endpoint=http%3A%2F%2Fh%3A1&ordered=yes"
    assert found.refs == "redis://u:p%40%2F@h:1/0?wait_replicas=1"
    text = "metadata: {db: {type: dynamodb, dynamodb: {table: t, region: r, create_table: yes}}}"
    assert configuration_of(loaded(tmp_path, text).config).refs == "dynamodb://t?region=r&create=true"
    text = "metadata: {db: {type: bucket}}\nblockstore: {local: {path: /a b}}"
    assert configuration_of(loaded(tmp_path, text).config) == Configuration(store="file:///a%20b", refs="bucket")


def test_the_folders_own_file_is_obeyed_unless_the_configuration_names_other_stores(tmp_path: Path) -> None:
    data = tmp_path / "data"
    stored = Configuration(store="file:///elsewhere")
    create_installation(data, stored)
    found = loaded(tmp_path, f"data: {data}\n")
    assert prepare(found.config, found.names_stores) == stored
    found = loaded(tmp_path, f"data: {data}\nblockstore: {{type: local}}\n")
    with pytest.raises(Invalid, match=r"lsmfs.json says store file:///elsewhere, the configuration says"):
        prepare(found.config, found.names_stores)


def test_the_first_start_writes_the_folders_file_but_no_password(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"data: {tmp_path / 'a'}\n")
    assert prepare(found.config, found.names_stores) == Configuration() == prepare(found.config, found.names_stores)
    assert (tmp_path / "a" / "lsmfs.json").exists()
    secret = f"data: {tmp_path / 'b'}\nmetadata: {{db: {{type: redis, redis: {{url: 'redis://h', password: p}}}}}}\n"
    found = loaded(tmp_path, secret)
    assert prepare(found.config, found.names_stores).refs == "redis://:p@h"
    assert not (tmp_path / "b").exists()


def test_config_check_prints_a_file_that_passes_config_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(SEED)
    assert run(["config", "check", "--config", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "access_secret_key: '***'" in printed
    assert "hush" not in printed
    file.write_text(printed)
    assert run(["config", "check", "--config", str(file), "--json"]) == 0
    assert '"access_secret_key":"***"' in capsys.readouterr().out


def test_config_check_ends_with_1_and_names_key_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("data: x\nlogging:\n  levle: x\n")
    assert run(["config", "check", "--config", str(file)]) == 1
    assert f"{file}:3: logging.levle: no such key" in capsys.readouterr().out
    assert run(["config", "check", "--config", str(tmp_path / "none")]) == 3


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="correct --config"):
        load(tmp_path / "none", {})
