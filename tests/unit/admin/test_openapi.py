"""The OpenAPI document, and the refusal of query parameters that it does not list."""

import re
from pathlib import Path

import pytest

from tests.unit.admin.admin_server import get_json, run_admin
from tests.unit.admin.test_tokens import write_token_file

GROUPS = "/api/v1/groups"


async def test_openapi_document_describes_authentication_and_has_operation_ids(tmp_path: Path) -> None:
    token_file = str(write_token_file(tmp_path, "prometheus read 0123456789abcdef\n"))
    document = await get_json("/openapi.json", http_token_file=token_file)
    assert document["components"]["securitySchemes"].keys() == {"bearerToken"}
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", each["operationId"]) for each in operations)
    assert "security" not in document["paths"]["/livez"]["get"]
    for path in (GROUPS, "/healthz", "/metrics"):
        assert document["paths"][path]["get"]["security"] == [{"bearerToken": []}]
        assert {"401", "403", "429"} <= document["paths"][path]["get"]["responses"].keys()


async def test_openapi_document_requires_no_authentication_without_tokens() -> None:
    document = await get_json("/openapi.json")
    assert "security" not in document["paths"][GROUPS]["get"]


@pytest.mark.parametrize("path", [GROUPS, "/api/v1/shards", "/api/v1/events"])
async def test_unknown_query_parameter_is_refused(path: str) -> None:
    answer = await get_json(path + "?offest=1", status=422)
    assert answer["message"].startswith("unknown query parameter 'offest'; ")


async def test_documented_and_page_query_parameters_are_accepted() -> None:
    async with run_admin() as coordinator:
        for path in (
            GROUPS + "?limit=1&offset=0&contains=x&sort=group&descending=true",
            "/?group=orders&at=5",
        ):
            assert (await coordinator.get(path)).status_code == 200
