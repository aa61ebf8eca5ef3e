"""The security settings of the listener: valid combinations, and secrets from files."""

from operator import attrgetter
from pathlib import Path

import pytest

from coordinator.config import SETTINGS, Config, HostPort, load_config
from coordinator.config.admin import is_loopback
from coordinator.errors import ConfigError

SSL = {
    "listen.security.protocol": "ssl",
    "listen.ssl.certificate.location": "/tls/tls.pem",
    "listen.ssl.ca.location": "/tls/ca.pem",
    "listen.ssl.client.auth": "Required",
    "listen.allowed.principals": "User:CN=broker",
}
SASL = {
    "listen.security.protocol": "SASL_PLAINTEXT",
    "listen.sasl.enabled.mechanisms": "plain, SCRAM-SHA-512,plain",
    "listen.sasl.users.file": "/users",
    "listen.allowed.principals": "User:broker",
}
OAUTH = {
    **SASL,
    "listen.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listen.sasl.users.file": "",
    "listen.sasl.oauthbearer.jwks.endpoint.url": "/keys.json",
}
GROUP = {"log": "kafka", "bootstrap.servers": "k:1", "ownership": "group"}


def test_secured_listener_may_use_any_address() -> None:
    for settings in (SSL, SASL, OAUTH):
        config = load_config({**settings, "listen": "0.0.0.0:9095", "advertise": "kafka-1:9095"}).config
        assert config.listen.host == "0.0.0.0"
    assert load_config(SASL).config.listen_mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert load_config(SSL).config.listen_mechanisms == ()
    assert load_config(SSL).config.listen_uses_tls
    anybody = {"listen.ssl.client.auth": "none", "listen.allowed.principals": "User:ANONYMOUS"}
    assert load_config({**SSL, **anybody}).config.listen_uses_tls


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
def test_plaintext_listener_may_use_loopback_addresses(host: str) -> None:
    assert load_config({"listen": f"{host}:9095"}).config.listen.port == 9095


def test_plaintext_on_other_addresses_requires_plaintext_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^listen=10.0.0.1:9095 cannot be used: .*plaintext.allowed=true"):
        load_config({"listen": "10.0.0.1:9095"})
    settings = {"listen": "10.0.0.1:9095", "listen.plaintext.allowed": "True"}
    assert load_config(settings).config.listen.host == "10.0.0.1"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({**SSL, "listen.ssl.certificate.location": ""}, "listen.ssl.certificate.location"),
        ({**SSL, "listen.allowed.principals": ""}, "listen.allowed.principals"),
        ({**SSL, "listen.ssl.ca.location": ""}, "listen.ssl.ca.location"),
        ({**SSL, "listen.ssl.client.auth": "none"}, "listen.ssl.client.auth"),
        ({**SASL, "listen.allowed.principals": ""}, "listen.allowed.principals"),
        ({**SASL, "listen.sasl.enabled.mechanisms": ""}, "listen.sasl.enabled.mechanisms"),
        ({**SASL, "listen.sasl.enabled.mechanisms": "GSSAPI"}, "listen.sasl.enabled.mechanisms"),
        ({**SASL, "listen.sasl.users.file": ""}, "listen.sasl.users.file"),
        (
            {**OAUTH, "listen.sasl.oauthbearer.jwks.endpoint.url": ""},
            "listen.sasl.oauthbearer.jwks.endpoint.url",
        ),
        ({**SASL, "listen.security.protocol": "SASL_SSL"}, "listen.ssl.certificate.location"),
        ({**SASL, **GROUP}, "forwarding.sasl.username"),
        ({**SASL, **GROUP, "forwarding.sasl.username": "me"}, "forwarding.sasl.password"),
        (
            {**SASL, **GROUP, "forwarding.sasl.mechanism": "OAUTHBEARER"},
            "forwarding.sasl.oauthbearer.token.file",
        ),
        ({"listen.allowed.principals": "User:a"}, "listen.allowed.principals"),
        ({"listen.sasl.users.file": "users"}, "listen.sasl.users.file"),
        ({"listen.sasl.enabled.mechanisms": "PLAIN"}, "listen.sasl.enabled.mechanisms"),
        ({"listen.ssl.certificate.location": "cert.pem"}, "listen.ssl.certificate.location"),
        ({"listen.security.protocol": "TLS"}, "listen.security.protocol"),
    ],
)
def test_error_of_invalid_combination_names_the_setting(settings: dict[str, str], setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(settings)
    assert raised.value.setting == setting
    assert "\n" not in str(raised.value)


def test_every_secret_can_be_given_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  let me in \n")
    # This test omits the http.* settings, which also require a certificate, and the URL of a webhook.
    omitted = ("http.", "signals.")
    secrets = [setting for setting in SETTINGS if setting.secret and not setting.name.startswith(omitted)]
    assert {"sasl.password", "listen.ssl.key.password"} <= {setting.name for setting in secrets}
    for setting in secrets:
        loaded = load_config({f"{setting.name}.file": str(file)})
        assert attrgetter(setting.attribute)(loaded.config) == "  let me in "
        assert setting.display_value(loaded.config) == "********"
        assert loaded.origins[setting.name] == f"{file}, flag --set {setting.name}.file"
        environ = {f"{setting.env}_FILE": str(file)}
        assert load_config(environ=environ).config == loaded.config


def test_secret_given_twice_or_in_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x")
    with pytest.raises(ConfigError, match=r"sasl.password.file=.* omitted if sasl.password is given"):
        load_config({"sasl.password": "let-me-in", "sasl.password.file": str(file)})
    with pytest.raises(ConfigError, match="a readable file: No such file"):
        load_config({"sasl.password.file": str(tmp_path / "nothing")})


def test_secret_of_a_misspelt_setting_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"^sasl.pasword cannot .* did you mean sasl.password") as raised:
        load_config({"sasl.pasword": "let-me-in"})
    assert "let-me-in" not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("127.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
    ],
)
def test_is_loopback_accepts_only_loopback_addresses(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_exposed_plaintext_listener_causes_a_warning() -> None:
    others = HostPort("0.0.0.0", 9095)
    config = Config(listen=others, advertise=HostPort("h", 9095), listen_plaintext_allowed="true")
    assert "every host that reaches it" in str(config.listener_exposure_warning(config.listen))
    assert config.listener_exposure_warning(HostPort("127.0.0.1", 9095)) is None
