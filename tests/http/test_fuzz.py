"""Requests of a hostile stranger to every route: each is answered in the envelope of its API, and breaks nothing.

The calls of the crash matrix, with odd values in paths, queries and bodies.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import time
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.test_hostile_text import EVIL, raw
from tests.operations import test_crash_matrix as matrix
from tests.operations.test_declared import Routes
from tests.spec.test_fuzz import SLOWEST_S, SPEC, TEXTS, changed
from tests.specification import spec
from vctl.config import load
from vctl.http.app import create_app
from vctl.http.context import Server
from vctl.http.derived import _divided
from vctl.operations.declare import Operation
from vctl.ops.prove import prove
from vctl.store.store import Store

pytestmark = spec("4.errors", "14.api", "14.management", "14.ray-jobs")

base = matrix.base
"""Nodes, clusters and jobs in every state that a request can be about."""
SEED = int(os.environ.get("SEED", "1"))
IN_PATH = re.compile(r"(\{(\w+)(?::\w+)?\})")
RENEW_EVERY = 150
"""A new state after so many requests: they delete as well."""
ODD = [*TEXTS, EVIL, "%ff", "%00", "a%2fb"]
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/virtual_clusters",
     {"virtualClusterId": "m", "divisible": True, "replicaSets": {"4c8g": 1}, "revision": 0}),
    ("POST", "/virtual_clusters/remove_nodes", {"virtualClusterId": "shared", "nodesToRemove": ["n-01"]}),
    ("DELETE", "/virtual_clusters/{id}", {}),
    ("POST", "/api/jobs/", {
        "entrypoint": "true", "submission_id": "r", "runtime_env": {"env_vars": {"A": "b"}, "working_dir": "/"},
        "metadata": {"virtual_cluster": json.dumps(SPEC), "job_name": "x", "a": "b"}, "entrypoint_num_cpus": 1,
        "entrypoint_num_gpus": 0.5, "entrypoint_memory": 1, "entrypoint_resources": {"x": 1},
        "entrypoint_label_selector": {"zone": "a"},
    }),
    ("GET", "/api/jobs/{id}", {}), ("POST", "/api/jobs/{id}/stop", {}), ("DELETE", "/api/jobs/{id}", {}),
    ("GET", "/api/jobs/{id}/logs", {}), ("GET", "/api/packages/gcs/{id}.zip", {}),
]  # fmt: skip
"""Routes that no declaration has."""


def wire(verb: Operation[..., Any], call: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Method, path and values of a call, the path with its braces still in it."""
    in_path, others = _divided(verb)
    named = {param.name: word for word, param in in_path} | {param.name: param.wire for param in others}
    return verb.method, f"/api/v1{verb.path}", {named[name]: value for name, value in call.items()}


REQUESTS = OTHERS + [
    wire(verb, call)
    for verb in (*matrix.CHANGING, *matrix.READING)
    for call in (
        matrix.CASES.get(verb.name)
        or [{p.name: matrix.KNOWN.get(p.name, "x") for p in verb.params if p.required}]
    )
]


class Stranger:
    """Sends requests to the application in this process; an exception in there is not caught."""

    def __init__(self, base: matrix.Base, dice: random.Random) -> None:
        self.base, self.dice = base, dice
        self.home = base.copy("asked")
        config = load(env={"VCTL_HOME": str(self.home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
        self.routes = Routes(create_app(Server(self.home, config, None)))

    def renew(self) -> None:
        """Go on with the state of the beginning."""
        self.base.copy("asked")

    def ask(self, method: str, path: str, values: dict[str, Any]) -> None:
        dice = self.dice
        given = changed(values, dice) if dice.random() < 0.8 else copy.deepcopy(values)
        for word, name in IN_PATH.findall(path):
            known = given.pop(name, None) if isinstance(given, dict) else None
            fitting = values.get(name, known) or dice.choice(("waits", "n-03", "shared", "jobs"))
            chosen = dice.choice(ODD) if dice.random() < 0.3 else str(fitting)
            path = path.replace(word, quote(chosen[:300], safe="", errors="surrogatepass"))
        sent: dict[str, Any] = {}
        if method in ("GET", "DELETE"):
            sent["params"] = _query(given, dice)
        elif isinstance(given, dict) or dice.random() < 0.9:
            sent = {"content": _json(given, dice), "headers": {"content-type": "application/json"}}
        began = time.process_time()
        try:
            answer = self.routes.request(method, path, **sent)
        except BaseException as error:
            error.add_note(f"{method} {path[:300]} {repr(sent)[:600]}")
            raise
        where = f"{method} {path[:200]} {repr(sent)[:300]}: {answer.status_code} {answer.text[:300]}"
        assert time.process_time() - began < SLOWEST_S, where
        assert answer.status_code < 500 or answer.json()["error"]["code"] == "Unreachable", where
        if "/logs" not in path:
            assert raw(answer.content.decode()) == set(), where
        if answer.status_code >= 400:
            body = answer.json()
            assert set(body) == ({"result", "msg", "data"} if path.startswith("/virtual") else {"error"}), (
                where
            )
            assert len(answer.content) < 30_000, where

    def look_around(self) -> None:
        """Whatever was accepted: the rules hold, and lists can be read."""
        for path in (
            "jobs?all=true",
            "nodes",
            "clusters",
            "tasks?all=true",
            "events",
            "status",
            "leases",
            "demand",
        ):
            answer = self.routes.get(f"/api/v1/{path}")
            assert answer.status_code == 200, (path, answer.text[:500])
            assert raw(answer.content.decode()) == set(), path
        for path in ("/api/jobs/", "/virtual_clusters", "/metrics"):
            assert self.routes.get(path).status_code == 200, path
        with Store.open(self.home) as store:
            assert prove(store) == []


def _json(given: object, dice: random.Random) -> bytes:
    """A body as a client may send it; sometimes cut, or with a wrong byte."""
    try:
        text = json.dumps(given).encode()
    except (TypeError, ValueError, UnicodeError):
        text = repr(given).encode(errors="replace")
    if dice.random() < 0.1 and text:
        at = dice.randrange(len(text))
        text = dice.choice((text[:at], text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]))
    return text[:500_000]


def _query(given: object, dice: random.Random) -> dict[str, Any]:
    """Words of a query."""
    found: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        found[_word(name)] = [_word(one) for one in value] if isinstance(value, list) else _word(value)
    if dice.random() < 0.5:
        found[
            dice.choice(("limit", "filter", "cluster", "since", "state", "user", "all", "tail", "offset"))
        ] = _word(dice.choice(ODD))
    return found


def _word(value: object) -> str:
    return str(value)[:2000].encode(errors="replace").decode()


def fuzz(base: matrix.Base, count: int) -> None:
    dice = random.Random(SEED)
    stranger = Stranger(base, dice)
    for number in range(count):
        if number % RENEW_EVERY == RENEW_EVERY - 1:
            stranger.look_around()
            stranger.renew()
        stranger.ask(*dice.choice(REQUESTS))
    stranger.look_around()


def test_most_of_them_are_accepted_as_they_are(base: matrix.Base) -> None:
    """Else nothing odd would get deeper than the first field."""
    stranger, refused = Stranger(base, random.Random(SEED)), []
    for method, pattern, values in REQUESTS:
        given, path = {"id": "r", **values}, pattern
        for word, name in IN_PATH.findall(pattern):
            path = path.replace(word, str(given.pop(name)))
        rest = {name: value for name, value in given.items() if name in values}
        sent = {"params" if method in ("GET", "DELETE") else "json": rest}
        stranger.renew()
        answer = stranger.routes.request(method, path, **sent)
        if answer.status_code >= 400:
            refused.append((method, path, answer.text[:200]))
    assert len(refused) < len(REQUESTS) / 5, refused


def test_odd_requests_are_answered(base: matrix.Base) -> None:
    fuzz(base, 400)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_odd_requests(base: matrix.Base) -> None:
    fuzz(base, 20_000)
