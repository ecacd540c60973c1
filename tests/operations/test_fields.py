"""A field of a submit goes all the way: Python, HTTP, a batch, the row, a rerun, and the line that submits again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import vctl
from tests.operations.test_declared import Routes, _Wire
from tests.specification import spec
from vctl import ops
from vctl.cli import catalog, declare
from vctl.client.fields import JobFields
from vctl.client.job_verbs import Jobs
from vctl.config import Config, load
from vctl.core.resources import CPU, SCALE
from vctl.errors import BadSpec
from vctl.http.app import create_app
from vctl.http.context import Server
from vctl.operations import jobs
from vctl.operations.declare import Context, Local, Remote
from vctl.ops import nodes, reruns, submitting
from vctl.ops.remedies import resubmit
from vctl.ray.private.raylets import JOB_CONFIG
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.params import LONGEST_S, declared
from vctl.spec.quantities import parse_duration
from vctl.spec.task_request import TaskRequest
from vctl.store import jobs as table
from vctl.store import rows
from vctl.store.store import Store

pytestmark = spec("13.submit", "13.batch", "14.remote", "15.client")

SPEC = {"flexible_resource_min": {"CPU": 2}}
FIELDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "virtual_cluster": (SPEC, "spec", {}),
    "cluster": ("lab", "cluster", {}),
    "num_cpus": (2, "spec", {}),
    "num_gpus": (0.5, "spec", {}),
    "memory": ("1GiB", "spec", {}),
    "nodes": (2, "spec", {}),
    "entrypoint_num_cpus": (2, "entry", {}),
    "entrypoint_num_gpus": (0.5, "entry", {}),
    "entrypoint_memory": ("1GiB", "entry", {}),
    "entrypoint_resources": ({"disk": 1}, "entry", {}),
    "priority": (-7, "priority", {}),
    "time_limit_s": (90.5, "time_limit_s", {}),
    "signal": ("USR1@30", "signal", {}),
    "notify": ("./hook", "notify", {}),
    "begin_at": (4e9, "begin_at", {}),
    "hold": (True, "hold", {}),
    "after": (["any:before"], "after", {}),
    "per_node": (True, "per_node", {"num_cpus": 1}),
    "label": (True, "label", {"num_cpus": 1, "per_node": True}),
    "private": (["tmp", "pids"], "private", {}),
    "ray": (True, "ray", {"num_cpus": 1}),
    "ray_dashboard": (True, "ray", {"num_cpus": 1}),
    "runtime_env": ({"pip": ["x"]}, "runtime_env", {"num_cpus": 1, "ray": True}),
    "array": ("0-9:3%2", "array", {}),
    "max_retries": (3, "max_retries", {}),
    "retry_on": (["ExitCode"], "retry_on", {"max_retries": 1}),
    "backoff_s": (7.5, "backoff_s", {"max_retries": 1}),
    "grace_s": (9.5, "grace_s", {}),
    "name": ("of mine", "name", {}),
    "submission_id": ("chosen", "submission_id", {}),
    "env": ({"A": "b"}, "env", {}),
    "clean_env": (True, "clean_env", {}),
    "cwd": ("/usr", "cwd", {}),
    "metadata": ({"team": "a"}, "metadata", {}),
    "labels": ({"team": "b"}, "labels", {}),
    "job_scope": ("all", "job_scope", {}),
}
"""Field of the HTTP body -> a value other than its default, the field of the request, and what it needs beside it."""
PYTHON = {"time_limit_s": "time_limit", "backoff_s": "backoff", "grace_s": "grace", "cwd": "working_dir"}
NOT_AGAIN = {"hold", "begin_at", "after", "submission_id"}
"""A job that is submitted again has none of these (spec 13: rerun)."""
IN_ENVIRONMENT = {"env", "clean_env", "runtime_env"}
"""A rerun has them with the environment of the job."""
NOT_IN_A_LINE = NOT_AGAIN | {"env", "clean_env", "array", "labels", "job_scope"}
"""The line takes variables, array and rights from who types it; labels are metadata of a job."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A state directory with nodes, a cluster, and a job to wait for."""
    home = str(tmp_path_factory.mktemp("fields") / "home")
    found = load(env={"VCTL_HOME": home, "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
    with Store.open(found.home()) as store:
        resources = {name: amount * SCALE for name, amount in ((CPU, 8), ("GPU", 2), ("disk", 9))}
        nodes.add(store, resources={**resources, "memory": 2**34 * SCALE}, count=2)
        ops.clusters.create(store, "lab", ClusterChange(divisible=True, spec=parse_cluster_spec({})))
        submitting.submit(store, JobRequest(argv=("true",), submission_id="before", cwd="/"))
    return found


@pytest.fixture(scope="module")
def routes(config: Config) -> Routes:
    return Routes(create_app(Server(config.home(), config, None)))


def submitted(
    backend: Any, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, many: bool = False
) -> JobRequest:
    """The request that arrives where it is carried out; nothing is queued."""
    arrived: list[JobRequest] = []

    def queue(_: Store, request: Any, *__: Any, **___: Any) -> Any:
        arrived.extend([request] if isinstance(request, JobRequest) else [one for one, _ in request])
        return ["x"] if many else ops.jobs.get_job(_, "before")

    with monkeypatch.context() as patch:
        patch.setattr(ops.submitting, "submit", queue)
        patch.setattr(ops.submitting, "queue", lambda *given: queue(*given)["submission_id"])
        patch.setattr(ops.batches, "queue", queue)
        if isinstance(backend, Jobs):
            values = {PYTHON.get(field, field): value for field, value in values.items()}
            if many:
                backend.submit_many([{"entrypoint": "true", **values}])  # type: ignore[typeddict-item]
            else:
                backend.submit("true", **values)  # type: ignore[arg-type]
        elif many:
            jobs.submit_many(backend, [{"entrypoint": ["true"], **values}])
        else:
            jobs.submit(backend, ["true"], **values)
    return arrived[0]


def test_the_table_has_every_field() -> None:
    """A new field needs a line here."""
    params = {param.wire for param in jobs.submit.params} - {"entrypoint", "environment"}
    assert set(FIELDS) == params
    assert {PYTHON.get(name, name) for name in FIELDS} - {"job_scope"} == JobFields.__optional_keys__
    assert {field for _, field, _ in FIELDS.values()} == {*JobRequest.__slots__} - {"argv", "attach"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_a_submit_goes_all_the_way(
    name: str, config: Config, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, field, more = FIELDS[name]
    values = {name: value, **more}

    @contextmanager
    def opened() -> Iterator[Store]:
        with Store.open(config.home()) as store:
            yield store

    @contextmanager
    def connected() -> Iterator[Any]:
        yield _Wire(routes)

    local, remote = Local(config, opened), Remote(connected)
    plain = submitted(local, more, monkeypatch)
    request = submitted(local, values, monkeypatch)
    assert getattr(request, field) != getattr(plain, field)
    assert submitted(local, values, monkeypatch, many=True) == request
    for many in (False, True):
        sent = submitted(remote, {"cwd": request.cwd, **values}, monkeypatch, many=many)
        assert getattr(sent, field) == getattr(request, field)
        if name != "job_scope":  # a setting in Python
            assert submitted(vctl.connect(config.home()).jobs, values, monkeypatch, many=many) == request

    with opened() as store:
        monkeypatch.setattr(submitting, "_check_ray", lambda *_, **__: None)  # Ray need not be installed
        name_of_job = submitting.queue(store, request, {"PATH": "/bin"})
        array = ops.arrays.named(store, name_of_job)
        number = array["first_job_id"] if array is not None else table.number_of(store, name_of_job)
        row, launch = table.get(store, number), table.launch(store, number)
        assert row is not None and launch is not None
        again = submitting.request_of(row, launch, array)
        line = resubmit(row, launch, rows.pending(row))
    if field not in NOT_AGAIN | IN_ENVIRONMENT | {"labels"}:
        assert getattr(again, field) == getattr(request, field), "a rerun has it"
    assert again.env.items() >= dict(request.env).items()
    if field == "runtime_env":
        assert json.loads(again.env[JOB_CONFIG])["runtime_env"] == value
    assert again.metadata == {**request.labels, **request.metadata}
    if field not in NOT_IN_A_LINE:
        _, _, typed = line.partition(" && vctl ")
        command, rest = catalog.find(shlex.split(typed))
        read = declare.read(command, rest)
        assert read is not None, typed
        given = command.arguments(read)
        options = dict(given["options"])
        around = given["around"]
        if field == "runtime_env":
            assert json.loads(given["runtime_env_json"]) == value
        elif field in ("cwd", "metadata"):
            found = around["working_dir"] if field == "cwd" else dict([around["metadata"][0].split("=")])
            assert found == getattr(request, field)
        else:
            context = Context(None, config)  # type: ignore[arg-type]  # it asks for no store
            typed_request = jobs.JOB_FIELDS.read(context, options)
            assert getattr(typed_request, field) == getattr(request, field), typed


@pytest.mark.parametrize("kind", [JobRequest, TaskRequest])
def test_the_limits_of_a_field_are_those_of_its_declaration(kind: type[Any]) -> None:
    """They stand in the declaration only, which all surfaces read, and hold for requests that other programs make."""
    limits = declared(kind).limits
    assert limits.keys() >= {"max_retries", "grace_s"}
    for name, info in limits.items():
        assert info.minimum is not None and info.maximum is not None
        for value in (info.minimum or 1, info.maximum):
            kind(argv=("true",), **{name: value})
        for value in (info.minimum - 1, info.maximum + 1):
            with pytest.raises(BadSpec, match=f"^{name.removesuffix('_s')}: .* out of range"):
                kind(argv=("true",), **{name: value})


def test_the_longest_duration_is_the_same_everywhere(routes: Routes) -> None:
    """OpenAPI allowed 1e10 seconds, and a submit refused more than a hundred years."""
    schemas = routes.get("/openapi.json").json()["components"]["schemas"]
    fields = {
        (model, name): field.get("maximum") or field["anyOf"][0]["maximum"]
        for model in ("JobSubmit", "JobEdit", "JobStop", "TaskRun", "TaskCancel", "Prune")
        for name, field in schemas[model]["properties"].items()
        if name in ("time_limit_s", "grace_s", "backoff_s", "older_than_s")
    }
    assert len(fields) == 10
    assert set(fields.values()) == {LONGEST_S}
    assert parse_duration(str(LONGEST_S), "t") == LONGEST_S
    with pytest.raises(BadSpec):
        parse_duration(str(LONGEST_S + 1), "t")


def test_a_job_in_a_directory_of_any_bytes_is_submitted_again(config: Config, tmp_path: Path) -> None:
    """A directory that is not UTF-8 is stored as bytes; a rerun took them for a text and failed."""
    directory = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(directory)
    with Store.open(config.home()) as store:
        request = JobRequest(argv=("true",), cwd=os.fsdecode(directory), submission_id="bytes", hold=True)
        submitting.submit(store, request, environment={})
        again = reruns.rerun(store, "bytes")
        launch = table.launch(store, again["job_id"])
        assert launch is not None
        assert os.fsencode(launch["cwd"]) == directory
