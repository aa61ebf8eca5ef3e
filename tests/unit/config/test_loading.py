"""Sources of setting values and their precedence, and the error line for an invalid value."""

from pathlib import Path

import pytest

from coordinator.config import SETTINGS, HostPort, load_config
from coordinator.errors import ConfigError


def config_error(**sources: object) -> ConfigError:
    """Return the error of load_config, and assert that its text is one line."""
    with pytest.raises(ConfigError) as caught:
        load_config(**sources)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_defaults_are_used_without_any_source() -> None:
    loaded = load_config()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.config.listen == HostPort("127.0.0.1", 9095)
    assert loaded.config.http == HostPort("127.0.0.1", 9096)
    assert loaded.config.state_partitions == 50


def test_flags_override_environment_file_and_defaults(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.properties"
    file.write_text("max.connections=1\nload.wait.ms=1\nnode.ids=1\n")
    environ = {"SHARE_COORDINATOR_MAX_CONNECTIONS": "2", "SHARE_COORDINATOR_LOAD_WAIT_MS": "2"}
    loaded = load_config({"--max-connections": "3"}, environ, file)
    config = loaded.config
    assert (config.connections_max, config.load_wait_ms, config.node_ids, config.stop_timeout_ms) == (
        3,
        2,
        1,
        25_000,
    )
    assert loaded.origins["max.connections"] == "flag --max-connections"
    assert loaded.origins["load.wait.ms"] == "environment SHARE_COORDINATOR_LOAD_WAIT_MS"
    assert loaded.origins["node.ids"] == f"{file}:3"
    assert loaded.origins["stop.timeout.ms"] == "default"


def test_every_setting_can_be_given_in_each_spelling(tmp_path: Path) -> None:
    texts = {"address": "h:1", "path": "d", "int": "499", "text": "h:1"}
    one_copy = ("state.topic.replication.factor", "state.topic.min.isr")
    # These settings are valid only together with other settings.
    with_others = {
        "listen.allowed.principals",
        "listen.sasl.users.file",
        "listen.sasl.enabled.mechanisms",
        "listen.ssl.certificate.location",
        "signals.events.topic",
    }
    for setting in SETTINGS:
        if setting.name in with_others or setting.name.startswith("http."):
            continue
        text = texts.get(setting.kind) or setting.default
        if setting.name == "listen":
            text = "localhost:1"
        if setting.name.endswith(("segment.bytes", "request.max.bytes", "max.request.bytes")):
            text = str(32 << 20)
        if setting.name.endswith(one_copy):
            text = "1"
        if setting.name.endswith("topic.name"):
            text = "other"
        if setting.name.endswith("url"):
            text = "http://h:1/"
        file = tmp_path / "one.properties"
        file.write_text(f"{setting.name}: {text}\n")
        expected = load_config({setting.name: text}).config
        assert load_config({setting.flag: text}).config == expected
        assert load_config(environ={setting.env: text}).config == expected
        assert load_config(file=file).config == expected
        assert setting.kind == "choice" or expected != load_config().config


def test_environment_variable_can_name_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "x.properties"
    file.write_text("node.ids=7")
    assert load_config(environ={"SHARE_COORDINATOR_CONFIG": str(file)}).config.node_ids == 7


@pytest.mark.parametrize(
    ("flag", "text", "allowed"),
    [
        ("share.coordinator.snapshot.update.records.per.snapshot", "501", "a whole number from 0 to 500"),
        ("share.coordinator.state.topic.num.partitions", "0", "a whole number from 1 to 10000"),
        ("max.connections", "many", "a whole number from 1"),
        ("listen", "localhost", "HOST:PORT"),
        ("advertise", "kafka 1:9095", "HOST:PORT"),
        ("advertise", "kafka\u200b:9095", "HOST:PORT"),
        ("data.dir", "/data\0", "text without NUL"),
        ("sasl.password.file", "/data\0", "text without NUL"),
        ("log", "disk", "memory, journal or kafka"),
        ("logging.level", "loud", "DEBUG, INFO, WARNING or ERROR"),
        ("data.dir", "", "a folder"),
        ("bootstrap.servers", "kafka-1:9092,kafka-2", "HOST:PORT,HOST:PORT"),
        ("share.coordinator.state.topic.name", "a topic", "the name of a topic"),
        ("share.coordinator.state.topic.replication.factor", "3", "1, because the journal has one copy"),
        ("share.coordinator.state.topic.min.isr", "2", "1, because the journal has one copy"),
    ],
)
def test_invalid_value_error_names_setting_value_and_allowed_values(
    flag: str, text: str, allowed: str
) -> None:
    error = config_error(flags={flag: text})
    assert (error.setting, error.value) == (flag, text)
    assert allowed in str(error)
    assert f"(flag --set {flag})" in str(error)


def test_missing_setting_error_names_an_origin_only_if_an_empty_value_was_given() -> None:
    missing = "bootstrap.servers is missing: it must be HOST:PORT of at least one broker of the cluster"
    assert str(config_error(flags={"log": "kafka"})) == missing
    empty = config_error(flags={"log": "kafka", "bootstrap.servers": ""})
    assert str(empty) == f"{missing} (flag --set bootstrap.servers)"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("--max-connection", "--max-connections"),
        ("max.conections", "max.connections"),
        (
            "share.coordinator.snapshot.update.records.per.snapshots",
            "share.coordinator.snapshot.update.records.per.snapshot",
        ),
        ("advertised.listeners", "advertise"),
        ("listeners", "listen"),
        ("log.dirs", "data.dir"),
        ("ssl.truststore.location", "ssl.ca.location"),
    ],
)
def test_unknown_setting_error_suggests_the_nearest_setting(given: str, nearest: str) -> None:
    error = config_error(flags={given: "1"})
    assert error.setting == given
    assert f"did you mean {nearest}?" in str(error)


@pytest.mark.parametrize(
    "name",
    ["sasl.jaas.config", "listener.name.internal.plain.sasl.jaas.config", "sasl.client.secret", "password"],
)
def test_value_of_an_unknown_setting_is_not_shown(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.properties"
    file.write_text(f'{name}=org.apache password="hush"')
    for error in (
        config_error(file=file),
        config_error(flags={name: "hush"}),
        config_error(flags={"--" + name.replace(".", "-"): "hush"}),
        config_error(environ={"SHARE_COORDINATOR_" + name.replace(".", "_").upper(): "hush"}),
    ):
        assert str(error).startswith(f"{error.setting} cannot be used: it must be a known setting; ")
        assert "hush" not in str(error)


def test_invalid_secret_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\0")
    for error in (
        config_error(flags={"sasl.password": "hush\0"}),
        config_error(flags={"--sasl-password-file": str(tmp_path / "secret")}),
        config_error(environ={"SHARE_COORDINATOR_SASL_PASSWORD": "hush\0"}),
        config_error(flags={"--sasl-password": "a", "sasl.password": "hush"}),
    ):
        assert str(error).startswith("sasl.password=******** cannot be used: ")
        assert "hush" not in str(error)


def test_unknown_setting_without_a_near_one_refers_to_config_show() -> None:
    assert "config show" in str(config_error(flags={"zookeeper.connect": "h:1"}))


def test_unknown_environment_variable_with_our_prefix_is_refused() -> None:
    error = config_error(environ={"PATH": "/bin", "SHARE_COORDINATOR_MAX_CONNECTION": "5"})
    assert error.setting == "SHARE_COORDINATOR_MAX_CONNECTION"
    assert "did you mean SHARE_COORDINATOR_MAX_CONNECTIONS?" in str(error)


@pytest.mark.parametrize(
    "variable",
    [
        "SHARE_COORDINATOR_SERVICE_HOST",
        "SHARE_COORDINATOR_SERVICE_PORT",
        "SHARE_COORDINATOR_SERVICE_PORT_KAFKA",
        "SHARE_COORDINATOR_PORT",
        "SHARE_COORDINATOR_PORT_9095_TCP",
        "SHARE_COORDINATOR_PORT_9095_TCP_ADDR",
        "SHARE_COORDINATOR_HTTP_PORT_9096_TCP_PROTO",
        "SHARE_COORDINATOR_REQUIRE_ALL",
    ],
)
def test_variables_of_kubernetes_and_of_the_tests_are_ignored(variable: str) -> None:
    assert load_config(environ={variable: "tcp://10.0.0.1:9095"}).config == load_config().config


def test_empty_variable_counts_as_unset() -> None:
    assert load_config(environ={"SHARE_COORDINATOR_NODE_IDS": ""}).origins["node.ids"] == "default"


def test_setting_given_by_two_flags_is_refused() -> None:
    error = config_error(flags={"--node-ids": "1", "node.ids": "2"})
    assert "flag --node-ids and flag --set node.ids" in str(error)


def test_error_names_the_file_and_line_of_an_invalid_setting(tmp_path: Path) -> None:
    file = tmp_path / "x.properties"
    file.write_text("node.ids=4\nmax.connections=0\n")
    assert f"({file}:2)" in str(config_error(file=file))
    file.write_text("node.ids=4\nnode.ids=5\n")
    assert "line 2: node.ids was already given on line 1" in str(config_error(file=file))


def test_error_is_one_escaped_line() -> None:
    assert str(config_error(flags={"log": "disk\nor\x1b[2Jmemory\u2028ä"})).startswith(
        "log=disk\\nor\\x1b[2Jmemory\\u2028ä cannot be used: it must be memory, journal or kafka"
    )
    assert "\n" not in str(config_error(flags={"a\nb": "1"}))


def test_unreadable_file_causes_one_error_line(tmp_path: Path) -> None:
    assert "No such file" in str(config_error(file=tmp_path / "missing"))
    (tmp_path / "latin").write_bytes(b"data.dir=\xe9")
    assert "UTF-8" in str(config_error(file=tmp_path / "latin"))


def test_kafka_setting_without_equivalent_is_refused() -> None:
    assert "omitted: it would have no effect here" in str(
        config_error(flags={"share.coordinator.threads": "8"})
    )
