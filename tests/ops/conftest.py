"""A real state directory with a clock set by hand; nothing schedules unless a test does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from vctl.core.resources import CPU, MEMORY, SCALE
from vctl.ops import nodes, submitting
from vctl.spec.job_request import JobRequest
from vctl.store.store import Store


class Ground:
    """A store with short words for what tests do to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 1_700_000_000_000_000_000
        store.clock = lambda: self.now

    def nodes(self, count: int = 1, cpus: int = 4) -> None:
        resources = {CPU: cpus * SCALE, MEMORY: 8 * 2**30 * SCALE}
        nodes.add(self.store, resources=resources, count=count, template="4c8g", node_id="n")

    def submit(
        self, submission_id: str | None = None, argv: Sequence[str] = ("true",), **fields: Any
    ) -> dict[str, Any]:
        environment = fields.pop("environment", {"PATH": "/bin"})
        fields.setdefault("cwd", "/")
        request = JobRequest(argv=tuple(argv), submission_id=submission_id, **fields)
        return submitting.submit(self.store, request, environment=environment)

    def end(self, name: str, status: str = "SUCCEEDED", code: int | None = 0) -> None:
        """As a scheduler would record it."""
        with self.store.transaction():
            self.store.db.execute(
                "UPDATE jobs SET status = ?, exit_code = ?, ended_at = ?, state_reason = NULL WHERE submission_id = ?",
                (status, code, self.now, name),
            )


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Store.open(tmp_path / "state") as store:
        here = Ground(store)
        here.nodes(2)
        yield here
