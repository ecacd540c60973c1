"""A submit that was handed to the scheduler is written together with the start of its job; once, whoever dies."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.values import replace
from vctl.daemon.following import FollowedState
from vctl.engine.changes import JobSubmitted
from vctl.engine.stimuli import Now, Stimulus
from vctl.errors import VctlError
from vctl.ops import clusters, handing, nodes, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.store.store import Store

pytestmark = spec("17.durable", "17.one-daemon")

PATIENCE_S = 60.0


class Desk(World):
    """A scheduler, and commands that hand their jobs to it, each in a thread of its own."""

    def open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes.add(self.store, resources=amounts(4), node_id="n", template="4c")
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.submitted: list[str] = []
        self.refused: list[str] = []
        self.handed: list[bool] = []
        monkeypatch.setattr(submitting, "hand_over", self._hand_over)
        monkeypatch.setattr(handing, "TAKE_S", PATIENCE_S)

    def _hand_over(self, store: Store, change: JobSubmitted, judged: int | None) -> bool:
        self.handed.append(handing.hand_over(self.theirs, change, judged))
        return self.handed[-1]

    def command(self, **request: object) -> threading.Thread:
        """A command that has handed its job over; it ends when it has its answer."""
        thread = threading.Thread(target=self._submit, args=[JobRequest(argv=("x",), cwd="/", **request)])  # type: ignore[arg-type]
        thread.start()
        return thread

    def _submit(self, request: JobRequest) -> None:
        with Store.open(self.home) as store:
            store.clock = self.now
            try:
                self.submitted.append(submitting.submit(store, request, environment={})["submission_id"])
            except VctlError as error:
                self.refused.append(error.problem)

    def receive(self) -> list[handing.Handed]:
        """What lies at the scheduler's end of the line, as soon as something does."""
        assert select.select([self.ours], [], [], PATIENCE_S)[0]
        return handing.received(self.ours)

    def turn_with(self, handed: list[handing.Handed]) -> None:
        assert self.scheduler is not None
        self.scheduler.work.handed += handed
        self.turn()

    def kinds(self) -> list[str]:
        return [
            row[0] for row in self.store.rows("SELECT kind FROM events WHERE object = 'job' ORDER BY seq")
        ]

    def close_lines(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with Desk(tmp_path / "state") as desk:
        desk.open(monkeypatch)
        desk.turn()
        yield desk
        desk.close_lines()


def test_submit_and_start_are_one_commit(desk: Desk) -> None:
    command = desk.command()
    handed = desk.receive()
    assert desk.scheduler is not None
    commits: list[str] = []
    desk.scheduler.store.db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    desk.turn_with(handed)
    desk.scheduler.store.db.set_trace_callback(None)
    command.join(PATIENCE_S)
    assert desk.handed == [True]
    assert desk.kinds()[:2] == ["job.submitted", "job.started"]
    assert len(commits) == 1
    assert [row[0] for row in desk.store.rows("SELECT submission_id FROM jobs")] == desk.submitted


def test_no_job_starts_before_it_was_submitted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes from the beginning of a turn to its transaction: one job was handed over, one comes meanwhile."""
    assert desk.scheduler is not None
    observer, command = desk.scheduler.observer, desk.command()
    handed, look = desk.receive(), observer.observe

    def submit_and_look(state: FollowedState, now: Now, *, has_work: bool) -> list[Stimulus]:
        monkeypatch.setattr(observer, "observe", look)
        desk.sleep(1)
        desk.command(submission_id="mine").join(PATIENCE_S)
        desk.sleep(1)
        return look(state, now, has_work=has_work)

    monkeypatch.setattr(observer, "observe", submit_and_look)
    desk.turn_with(handed)
    command.join(PATIENCE_S)
    times = [tuple(row) for row in desk.store.rows("SELECT submitted_at, started_at FROM jobs")]
    assert len(times) == 2
    assert all(submitted <= started for submitted, started in times), times


def test_several_that_come_together_are_one_commit(desk: Desk) -> None:
    commands = [desk.command() for _ in range(3)]
    handed: list[handing.Handed] = []
    while len(handed) < 3:
        handed += desk.receive()
    desk.turn_with(handed)
    for command in commands:
        command.join(PATIENCE_S)
    assert sorted(desk.submitted) == sorted(
        row[0] for row in desk.store.rows("SELECT submission_id FROM jobs")
    )
    assert desk.kinds().count("job.submitted") == 3


def test_who_has_given_up_is_written_by_nobody_else(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "TAKE_S", 0.01)
    command = desk.command()
    handed = desk.receive()
    command.join(PATIENCE_S)
    assert desk.handed == [False]
    [name] = desk.submitted
    desk.turn_with(handed)
    assert desk.kinds().count("job.submitted") == 1
    assert [row[0] for row in desk.store.rows("SELECT submission_id FROM jobs")] == [name]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_scheduler_that_dies_after_it_took_a_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, *, is_durable: bool
) -> None:
    """Before its commit or after it: the command finds out."""

    class Gone(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Gone

    command = desk.command()
    handed = desk.receive()
    assert desk.scheduler is not None
    if is_durable:
        monkeypatch.setattr(desk.scheduler.carrier, "carry_out", dies)
    else:
        desk.scheduler.store.before_commit = dies
    desk.scheduler.work.handed += handed
    with pytest.raises(Gone):
        desk.scheduler.turn()
    command.join(PATIENCE_S)
    assert desk.handed == [False]
    assert desk.kinds().count("job.submitted") == 1
    assert [row[0] for row in desk.store.rows("SELECT submission_id FROM jobs")] == desk.submitted
    desk.die()
    desk.turn()
    assert desk.store.value("SELECT count(*) FROM jobs WHERE status = 'RUNNING'") == 1


def test_what_stands_against_a_job_is_said_by_its_command(desk: Desk) -> None:
    clusters.create(desk.store, "team", ClusterChange(divisible=True, replica_sets={"4c": 1}))
    command = desk.command(cluster="team")
    handed = desk.receive()
    clusters.delete(desk.store, "team")
    desk.turn_with(handed)
    command.join(PATIENCE_S)
    assert desk.submitted == []
    [problem] = desk.refused
    assert "team" in problem
    assert desk.kinds() == []


def test_one_that_cannot_be_written_harms_nobody_else(desk: Desk) -> None:
    """The scheduler goes on; the command tries it itself."""
    commands = [desk.command(), desk.command()]
    handed: list[handing.Handed] = []
    while len(handed) < 2:
        handed += desk.receive()
    bad = handed[0]
    bad.change = replace(bad.change, job=replace(bad.change.job, priority=1 << 70))
    assert desk.scheduler is not None
    desk.scheduler.work.handed += handed
    desk.scheduler.turn()  # the commands write meanwhile, so tables and state are compared after them
    for command in commands:
        command.join(PATIENCE_S)
    desk.turn()
    assert len(desk.submitted) == 2
    assert desk.kinds().count("job.submitted") == 2


@pytest.mark.parametrize("request_", [{"submission_id": "mine"}, {"hold": True}, {"begin_at": 4e9}], ids=str)
def test_what_does_not_start_at_once_is_written_by_its_command(
    desk: Desk, request_: dict[str, object]
) -> None:
    desk.command(**request_).join(PATIENCE_S)
    assert desk.handed == []
    assert len(desk.submitted) == 1


def test_nobody_waits_for_a_scheduler_that_is_gone_or_for_a_message_that_is_too_long(desk: Desk) -> None:
    desk.command(env={"LONG": "x" * handing.MOST_BYTES}).join(PATIENCE_S)
    desk.ours.close()
    desk.command().join(PATIENCE_S)
    assert desk.handed == [False, False]
    assert len(desk.submitted) == 2


def test_a_dry_run_hands_nothing_over(desk: Desk) -> None:
    from vctl.ops import why

    assert why.dry_run(desk.store, JobRequest(argv=("x",), cwd="/"), environment={})
    assert desk.handed == []


def test_words_of_another_version_are_left_to_their_command(desk: Desk) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(desk.theirs, [b"no such words"], [theirs.fileno()])
    theirs.close()
    assert handing.received(desk.ours) == []
    assert ours.recv(1) == b""
    ours.close()
