"""Authentication and authorization of HTTP requests: tokens, scopes, read-only mode and the Host header."""

import logging
import re
from pathlib import Path

import pytest

from coordinator.config import Config, HostPort
from coordinator.config.admin import HttpTlsSettings
from coordinator.errors import ConfigError
from coordinator.operate.admin.access_control import PROBES, AccessControl, AccessDenied
from coordinator.operate.admin.login_throttle import FAILED_LOGINS_MAX
from coordinator.operate.admin.page_routes import RUNBOOK_PATH
from tests.unit.admin.admin_server import AdminTestClient, run_admin
from tests.unit.admin.test_tokens import READING, WRITING, write_token_file

WRONG = "wrong-0123456789-0123456789"
AUDIT = "coordinator.audit"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    return str(write_token_file(tmp_path, f"prometheus read {READING}\nalice write {WRITING}\n"))


def bearer_header(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def get_status_and_message(
    coordinator: AdminTestClient, path: str, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    answer = await coordinator.get(path, headers)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()["message"]


async def test_public_paths_need_no_token(token_file: str) -> None:
    async with run_admin(http_token_file=token_file) as coordinator:
        for path in (*PROBES, "/", "/assets/page.js", "/assets/api.js", "/openapi.json", "/runbook"):
            assert (await coordinator.get(path)).status_code == 200, path
        # Public paths ignore a wrong Authorization header.
        assert (await coordinator.get("/livez", bearer_header(WRONG))).status_code == 200
        for path in ("/healthz", "/metrics", "/api/v1/groups", "/nowhere"):
            status, message = await get_status_and_message(coordinator, path)
            assert status == 401, path
            assert message.startswith("a token is required: send Authorization: Bearer TOKEN")


async def test_valid_token_allows_reading(token_file: str) -> None:
    async with run_admin(http_token_file=token_file) as coordinator:
        for token in (READING, WRITING):
            for path in ("/healthz", "/metrics", "/api/v1/groups"):
                assert (await coordinator.get(path, bearer_header(token))).status_code == 200
        assert (await get_status_and_message(coordinator, "/nowhere", bearer_header(READING)))[0] == 404


@pytest.mark.parametrize(
    ("authorization", "said"),
    [
        (f"Bearer {WRONG}", "the token is not valid"),
        (f"Bearer {READING} {READING}", "the token is not valid"),
        ("Bearer", "the Authorization header has no bearer token"),
        ("Basic YTpi", "the Authorization header has no bearer token"),
        (READING, "the Authorization header has no bearer token"),
    ],
)
async def test_invalid_token_returns_401_with_reason(token_file: str, authorization: str, said: str) -> None:
    async with run_admin(http_token_file=token_file) as coordinator:
        answer = await coordinator.get("/healthz", {"Authorization": authorization})
        assert answer.status_code == 401
        assert answer.json()["message"].startswith(said)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert READING not in answer.text


async def test_metrics_need_no_token_if_http_metrics_open_is_true(token_file: str) -> None:
    async with run_admin(http_token_file=token_file, http_metrics_open="true") as coordinator:
        assert (await coordinator.get("/metrics")).status_code == 200
        assert (await coordinator.get("/healthz")).status_code == 401


async def test_failed_logins_are_throttled_but_known_token_is_accepted(
    token_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinator.audit")
    async with run_admin(http_token_file=token_file) as coordinator:
        assert (await coordinator.get("/healthz", bearer_header(READING))).status_code == 200
        for _ in range(FAILED_LOGINS_MAX):
            assert (await coordinator.get("/healthz", bearer_header(WRONG))).status_code == 401
        # A throttled response does not reveal whether the token is valid.
        for token in (WRONG, WRITING):
            answer = await coordinator.get("/healthz", bearer_header(token))
            assert answer.status_code == 429
            assert 0 < int(answer.headers["retry-after"]) <= FAILED_LOGINS_MAX
            assert "too many wrong tokens from" in answer.json()["message"]
        assert (await coordinator.get("/healthz", bearer_header(READING))).status_code == 200
        assert (await coordinator.get("/readyz")).status_code == 200
        text = (await coordinator.get("/metrics", bearer_header(READING))).text
        counted = re.findall(
            r'^share_coordinator_http_refused_total\{status="(\d+)"\} (\d+)', text, re.MULTILINE
        )
        refused = {status: int(count) for status, count in counted}

    assert refused == {"401": FAILED_LOGINS_MAX, "429": 2}
    wrong = [record for record in caplog.records if vars(record).get("why") == "wrong token"]
    assert len(wrong) == FAILED_LOGINS_MAX
    assert all(WRONG not in str(vars(record)) for record in caplog.records)


def test_failed_logins_of_an_ipv6_network_count_together(token_file: str) -> None:
    access = AccessControl(Config(http_token_file=token_file))
    for host in range(FAILED_LOGINS_MAX + 1):
        with pytest.raises(AccessDenied) as denied:
            access.authenticate(f"2001:db8::{host:x}", f"Bearer {WRONG}", None)
    assert denied.value.status == 429


async def test_changed_token_file_takes_effect_after_reload(token_file: str) -> None:
    async with run_admin(http_token_file=token_file) as coordinator:
        assert (await coordinator.get("/healthz", bearer_header(READING))).status_code == 200
        write_token_file(Path(token_file).parent, f"prometheus read {WRONG}\n")
        assert coordinator.access.reload_if_changed()
        assert (await coordinator.get("/healthz", bearer_header(READING))).status_code == 401
        assert (await coordinator.get("/healthz", bearer_header(WRONG))).status_code == 200


@pytest.mark.parametrize(
    ("settings", "token", "status", "said"),
    [
        ({}, WRITING, 403, "this coordinator is read-only over HTTP; set http.writes=true"),
        ({"http_writes": "true"}, "", 401, "a token is required"),
        (
            {"http_writes": "true"},
            READING,
            403,
            "token prometheus may only read; a change requires a token of scope write",
        ),
    ],
)
async def test_executed_write_requires_scope_write(
    token_file: str,
    settings: dict[str, str],
    token: str,
    status: int,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run_admin(http_token_file=token_file, **settings) as coordinator:
        headers = bearer_header(token) if token else {}
        answer = await coordinator.post("/api/v1/hand-overs", {"shard": 0, "execute": True}, headers)
        assert answer.status_code == status
        assert answer.json()["message"].startswith(said)
    noted = [(vars(record)["who"], vars(record)["why"]) for record in caplog.records if record.name == AUDIT]
    name = {READING: "token prometheus", WRITING: "token alice"}.get(token)
    assert noted == ([(name, "no right to write")] if status == 403 else [])


@pytest.mark.parametrize("settings", [{}, {"http_writes": "true"}])
async def test_dry_run_requires_scope_read(token_file: str, settings: dict[str, str]) -> None:
    async with run_admin(http_token_file=token_file, **settings) as coordinator:
        # An authorized dry run returns 409, because the coordinator owns all shards (ownership=static).
        for token, status in ((READING, 409), (WRITING, 409), (WRONG, 401)):
            answer = await coordinator.post("/api/v1/hand-overs", {"shard": 0}, bearer_header(token))
            assert answer.status_code == status
        order = {"shard": 0, "execute": True}
        refused = await coordinator.post("/api/v1/hand-overs", order, bearer_header(READING))
        assert (refused.status_code, refused.json()["status"]) == (403, 403)
        text = (await coordinator.get("/metrics", bearer_header(READING))).text
        assert 'share_coordinator_http_refused_total{status="403"} 1.0' in text


async def test_default_settings_allow_reads_and_refuse_writes() -> None:
    async with run_admin() as coordinator:
        assert (await coordinator.get("/healthz")).status_code == 200
        assert (await coordinator.get("/metrics", bearer_header(WRONG))).status_code == 200
        answer = await coordinator.post("/api/v1/hand-overs", {"shard": 0, "execute": True})
        assert answer.status_code == 403
        assert "http.writes=true" in answer.json()["message"]


async def test_unknown_host_header_is_refused_without_authentication() -> None:
    known = ["127.0.0.1:9096", "localhost:8080", "coordinator.localhost", "[::1]:9096", "10.0.0.1"]
    unknown = ["evil.example:9096", "evil.example", "localhost.evil.example:9096", "127.0.0.1.evil.example"]
    for settings, status in (
        ({}, 403),
        ({"http_allowed_principals": "User:ANONYMOUS"}, 200),
        ({"http": HostPort("0.0.0.0", 9096)}, 200),
    ):
        async with run_admin(**settings) as coordinator:  # type: ignore[arg-type]
            for host in known + unknown:
                answer = await coordinator.get("/api/v1/groups", {"Host": host})
                assert answer.status_code == (200 if host in known else status), host
                assert (await coordinator.get("/readyz", {"Host": host})).status_code == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"http_writes": "true"}, "http.writes=true cannot be used"),
        (
            {"http_ssl_key_location": "k"},
            "http.ssl.key.location=k cannot be used: it must be given together with",
        ),
        ({"http_ssl_key_password": "hush"}, r"http.ssl.key.password=\*+ cannot be used"),
        ({"http_ssl_client_auth": "required"}, "http.ssl.client.auth=required cannot be used"),
        (
            {"http_ssl_certificate_location": "c"},
            "http.token.file is missing: it must be given with TLS",
        ),
        (
            {"http_ssl_certificate_location": "c", "http_ssl_client_auth": "required"},
            "http.ssl.ca.location is missing",
        ),
        (
            {
                "http_ssl_certificate_location": "c",
                "http_ssl_client_auth": "required",
                "http_ssl_ca_location": "a",
            },
            "http.token.file is missing: it must be given with TLS, because no client may read",
        ),
        ({"http_allowed_principals": "User:alice"}, "http.token.file is missing"),
    ],
)
def test_invalid_combination_of_http_settings_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config(**settings)  # type: ignore[arg-type]


def test_exposed_http_address_without_protection_is_warned_about() -> None:
    everywhere, here = HostPort("0.0.0.0", 9096), HostPort("127.0.0.1", 9096)
    assert Config().http_exposure_warning(here) is None
    assert Config().http_exposure_warning(HostPort("::1", 9096)) is None
    assert "to everybody who can reach it" in (Config().http_exposure_warning(everywhere) or "")
    assert "takes tokens in clear" in (Config(http_token_file="t").http_exposure_warning(everywhere) or "")
    safe = Config(http_token_file="t", http_ssl=HttpTlsSettings(certificate_location="c"))
    assert safe.http_exposure_warning(everywhere) is None


async def test_runbook_is_served_as_html_without_markdown_syntax() -> None:
    async with run_admin() as coordinator:
        answer = await coordinator.get(RUNBOOK_PATH)
    assert answer.headers["content-type"].startswith("text/html")
    assert '<h2 id="sharegroupstuck">ShareGroupStuck</h2>' in answer.text
    assert "<b>Do.</b>" in answer.text
    assert not {mark for mark in ("**", "](", "`") if mark in answer.text}
