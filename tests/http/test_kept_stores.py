"""The tables stay open between the requests of a server, and nothing of one request is left for the next."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.specification import spec
from vctl import ops
from vctl.config import load
from vctl.core.caller import Caller
from vctl.errors import DiskTrouble, NotFound
from vctl.http.context import Server
from vctl.operations import jobs
from vctl.operations.declare import Context
from vctl.store.store import Store

pytestmark = spec("14.api", "17.durable")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    home = tmp_path / "state"
    with Store.open(home) as store:
        ops.nodes.add(store, resources={"CPU": 40_000}, node_id="n", template="t")
    config = load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
    return Server(home, config, None)


def test_requests_share_open_tables(server: Server) -> None:
    """Finding 34: to open them took most of what healthz costs."""
    with server.store() as first:
        first.caller = Caller(7, "j")
    with server.store() as second:
        assert second is first
        assert second.caller is None
        with server.store() as other:  # two requests at once
            assert other is not second


def test_a_request_that_fails_leaves_nothing(server: Server) -> None:
    with server.store() as first:
        pass
    with pytest.raises(NotFound), server.store() as store:
        ops.jobs.get_job(store, "nosuch")
    with server.store() as second:
        assert second is not first


@pytest.mark.parametrize("what", ["submit", "list"])
def test_a_failed_request_names_nothing_that_another_one_has_done(
    server: Server, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """An error of the disk told one client that its own jobs were there, or named the job of another client."""

    def submit(store: Store) -> None:
        jobs.submit.at(Context(store, server.config, lambda given: given or {}), ["true"], cwd="/")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with server.store() as first:
        submit(first)
        assert "was submitted" in first.effect
    monkeypatch.setattr(Store, "_begin", full)
    monkeypatch.setattr(ops.jobs, "list_jobs", full)
    do = submit if what == "submit" else lambda store: jobs.list_jobs.at(Context(store, server.config))
    with server.store() as second, pytest.raises(DiskTrouble) as reported:
        do(second)
    assert second is first
    assert "before that" not in reported.value.problem
    assert "before you run it again" not in reported.value.fix


def test_tables_that_were_replaced_are_opened_anew(server: Server) -> None:
    with server.store() as store:
        assert [node["node_id"] for node in ops.nodes.list_nodes(store)] == ["n"]
    shutil.rmtree(server.home)
    with Store.open(server.home) as store:
        ops.nodes.add(store, resources={"CPU": 40_000}, node_id="other", template="t")
    with server.store() as store:
        assert [node["node_id"] for node in ops.nodes.list_nodes(store)] == ["other"]
