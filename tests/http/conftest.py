"""Real servers on loopback, each with a state directory of its own, ended with the test."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.warm import Nursery, Started

ROOT = Path(__file__).parents[2]
TOKEN = "token-for-tests-0123456789"
START_S = 20.0


@dataclass
class Running:
    """A server process and a client that has its token."""

    process: Started
    home: Path
    address: str
    http: httpx.Client
    nursery: Nursery
    env: dict[str, str] = field(default_factory=dict)

    def vctl(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A remote command."""
        env = {**self.env, "VCTL_ADDRESS": self.address, "VCTL_TOKEN": TOKEN, **more}
        env.pop("VCTL_HOME", None)
        return self.nursery.run(list(words), env, Path.cwd())

    def nodes(self, count: int, template: str = "t", resources: dict[str, object] | None = None) -> None:
        body = {"count": count, "template": template, "resources": resources or {"CPU": 4}}
        assert self.http.post("/api/v1/nodes", json=body).status_code == 200

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The tables as they are, to see that nothing changed."""
        import sqlite3

        with closing(sqlite3.connect(self.home / "cluster.db")) as db:
            return db.execute(sql).fetchall()

    def tree(self) -> list[object]:
        """All of the tree that an operation could change."""
        return [
            self.rows(
                "SELECT cluster_id, parent_id, divisible, revision, spec, state FROM clusters ORDER BY 1"
            ),
            self.rows("SELECT vnode_id, cluster_id, node_id FROM vnodes ORDER BY 1"),
            self.rows("SELECT max(seq) FROM events"),
        ]


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path, nursery: Nursery) -> Iterator[Start]:
    """Start a server with some options; ``expect`` is its exit code when it is to refuse."""
    running: list[Started] = []
    clients: list[httpx.Client] = []

    def begin(*options: str, home: Path | None = None, **more: str) -> Running:
        place = home or tmp_path / "state"
        env = {k: v for k, v in os.environ.items() if not k.startswith("VCTL_")}
        env |= {
            "VCTL_HOME": str(place),
            "VCTL_LOCAL_NODE": "0",
            "PYTHONPATH": str(ROOT),
            "VCTL_TOKEN": TOKEN,
            "VCTL_RAY_JOBS": "none",
            **more,
        }
        env = {name: value for name, value in env.items() if value}
        words = ["serve", *options]
        if "--uds" not in options:
            words += ["--port", "0"]
        process = nursery.start(words, env, tmp_path)
        running.append(process)
        line = process.stderr.readline()
        address = line.partition(" answers at ")[2].partition(",")[0].strip()
        assert address, line + process.stderr.read()
        if address.startswith("unix:"):
            transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"))
            client = httpx.Client(transport=transport, base_url="http://vctl", timeout=30)
        else:
            client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        clients.append(client)
        give_up = time.monotonic() + START_S
        while True:
            try:
                client.get("/healthz")
                break
            except httpx.TransportError:
                assert time.monotonic() < give_up
                time.sleep(0.05)
        return Running(process, place, address, client, nursery, env)

    yield begin
    for client in clients:
        client.close()
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = process.stderr.read()
        process.stderr.close()
        assert "Traceback" not in left, left


@pytest.fixture
def server(start: Start) -> Running:
    return start()


def message(response: httpx.Response) -> str:
    """What an answer says, in either envelope."""
    body = response.json()
    return str(body["msg"] if "msg" in body else body["error"]["message"])


def pretty(value: object) -> str:
    return json.dumps(value, indent=2)
