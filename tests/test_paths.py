"""The paths of docs/architecture.md: the functions that it names exist, and are called in that order.

A reader can follow them in the source, too: from the functions of the steps before, "go to definition" leads to each.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.definitions import Definitions
from tests.operations.test_declared import Routes
from tests.specification import spec
from tests.world import World
from vctl.config import load
from vctl.core.resources import CPU, SCALE
from vctl.http.app import create_app
from vctl.http.context import Server
from vctl.ops import nodes

pytestmark = spec("8.submit", "8.end", "9.growth", "9.resize", "10.life")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
MOST_HOPS = 20


def paths() -> dict[str, list[str]]:
    """The title of each path of the page, and its functions: ``vctl/daemon/turn.py: Turn.run``."""
    found = {}
    for title, text in re.findall(r"^### (The path of .*)\n((?:(?!^#).*\n)*)", PAGE, re.MULTILINE):
        found[title] = re.findall(r"^\d+\. `(vctl/[\w/]+\.py: [\w.]+)`", text, re.MULTILINE)
    return found


@contextmanager
def called() -> Iterator[list[str]]:
    """The functions of vctl that are called meanwhile, in order."""
    names: list[str] = []
    top = f"{ROOT}/vctl/"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(top):
            names.append(f"{code.co_filename[len(top) - 5 :]}: {code.co_qualname}")

    before = sys.getprofile()
    threading.setprofile(note)  # a server has a thread for each request
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two nodes of 4 CPUs, and commands that find the scheduler at work."""
    from vctl.store.locks import SchedulerLock

    monkeypatch.setenv("VCTL_HOME", str(tmp_path))
    monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    nodes.add(world.store, resources={CPU: 4 * SCALE}, count=2, template="4c", source="simulated")
    lock = SchedulerLock(tmp_path)
    assert lock.acquire("daemon")
    world.turn()
    yield world
    world.close()
    lock.release()


def vctl(*words: str) -> None:
    """A command, in this process."""
    from vctl.cli.app import run

    assert run(list(words)) == 0


def submitted(world: World) -> None:
    vctl("job", "submit", "--no-wait", "--submission-id", "j", "-n", "1", "--", "true")
    world.turn()


def ended(world: World) -> None:
    (run,) = world.processes.running()
    world.processes.end(run, 0)
    world.turn()


def borrowed(world: World) -> None:
    vctl("vc", "create", "team", "--divisible", "--spec", '{"flexible_resource_min": {"CPU": 1}}')
    vctl("job", "submit", "--no-wait", "-c", "team", "-n", "3", "--", "true")
    world.turn()


def updated(world: World) -> None:
    vctl("vc", "create", "team", "--divisible", "--replica-sets", '{"4c": 1}')
    world.turn()


def widened(world: World) -> None:
    vctl("vc", "update", "team", "--divisible", "--replica-sets", '{"4c": 2}')
    world.turn()


def tasked(world: World) -> None:
    vctl("task", "run", "--no-wait", "--job", "j", "-n", "1", "--", "true")
    world.turn()


def requested(world: World) -> None:
    config = load(env={"VCTL_HOME": str(world.home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
    server = Routes(create_app(Server(config.home(), config, None)))
    assert server.post("/api/v1/jobs", json={"entrypoint": ["true"], "cwd": "/"}).status_code == 200


def nothing(_: World) -> None:
    """A path that begins on an empty cluster."""


STORIES: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "The path of a submit": (nothing, submitted),
    "The path of an end": (submitted, ended),
    "The path of a borrow": (nothing, borrowed),
    "The path of a change of a cluster": (updated, widened),
    "The path of a task": (submitted, tasked),
    "The path of an HTTP request": (nothing, requested),
}


def test_each_path_of_the_page_has_a_story() -> None:
    assert list(paths()) == list(STORIES)


@pytest.mark.parametrize("title", STORIES)
def test_the_functions_are_called_in_the_order_of_the_page(title: str, world: World, capsys: Any) -> None:
    before, story = STORIES[title]
    before(world)
    with called() as names:
        story(world)
    functions = paths()[title]
    assert 3 < len(functions) <= MOST_HOPS
    rest = iter(names)
    missed = [name for name in functions if name not in rest]
    assert not missed, f"not called, or not after the one before it: {missed}"


MOST_BETWEEN = 7
"""The most functions from one step to the next."""
JUMPS = {
    "vctl.daemon.scheduler:Scheduler.turn": None,  # the scheduler is another process
    "vctl.http.context:context_of": "vctl.http.derived:add_route",  # the framework calls the route
    "vctl.operations.declare:Operation.at": "vctl.http.derived:add_route",
    "vctl.operations.jobs:submit": "vctl.operations.declare:operation",  # an object that the decorator has made
    "vctl.http.answers:JSONResponse.render": None,  # the framework calls it
}
"""Steps that no call leads to, and the function behind which a reader goes on."""


@pytest.fixture(scope="module")
def definitions() -> Definitions:
    return Definitions()


@pytest.mark.parametrize("title", STORIES)
def test_a_reader_can_follow_the_path_from_definition_to_definition(
    title: str, definitions: Definitions
) -> None:
    """What `__getattr__` of a package loads is followed only because the package lists its modules."""
    steps = [name.replace(".py: ", ":").replace("/", ".") for name in paths()[title]]
    assert [step for step in steps if not definitions.has(step)] == []
    for number, step in enumerate(steps[1:], 1):
        start = JUMPS.get(step, "")
        if start is not None:
            before = [*steps[:number], *filter(None, [start])]
            assert definitions.are_between(before, step) <= MOST_BETWEEN, step
