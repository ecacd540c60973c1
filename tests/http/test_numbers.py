"""Every number that comes in over HTTP has its limit before any work: a huge one ends no server and no machine.

``{"model": {"jobs": 500}, "nodes": [1000000000]}`` took 23 GB.
"""

from __future__ import annotations

import copy
import json
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.http.conftest import Running, Start
from tests.http.test_fuzz import IN_PATH, OTHERS, wire
from tests.operations import test_crash_matrix as matrix
from tests.operations.test_declared import DECLARED, Routes
from tests.spec.test_fuzz import QUEUE, SPEC, TREE
from tests.specification import spec
from vctl.config import load
from vctl.http.app import create_app
from vctl.http.context import Server
from vctl.operations import simulation
from vctl.store.store import Store

pytestmark = spec("14.safety", "4.errors")

base = matrix.base
HUGE = (10**6, 2**31, 2**53, 10**18, 10**300, 1e300, 1e-300, -(10**18))
MEMORY = 2 << 30
"""The address space of the server: it has 600 MB when it begins."""
GROWTH = 300 << 20
"""What one request may take; the largest that is accepted adds 100,000 nodes."""
SLOWEST_S = 20.0
SETTINGS = {
    "backfill_depth": 3, "ageing_s": 5, "half_life_s": 60, "starvation_after_s": 9, "max_running_jobs": 4, "weight": 2,
    "max_running_per_user": 3, "min_runtime_s": 1, "preemption_grace_s": 1,
}  # fmt: skip
LINE = {"at": 0, "run": 60, "nodes": 2, "resources": {"CPU": 1}, "limit": 90, "priority": 1}
SWF = " ".join(
    ["1", "0", "0", "60", "4", "-1", "-1", "4", "90", "-1", "1", "1", "1", "1", "1", "1", "-1", "-1"]
)
DOCUMENTS: dict[str, Any] = {
    "virtual_cluster": SPEC, "spec": {name: part for name, part in SPEC.items() if name != "replica_sets"},
    "queue": {**QUEUE, **SETTINGS}, "clusters": TREE["clusters"], "model": {"jobs": 5, "seed": 1, "load": 0.9},
    "replica_sets": {"4c8g": 1}, "resources": {"CPU": 2, "GPU": 1, "memory": 100, "x": 1},
    "node_resources": {"CPU": 2, "GPU": 1}, "entrypoint_resources": {"x": 1}, "borrow_limit": {"CPU": 1},
    "lending_limit": {"CPU": 1}, "nodes": [2, 3],
}  # fmt: skip
"""A value of each parameter in which there are several numbers."""


def values_of(verb: Any) -> dict[str, Any]:
    """A number for each parameter that may be one, and a document for each that has numbers in it."""
    found = dict(matrix.calls(verb)[0]) if verb in matrix.CHANGING else {}
    for param in verb.params:
        if param.name in DOCUMENTS and not (param.name == "nodes" and int in param.kinds):
            found[param.name] = DOCUMENTS[param.name]
        elif {int, float} & {*param.kinds} and param.name != "ref":
            found.setdefault(param.name, 1)
        elif param.required:
            found.setdefault(param.name, matrix.KNOWN.get(param.name, "x"))
    return found


LIVE = [
    ("GET", "/api/v1/jobs/waits/logs", {"offset": 1, "tail": 1}), ("GET", "/api/v1/jobs/waits/wait", {"timeout_s": 0}),
    ("GET", "/api/v1/tasks/last/wait", {"timeout_s": 0}), ("GET", "/api/v1/clusters/shared/wait", {"timeout_s": 0}),
    ("POST", "/api/v1/simulate", {"trace": json.dumps(LINE)}), ("POST", "/api/v1/simulate", {"trace": SWF}),
    ("POST", "/api/v1/simulate", {"trace": f"; MaxNodes: 4\n; MaxProcs: 8\n{SWF}"}),
    ("POST", "/api/v1/simulate", {"policies": ["fifo/backfill,backfill_depth=3,half_life_s=60"], "nodes": [4]}),
]  # fmt: skip
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    *(wire(verb, values_of(verb)) for verb in DECLARED), *OTHERS, *LIVE,
]  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each number in a document; a text counts, too, where numbers are in it."""
    match value:
        case bool() | None:
            return
        case int() | float():
            yield path
        case str() if re.search(r"\d", value) and path[-1] in ("trace", "array", "signal", 0, "metadata"):
            yield from ((*path, found.span()) for found in re.finditer(r"(?<![\w.])\d+(\.\d+)?", value))
        case dict():
            for name, inner in value.items():
                yield from places(inner, (*path, name))
        case list():
            for number, inner in enumerate(value):
                yield from places(inner, (*path, number))


def with_number(values: dict[str, Any], path: tuple[Any, ...], number: float) -> dict[str, Any]:
    found = copy.deepcopy(values)
    *above, last = path
    inner: Any = found
    if isinstance(last, tuple):
        *above, last = above
        for step in above:
            inner = inner[step]
        first, end = path[-1]
        inner[last] = f"{inner[last][:first]}{number}{inner[last][end:]}"
        return found
    for step in above:
        inner = inner[step]
    inner[last] = number
    return found


def peak(server: Running) -> int:
    """The most memory that the server has had, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) << 10  # type: ignore[index]


@pytest.fixture
def limited(start: Start, base: matrix.Base, tmp_path: Path) -> Running:
    """A server that may not take much memory, on nodes, clusters and jobs in every state."""
    server = start(home=base.copy("numbers"), VCTL_AUTOSTART="0")
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    server.http.timeout = httpx.Timeout(SLOWEST_S * 2)
    return server


def ask(server: Running, method: str, path: str, values: dict[str, Any]) -> httpx.Response:
    given = dict(values)
    for word, name in IN_PATH.findall(path):
        path = path.replace(word, quote(str(given.pop(name, "waits")), safe=""))
    if method in ("GET", "DELETE"):
        return server.http.request(method, path, params={k: _word(v) for k, v in given.items()})
    return server.http.request(method, path, json=given)


def _word(value: object) -> Any:
    return value if isinstance(value, (str, int, float)) else json.dumps(value)


CASES = [
    (method, path, values, place, number)
    for method, path, values in REQUESTS
    for place in places(values)
    for number in HUGE
]


def test_huge_numbers(limited: Running) -> None:
    ask(limited, "POST", "/api/v1/simulate", {"model": {"jobs": 5}})  # imports what it needs
    before, wrong = peak(limited), []
    for method, path, values, place, number in CASES:
        began, had = time.monotonic(), peak(limited)
        where = f"{method} {path} {place} = {number}"
        try:
            answer = ask(limited, method, path, with_number(values, place, number))
        except httpx.HTTPError as error:
            error.add_note(f"{where}, {limited.process.poll()}")
            raise
        took, more = time.monotonic() - began, peak(limited) - had
        if answer.status_code >= 500 and answer.json()["error"]["code"] != "Unreachable":
            wrong.append(f"{where}: {answer.text[:200]}")
        if took > SLOWEST_S or more > GROWTH:
            wrong.append(f"{where}: {took:.1f} s, {more >> 20} MB more")
    assert wrong == []
    assert peak(limited) - before < 2 * GROWTH
    assert limited.http.get("/healthz").status_code == 200


MANY = {
    "devices of many nodes": (
        "nodes",
        {"count": 100_000, "resources": {"CPU": 65_536, "GPU": 65_536}},
        "count",
    ),
    "policies": ("simulate", {"model": {"jobs": 5}, "policies": ["fifo"] * 51}, "policies"),
    "numbers of nodes": ("simulate", {"model": {"jobs": 5}, "nodes": [1] * 51}, "nodes"),
    "jobs of a trace": ("simulate", {"trace": '{"at": 0, "run": 1}\n' * 20_001}, "more than 20000 jobs"),
    "nodes of a job": ("simulate", {"trace": '{"at": 0, "run": 1, "nodes": 10001}\n'}, "trace:1: nodes"),
    "nodes of its machine": (
        "simulate",
        {"trace": f"; MaxNodes: 10001\n{SWF}\n"},
        "a machine of 10001 nodes",
    ),
    "processors of a node": (
        "simulate",
        {"trace": f"; MaxNodes: 1\n; MaxProcs: 65537\n{SWF}\n"},
        "65537 processors",
    ),
}


@pytest.mark.parametrize(("path", "body", "named"), MANY.values(), ids=list(MANY))
def test_what_is_too_much_together(server: Running, path: str, body: dict[str, Any], named: str) -> None:
    answer = server.http.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]
    assert answer.json()["error"]["hint"]


def test_a_simulation_of_many_jobs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests wait for it, and the size of what is asked for does not say how long it takes."""
    assert simulation.LONGEST_S <= 60
    monkeypatch.setattr(simulation, "LONGEST_S", 0.3)
    config = load(env={"VCTL_HOME": str(tmp_path / "state"), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
    Store.open(tmp_path / "state").close()
    routes = Routes(create_app(Server(tmp_path / "state", config, None)))
    body = {
        "model": {"jobs": 20_000, "load": 100},
        "nodes": [2_000, 1_000],
        "policies": ["fair/backfill"] * 50,
    }
    answer = routes.request("POST", "/api/v1/simulate", json=body)
    assert answer.status_code == 400, answer.text[:300]
    assert "more than 0.3 s" in answer.json()["error"]["message"]


def test_every_declared_number_has_a_limit() -> None:
    """Amounts have theirs where they are read: 2^53."""
    open_ = [
        f"{verb.name} {param.name}"
        for verb in DECLARED
        for param in verb.params
        if param.type in (int, float) and str not in param.kinds and param.info.maximum is None
    ]
    assert open_ == []
