"""The table of settings: Kafka's names and defaults, names in files, options and variables, and conflicts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.config import SETTINGS, Config, HostPort, render_reference
from coordinator.config.security_groups import SaslSettings
from coordinator.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_setting_has_three_spellings() -> None:
    spellings = {setting.name: (setting.env, setting.flag) for setting in SETTINGS}
    assert spellings["max.connections"] == ("SHARE_COORDINATOR_MAX_CONNECTIONS", "--max-connections")
    assert spellings["share.coordinator.write.timeout.ms"] == (
        "SHARE_COORDINATOR_WRITE_TIMEOUT_MS",
        "--write-timeout-ms",
    )


def test_names_of_settings_are_unique_in_each_format() -> None:
    for column in ("attribute", "name", "env", "flag"):
        spellings = [getattr(setting, column) for setting in SETTINGS]
        assert sorted(set(spellings)) == sorted(spellings)


def test_every_setting_has_a_meaning_and_allowed_values() -> None:
    assert [
        setting.name for setting in SETTINGS if not (setting.meaning.endswith(".") and setting.allowed)
    ] == []


def test_reference_page_is_generated_from_the_settings() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == render_reference()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9095", "127.0.0.1", 9095),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        (" kafka-1.example:1 ", "kafka-1.example", 1),
    ],
)
def test_address_is_parsed(text: str, host: str, port: int) -> None:
    assert HostPort.parse(text) == HostPort(host, port)
    assert str(HostPort.parse(text)) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9095",
        "localhost:",
        "localhost:65536",
        "localhost:-1",
        "::1:9095",
        "PLAINTEXT://h:1",
        "h:٣",
    ],
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        HostPort.parse(text)


def test_advertised_address_defaults_to_listen() -> None:
    assert Config(listen=HostPort("localhost", 7)).advertise == HostPort("localhost", 7)
    assert Config(listen=HostPort("localhost", 7), advertise=HostPort("proxy", 9)).advertise == HostPort(
        "proxy", 9
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_address_cannot_be_advertised(host: str) -> None:
    with pytest.raises(ConfigError, match="advertise="):
        Config(listen=HostPort(host, 9095))


@pytest.mark.parametrize(
    "url", ["h:1", "ftp://h", "http://", "http://[::1", "http://h:99999", "http://h:port"]
)
def test_webhook_must_be_an_http_url(url: str) -> None:
    # The URL may contain a secret.
    with pytest.raises(ConfigError, match=r"signals.webhook.url=\*{8} .* an http or https URL"):
        Config(signals_webhook_url=url)


def test_request_memory_must_hold_one_frame() -> None:
    with pytest.raises(
        ConfigError, match=r"queued.max.request.bytes=2048 .* at least socket.request.max.bytes"
    ):
        Config(frame_bytes_max=4096, queued_bytes_max=2048)


def test_last_node_id_must_be_an_int32() -> None:
    assert Config(node_id_first=2**31 - 4, node_ids=4).node_ids == 4
    with pytest.raises(ConfigError, match=r"node.id.first="):
        Config(node_id_first=2**31 - 3, node_ids=4)


def test_first_node_id_of_a_group_has_an_upper_limit() -> None:
    group: dict[str, Any] = {"log": "kafka", "bootstrap_servers": "kafka:9092", "ownership": "group"}
    assert Config(node_id_first=2**30, **group).node_id_first == 2**30
    with pytest.raises(
        ConfigError, match=r"node.id.first=1073741825 .* at most 1073741824 with ownership=group"
    ):
        Config(node_id_first=2**30 + 1, **group)


def test_config_is_immutable() -> None:
    with pytest.raises(ValidationError):
        Config().state_partitions = 7


def test_setting_log_kafka_requires_brokers_and_credentials() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing: .* at least one broker"):
        Config(log="kafka")
    with pytest.raises(ConfigError, match=r"sasl\.password is missing: .* security\.protocol=SASL_SSL"):
        Config(
            log="kafka",
            bootstrap_servers="b:1",
            security_protocol="SASL_SSL",
            sasl=SaslSettings(username="me"),
        )
    config = Config(log="kafka", bootstrap_servers="b:1, [::1]:2", state_topic_replication_factor=5)
    assert config.bootstrap_servers == "b:1,[::1]:2"


def test_replication_factor_over_1_is_refused_with_a_journal() -> None:
    with pytest.raises(ConfigError, match="the journal has one copy"):
        Config(state_topic_replication_factor=3)
    assert Config(state_topic_replication_factor=1).log == "journal"


def test_secret_is_displayed_as_asterisks() -> None:
    config = Config(sasl=SaslSettings(password="s3cret"))
    shown = {setting.name: setting.display_value(config) for setting in SETTINGS}
    assert shown["sasl.password"] == "********"
    assert shown["ssl.key.password"] == ""
    assert shown["sasl.mechanism"] == "PLAIN"
