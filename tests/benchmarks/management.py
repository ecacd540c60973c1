"""Ten thousand nodes and two hundred logical clusters: what the management API costs inside the server."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.benchmarks.bed import VCTL, Bed, bed
from tests.benchmarks.report import Report

CLUSTERS = 199
SMALL, LARGE = (1_000, 4), (10_000, 40)
"""Nodes, and nodes of each cluster."""
MEMBERS = 100
ROUNDS = 20
TEMPLATE = "8c16g"


def run(options: argparse.Namespace) -> Report:
    """Create, update and delete one cluster of a hundred nodes, and get all, at two sizes."""
    report = Report(f"management API: {CLUSTERS} logical clusters; time in the server, of Server-Timing")
    for nodes, members in (SMALL, LARGE):
        taken = measure(nodes, members, options.rounds or ROUNDS)
        for what, samples in taken.items():
            base = f"{what}, {SMALL[0]} nodes"
            name = f"{what}, {nodes} nodes"
            report.add(name, "ms", samples, base=None if name == base else base)
    return report


def measure(nodes: int, members: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds in the server of each request."""
    taken: dict[str, list[float]] = {"create": [], "update": [], "delete": [], "get all": []}
    with bed() as place, serving(place) as server:
        server.ask("POST", "/api/v1/nodes", {"count": nodes, "template": TEMPLATE, "resources": {"CPU": 8}})
        for number in range(CLUSTERS):
            server.bring(f"c{number:03d}", members)
        for _ in range(rounds):
            created, revision = server.bring("measured", MEMBERS)
            updated, _ = server.bring("measured", MEMBERS - 1, revision)
            got, found = server.ask("GET", "/virtual_clusters")
            assert len(found["data"]["virtualClusters"]) == CLUSTERS + 1
            deleted, _ = server.ask("DELETE", "/virtual_clusters/measured")
            for what, ms in (("create", created), ("update", updated), ("delete", deleted), ("get all", got)):
                taken[what].append(ms)
    return taken


class Server:
    """A connection to a running server."""

    def __init__(self, address: str, token: str) -> None:
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=300)
        self.headers = {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: object = None) -> tuple[float, Any]:
        """Milliseconds in the server, and the answer."""
        content = None if body is None else json.dumps(body)
        self.connection.request(method, path, content, self.headers)
        answer = self.connection.getresponse()
        content = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]}")
        timing = re.search(r"dur=([0-9.]+)", answer.headers["Server-Timing"])
        assert timing
        return float(timing[1]), json.loads(content)

    def bring(self, cluster_id: str, count: int, revision: int = 0) -> tuple[float, int]:
        """Create or update a cluster; milliseconds and the new revision."""
        body = {"virtualClusterId": cluster_id, "replicaSets": {TEMPLATE: count}, "revision": revision}
        ms, answer = self.ask("POST", "/virtual_clusters", body)
        return ms, answer["data"]["revision"]


@contextmanager
def serving(place: Bed) -> Iterator[Server]:
    """A server on a free port."""
    process = subprocess.Popen(
        [VCTL, "serve", "--port", "0"], env=place.env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        address = process.stderr.readline().partition(" answers at ")[2].strip()
        time.sleep(1)
        yield Server(address, (place.home / "token").read_text().strip())
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
