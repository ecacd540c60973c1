"""Waiting ends at the same moment, with the same form, on every surface: commands, programs and the server.

One answer to "has it ended?" (``vctl/ops/waiting.py``), of which all of them are loops.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.client.api import Client, connect
from vctl.errors import TimedOut
from vctl.store.store import Store

pytestmark = spec("13.waiting", "14.streams", "15.client")

TOGETHER_S = 2.0
"""The time within which all end: that of a few processes that start at once on a busy machine."""
BEGUN_S = 3.0
"""The time within which all have begun to wait."""
GO = "while [ ! -e {name} ]; do sleep 0.02; done; echo out; exit 3"


class Surfaces:
    """A state directory with a scheduler and a server, and everybody who can wait for something in it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        socket = place.folder / "socket"
        place.start("serve", "--uds", str(socket))
        eventually(socket.exists, "the server")
        self.address = f"unix:{socket}"
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://localhost/api/v1", timeout=60
        )
        self.local, self.remote = connect(str(place.home)), connect(self.address)

    def command(self, *words: str, remote: bool = False) -> Callable[[], Any]:
        """A command that waits; its exit code and output."""
        process = self.place.start(*words, **({"VCTL_ADDRESS": self.address} if remote else {}))

        def end() -> Any:
            ran = self.place.finish(process)
            return ran.code, ran.out

        return end

    def get(self, path: str) -> Callable[[], Any]:
        return lambda: self.http.get(path, params={"timeout_s": 60}).json()


@pytest.fixture
def surfaces(one: Place) -> Iterator[Surfaces]:
    one.daemon()
    surfaces = Surfaces(one)
    yield surfaces
    surfaces.http.close()


def ends(waiting: Mapping[str, Callable[[], Any]], let_it_end: Callable[[], object]) -> dict[str, Any]:
    """The answer of each; checks that nobody ends before, and all within a short time after."""
    found: dict[str, Any] = {}
    ended: dict[str, float] = {}

    def wait(name: str, end: Callable[[], Any]) -> None:
        found[name] = end()
        ended[name] = time.monotonic()

    threads = [threading.Thread(target=wait, args=one, daemon=True) for one in waiting.items()]
    for thread in threads:
        thread.start()
    time.sleep(BEGUN_S)
    assert not ended, f"ended before: {ended}"
    let_it_end()
    for thread in threads:
        thread.join(30)
    assert set(ended) == set(waiting), f"still waiting: {set(waiting) - set(ended)}"
    first = min(ended.values())
    assert {name: at - first for name, at in ended.items() if at - first > TOGETHER_S} == {}
    return found


def backends(surfaces: Surfaces) -> dict[str, Client]:
    return {"here": surfaces.local, "server": surfaces.remote}


@pytest.mark.parametrize("kind", ["jobs", "tasks"])
def test_waiting_ends_at_the_same_moment_on_every_surface(surfaces: Surfaces, kind: str) -> None:
    place, one = surfaces.place, kind[:-1]
    go = place.folder / "go"
    script = ["sh", "-c", GO.format(name=go)]
    if kind == "jobs":
        name = place.submit("--submission-id", "j", "--", *script)
    else:
        outer = place.submit("-n1", "--", "sleep", "1000")
        place.reach(outer, "RUNNING")
        name = place.ok("task", "run", "--job", outer, "--no-wait", "--", *script).strip()
    waiting: dict[str, Callable[[], Any]] = {"GET": surfaces.get(f"/{kind}/{name}/wait")}
    for where, client in backends(surfaces).items():
        handle = getattr(client, kind).get(name)
        waiting |= {
            f"command, {where}": surfaces.command(one, "wait", name, "-o", "json", remote=where == "server"),
            f"logs, {where}": surfaces.command(one, "logs", "--follow", name, remote=where == "server"),
            f"program, {where}": lambda handle=handle: (handle.wait(), handle.info()),
            f"backend, {where}": lambda client=client: client.backend.wait(kind, name),
            f"output, {where}": lambda handle=handle: "".join(handle.follow()),
        }
        with pytest.raises(TimedOut):
            handle.wait(timeout_s=0.1)
        over, form = client.backend.wait(kind, name, 0)
        assert (over, form is not None) == (False, True)
    found = ends(waiting, go.touch)

    form = getattr(surfaces.local, kind).get(name).info()
    assert found["GET"] == {"over": True, one: form}
    for where in backends(surfaces):
        code, shown = found[f"command, {where}"]
        assert (code, json.loads(shown)) == (3, form)
        assert found[f"logs, {where}"] == (3, "out\n")
        assert found[f"program, {where}"] == (3, form)
        assert found[f"backend, {where}"] == (True, form)
        assert found[f"output, {where}"] == "out\n"


@spec("8.arrays")
def test_an_array_is_over_with_its_last_member(surfaces: Surfaces) -> None:
    go = surfaces.place.folder / "go"
    script = f'[ "$VCTL_ARRAY_INDEX" = 0 ] && exit 0; {GO.format(name=go)}'
    name = surfaces.place.submit("--submission-id", "a", "--array", "0-1", "--", "sh", "-c", script)
    surfaces.place.reach("a_0", "SUCCEEDED")
    waiting = {"GET": surfaces.get(f"/jobs/{name}/wait")}
    for where, client in backends(surfaces).items():
        waiting[f"command, {where}"] = surfaces.command("job", "wait", name, remote=where == "server")
        waiting[f"program, {where}"] = client.jobs.get(name).wait
    found = ends(waiting, go.touch)
    assert found["GET"]["job"]["status"] == "FAILED"
    assert {name: one for name, one in found.items() if name != "GET"} == {
        "command, here": (3, ""), "command, server": (3, ""), "program, here": 3, "program, server": 3
    }  # fmt: skip


def test_a_job_that_is_deleted_is_over(surfaces: Surfaces) -> None:
    """Whoever waits for it learns that, although nothing is left to show."""
    surfaces.place.submit("--submission-id", "j", "--hold", "--", "true")
    waiting: dict[str, Callable[[], Any]] = {"GET": surfaces.get("/jobs/j/wait")}
    for where, client in backends(surfaces).items():
        waiting[f"command, {where}"] = surfaces.command("job", "wait", "j", remote=where == "server")
        waiting[f"backend, {where}"] = lambda client=client: client.backend.wait("jobs", "j")

    def gone() -> None:
        with surfaces.place.sql() as db:  # in one commit: nobody sees it stopped
            db.execute("DELETE FROM jobs WHERE submission_id = 'j'")
        with Store.open(surfaces.place.home) as store:
            store.wake()

    found = ends(waiting, gone)
    assert found == {
        "GET": {"over": True, "job": None},
        "command, here": (1, ""), "command, server": (1, ""),
        "backend, here": (True, None), "backend, server": (True, None),
    }  # fmt: skip


def test_a_cluster_is_gone_at_the_same_moment_on_every_surface(surfaces: Surfaces) -> None:
    place = surfaces.place
    place.ok("vc", "create", "team", "--divisible", "--replica-sets", '{"4c8g": 1}')
    go = place.folder / "go"
    place.submit("--submission-id", "j", "-c", "team", "--", "sh", "-c", GO.format(name=go))
    place.reach("j", "RUNNING")
    place.ok("vc", "delete", "team", "--drain", "--no-wait")
    waiting: dict[str, Callable[[], Any]] = {"GET": surfaces.get("/clusters/team/wait")}
    for where, client in backends(surfaces).items():
        waiting[f"command, {where}"] = surfaces.command(
            "vc", "delete", "team", "--drain", remote=where == "server"
        )
        waiting[f"backend, {where}"] = lambda client=client: client.backend.wait("clusters", "team")
    found = ends(waiting, go.touch)
    deleted = (0, "virtual cluster team deleted\n")
    assert found == {
        "GET": {"gone": True},
        "command, here": deleted, "command, server": deleted,
        "backend, here": (True, None), "backend, server": (True, None),
    }  # fmt: skip


def test_output_goes_on_where_it_was_when_the_server_comes_back(one: Place, tmp_path: Path) -> None:
    """A follower reads from one server, and on from the next, byte for byte; also what was written in between."""
    one.daemon()
    socket = one.folder / "socket"
    server = one.start("serve", "--uds", str(socket))
    eventually(socket.exists, "the server")
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    script = "; ".join(
        f"while [ ! -e {path} ]; do sleep 0.02; done; echo {word}"
        for path, word in ((first, "one"), (second, "two"), (third, "three"))
    )
    one.submit("--submission-id", "j", "--", "sh", "-c", script)
    following = one.start("job", "logs", "-f", "j", VCTL_ADDRESS=f"unix:{socket}")
    first.touch()
    assert following.stdout is not None
    assert following.stdout.readline() == b"one\n"
    one.term(server)
    second.touch()
    one.start("serve", "--uds", str(socket))
    eventually(socket.exists, "the next server")
    assert following.stdout.readline() == b"two\n"
    third.touch()
    assert one.finish(following).stdout == b"three\n"
