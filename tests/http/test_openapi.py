"""The published OpenAPI is true: generated requests find no 5xx and no answer that it does not describe."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http.conftest import TOKEN, Running, Start
from tests.specification import spec

pytestmark = spec("14.api")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 8
STREAMS = ("/api/v1/events/stream", "/api/v1/jobs/{job}/logs", "/api/v1/tasks/{task}/logs")
"""Do not end by themselves; test_streams has them."""


@pytest.fixture
def populated(start: Start) -> Running:
    """Something of everything, so that generated ids may hit."""
    server = start()
    server.nodes(3, "t")
    server.http.post(
        "/virtual_clusters", json={"virtualClusterId": "0", "divisible": True, "replicaSets": {"t": 1}}
    )
    server.http.post("/api/v1/jobs", json={"entrypoint": ["true"], "submission_id": "0"})
    return server


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_generated_requests(populated: Running, mode: GenerationMode):
    schema = schemathesis.openapi.from_url(f"{populated.address}/openapi.json")
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in STREAMS:
            continue
        seen += 1

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        def probe(case: schemathesis.Case) -> None:
            if "timeout_s" in (case.query or {}):
                case.query["timeout_s"] = 0
            case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=CHECKS, timeout=20)

        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing of it could be invalid
            probe()
    assert seen > 40
    assert populated.http.get("/healthz").json()["ok"]


def test_a_command_that_is_one_text_is_refused_with_its_fix(populated: Running):
    """Ray's route takes it, as a line for a shell; here it would be a guess."""
    for path in ("jobs", "jobs/dry-run", "tasks"):
        answer = populated.http.post(f"/api/v1/{path}", json={"entrypoint": "echo hi"})
        assert answer.status_code == 400
        assert '["sh", "-c", "LINE"]' in answer.json()["error"]["hint"], path
    for jobs in ([{"entrypoint": "echo hi"}], {"jobs": [{"entrypoint": "echo hi"}]}):
        answer = populated.http.post("/api/v1/jobs:batch", json=jobs)
        assert (answer.status_code, '["sh", "-c", "LINE"]' in answer.json()["error"]["hint"]) == (400, True)


def test_the_example_of_the_page_is_accepted(populated: Running):
    page = (Path(__file__).parents[2] / "docs/http.md").read_text(encoding="utf-8")
    example = re.search(r"/api/v1/jobs \\\n +-d '(.*)'$", page, re.MULTILINE)
    assert example
    answer = populated.http.post("/api/v1/jobs", json=json.loads(example[1]))
    assert answer.status_code == 200, answer.text
    assert answer.json()["submission_id"] == "hello"


FREE = ("revision",)
"""Any number may be sent: another one than the present revision is a conflict, not an invalid request."""


def unlimited(schemas: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    """The numbers in a schema that lack a limit on one side."""
    inner = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    least, most = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
    if inner.get("type") in ("integer", "number") and not (least & inner.keys() and most & inner.keys()):
        yield path
    for one in (*inner.get("anyOf", ()), *filter(None, [inner.get("items")])):
        yield from unlimited(schemas, one, path)
    for name, one in inner.get("properties", {}).items():
        yield from unlimited(schemas, one, f"{path} {name}")
    if isinstance(more := inner.get("additionalProperties"), dict):
        yield from unlimited(schemas, more, path)


def test_every_number_of_a_request_has_its_limits(populated: Running):
    """So a generated client refuses what the server would: OpenAPI allowed negative CPUs and 10^300 of them."""
    document = populated.http.get("/openapi.json").json()
    schemas, found = document["components"]["schemas"], []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            contents = operation.get("requestBody", {}).get("content", {}).values()
            parts = [(one["name"], one["schema"]) for one in operation.get("parameters", ())]
            parts += [("", content.get("schema", {})) for content in contents]
            for name, schema in parts:
                found += unlimited(schemas, schema, f"{method} {path} {name}".rstrip())
    assert [one for one in found if one.rpartition(" ")[2] not in FREE] == []


WRONG: dict[str, list[Any]] = {
    "POST /jobs/dry-run": [
        {"entrypoint": [""]}, {"cluster": ""}, {"cluster": "a b"}, {"submission_id": "?"}, {"array": "x"},
        {"after": ["a b"]}, {"after": ["when:a"]}, {"signal": "?"}, {"signal": ""}, {"notify": ""}, {"cwd": "here"},
        {"env": {"": "x"}}, {"env": {"a=b": "x"}}, {"retry_on": ["Never"]},
        {"private": ["pid"]}, {"time_limit_s": 0}, {"memory": 1.5},
        {"entrypoint_memory": 1.5}, {"entrypoint_resources": {"": 1}}, {"runtime_env": {"conda": "x"}},
    ],
    "POST /nodes": [
        {"resources": {"": 1}}, {"node_id": "a b"}, {"labels": {"a b": "x"}}, {"labels": {"x": "a b"}},
    ],
    "POST /clusters": [
        {"replica_sets": {"": 1}}, {"borrow_limit": {"": 1}, "spec": {}}, {"lending_limit": {"": 1}, "spec": {}},
    ],
    "POST /tree-file/plan": [{"clusters": [{}]}],
    "GET /jobs": [{"filter": ["x"]}, {"filter": ["=x"]}, {"filter": [""]}],
}  # fmt: skip
"""Route -> values of parameters that the server refuses."""
FINE: dict[str, list[Any]] = {
    "POST /jobs/dry-run": [
        {"cluster": "primary"}, {"cluster": "kPrimaryClusterID"}, {"submission_id": "a.b_c-1"},
        {"array": "1,5, 7-9:2 %4"},
        {"after": ["0", "any:0"]}, {"signal": "SIGUSR1"}, {"signal": "10@1m"}, {"notify": "./hook"},
        {"env": {"A.b": ""}},
        {"retry_on": ["OutOfMemory"], "max_retries": 1},
        {"private": ["tmp"]}, {"time_limit_s": 0.1}, {"memory": "1.5GiB"}, {"memory": 2},
        {"name": ""}, {"labels": {"any thing": "a b"}},
    ],
    "POST /nodes": [{"node_id": "ok", "labels": {"ray.io/x": "", "b": "c"}, "resources": {"CPU": 1}}],
    "GET /jobs": [{"filter": ["status!=RUNNING", "job_id>=1", " status = PENDING"]}],
}  # fmt: skip


def test_openapi_says_what_a_text_a_name_and_an_element_may_be(populated: Running):
    """33 places of it allowed what the server refuses; a table of each that a schema can say."""
    document = populated.http.get("/openapi.json").json()

    def valid(value: object, schema: dict[str, Any]) -> bool:
        return Draft202012Validator({**schema, "components": document["components"]}).is_valid(value)

    needed: dict[str, dict[str, Any]] = {
        "POST /jobs/dry-run": {"entrypoint": ["true"], "cwd": "/"}, "POST /nodes": {"resources": {"CPU": 1}},
        "POST /clusters": {"cluster_id": "new"},
    }  # fmt: skip
    for route, wrong in [*((route, True) for route in WRONG), *((route, False) for route in FINE)]:
        method, path = route.split()
        operation = document["paths"][f"/api/v1{path}"][method.lower()]
        for values in (WRONG if wrong else FINE)[route]:
            given = {**needed.get(route, {}), **values}
            if method == "GET":
                answer = populated.http.get(f"/api/v1{path}", params=given)
                schemas = {one["name"]: one["schema"] for one in operation["parameters"]}
                allowed = all(valid(value, schemas[name]) for name, value in given.items())
            else:
                answer = populated.http.post(f"/api/v1{path}", json=given)
                allowed = valid(given, operation["requestBody"]["content"]["application/json"]["schema"])
            assert (answer.status_code == 400) == wrong, (route, values, answer.text)
            assert allowed != wrong, (route, values)


def test_a_batch_and_a_command_have_an_entry(populated: Running):
    """The server refuses the empty lists; OpenAPI allowed them."""
    schemas = populated.http.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["JobSubmit"]["properties"]["entrypoint"]["minItems"] == 1
    assert schemas["JobSubmitMany"]["properties"]["jobs"]["minItems"] == 1
    for path, body in (
        ("jobs", {"entrypoint": []}),
        ("jobs:batch", {"jobs": []}),
        ("tasks:batch", {"tasks": []}),
    ):
        assert populated.http.post(f"/api/v1/{path}", json=body).status_code == 400, path


def test_every_operation_is_described(populated: Running):
    document = populated.http.get("/openapi.json").json()
    text = str(document)
    assert "HTTPValidationError" not in text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            assert "422" not in operation["responses"], (method, path)
            if path.startswith("/api/v1"):
                assert operation["security"] == [{"token": []}]
                assert {"400", "401", "404"} <= set(operation["responses"])
