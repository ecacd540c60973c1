"""What many jobs have in common is in the tables once; what schedulers have read is not kept (spec 17, 18)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.core.jobs import Run
from vctl.core.resources import EMPTY
from vctl.daemon import launching
from vctl.daemon.following import FollowedState, Unreadable
from vctl.ops import jobs, nodes, submitting
from vctl.ops.prove import prove
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import feed
from vctl.store.known import MOST, KnownContents
from vctl.store.store import Store
from vctl.store.write import contents

pytestmark = spec("18.budgets")

TABLES = ("commands", "environments", "requests")
LARGE = {"HOME": "/nowhere", "LARGE": "x" * 1_000_000}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as store:
        nodes.add(store, resources={"CPU": 40_000}, count=1, template="t")
        yield store


def submit(store: Store, name: str, env: dict[str, str] | None = None, *argv: str, **more: object) -> None:
    request = JobRequest(argv=argv or ("true",), submission_id=name, cwd="/", hold=True, **more)  # type: ignore[arg-type]
    submitting.submit(store, request, environment={"HOME": "/nowhere"} if env is None else env)


def rows(store: Store) -> tuple[int, ...]:
    """Commands, environments, requests."""
    return tuple(store.value(f"SELECT count(*) FROM {table}") for table in TABLES)


def test_a_content_is_kept_once_and_goes_with_the_last_job_that_has_it(store: Store) -> None:
    submit(store, "a")
    submit(store, "b")
    assert rows(store) == (1, 1, 1)
    submit(store, "c", None, "false")
    submit(store, "d", None, "true", entry={"CPU": 20_000})
    submit(store, "e", {"HOME": "/elsewhere"})
    submit(store, "f", array=parse_array("0-99", "array"))
    assert rows(store) == (4, 2, 2)
    for name, left in (
        ("a", (4, 2, 2)),
        ("b", (4, 2, 2)),
        ("f", (3, 2, 2)),
        ("e", (2, 1, 2)),
        ("d", (1, 1, 1)),
    ):
        jobs.stop(store, name)
        jobs.delete(store, name)
        assert rows(store) == left, name
    jobs.stop(store, "c")
    jobs.prune(store, 0)
    assert rows(store) == (0, 0, 0)
    assert prove(store) == []


def test_each_job_gets_its_own_whoever_wrote_the_content(store: Store) -> None:
    """Each process knows the numbers of what it wrote. They hold until somebody deletes such a row, or nothing came
    of its transaction."""
    with Store.open(store.home) as one, Store.open(store.home) as other:
        submit(one, "a")
        submit(other, "b")
        for name in ("a", "b"):
            jobs.stop(other, name)
            jobs.delete(other, name)
        assert rows(one) == (0, 0, 0)
        submit(other, "c", {"HOME": "/elsewhere"})  # gets a number that no row had before
        submit(one, "d")
        assert one.column("SELECT env FROM environments ORDER BY 1") == [
            '{"HOME":"/elsewhere"}',
            '{"HOME":"/nowhere"}',
        ]
        with suppress(ZeroDivisionError), one.together():
            submit(one, "e", {"B": "2"})
            _ = 1 // 0
        with one.together(), suppress(ZeroDivisionError), one.savepoint():
            submit(one, "e", {"B": "2"})
            _ = 1 // 0
        submit(one, "f", {"B": "2"})
        found = dict(
            one.rows("SELECT submission_id, env FROM jobs JOIN commands USING (command_id) JOIN environments"
                     " USING (environment_id)")
        )  # fmt: skip
        assert found == {"c": '{"HOME":"/elsewhere"}', "d": '{"HOME":"/nowhere"}', "f": '{"B":"2"}'}
        with closing(sqlite3.connect(store.home / "cluster.db")) as db:
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []


def test_texts_with_equal_checksums_stay_apart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents.zlib, "crc32", lambda *_: 7)
    for name in ("a", "b", "c"):
        submit(store, name, {"A": name if name != "c" else "a"})
        store.db.known.clear()
    assert rows(store) == (2, 2, 1)
    assert store.column("SELECT env FROM environments ORDER BY 1") == ['{"A":"a"}', '{"A":"b"}']


def test_known_numbers_are_few() -> None:
    known = KnownContents()
    for number in range(3 * MOST):
        known.note("environments", (f"env {number}",), number)
        assert known.number("environments", ("env 0",)) in (0, None)
    assert known.number("environments", ("env 0",)) == 0  # used all the time
    assert known.number("environments", ("env 1",)) is None
    assert known.number("environments", (f"env {3 * MOST - 1}",)) == 3 * MOST - 1
    assert known.number("commands", ("env 0",)) is None
    for number in range(100):
        known.note("environments", ("x" * 10**6 + str(number),), number)
    assert known.number("environments", ("x" * 10**6 + "99",)) == 99
    assert known.number("environments", ("x" * 10**6 + "1",)) is None


def test_a_large_environment_is_stored_and_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty jobs with 1 MB of environment each took 20 MB, and each start parsed its own copy."""
    for number in range(20):
        submit(store, f"job-{number}", LARGE, "echo", str(number))
    assert rows(store) == (20, 1, 1)
    assert store.value("SELECT sum(length(env)) FROM environments") < 1_100_000
    read: list[int] = []
    monkeypatch.setattr(launching, "loads", lambda text: read.append(len(text)) or launching.rows.loads(text))
    commands = launching.Commands(store)
    found = [commands.of(Run(f"r{n}", n, 1, 0, "c", "v", "n", EMPTY), None) for n in range(1, 21)]
    assert len({id(one.env) for one in found if one is not None}) == 1
    assert [one.argv for one in found if one is not None] == [("echo", str(n)) for n in range(20)]
    assert len([size for size in read if size > 1_000_000]) == 1


def test_changes_are_forgotten_when_schedulers_have_read_them(tmp_path: Path) -> None:
    """The journal keeps what people read. A scheduler that slept longer reads the tables anew."""
    life = Life(tmp_path / "state")
    try:
        life.nodes(1, "4c")
        life.submit("a")
        life.turn()
        state = FollowedState.load(life.store)
        behind = state.seen
        life.submit("b")
        assert state.follow(life.store)
        state.seen = behind
        life.submit("c")
        public = life.store.rows("SELECT * FROM v_events")
        feed.forget_changes(life.store)
        assert life.store.value("SELECT count(*) FROM changes") == feed.last(life.store)  # all are young
        life.skew_ns += feed.UNREAD_NS + 10**9
        life.store.clock = life.now
        life.submit("d")
        feed.forget_changes(life.store)
        assert life.store.value("SELECT count(*) FROM changes") <= 2
        assert [tuple(row) for row in life.store.rows("SELECT * FROM v_events")][: len(public)] == [
            tuple(row) for row in public
        ]
        with pytest.raises(Unreadable, match="forgotten before they were read"):
            state.follow(life.store)
        life.turn()
        life.until(lambda: life.job("d")["status"] != "PENDING")
    finally:
        life.close()
