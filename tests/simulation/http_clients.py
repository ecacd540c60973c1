"""A server and its clients: what a client was told is true, however server, client and line between them end.

The server is one process with stores that stay open from one request to the next (``vctl/store/kept.py``); its requests
are the verbs and the waits of the real one, without the bytes on the line. A client whose line breaks knows nothing:
it repeats the request, or leaves it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest

from tests.simulation.connections import Actor, opened
from tests.simulation.kernel import Violation
from tests.world import Killed
from vctl.config import load
from vctl.errors import VctlError
from vctl.http import streams
from vctl.operations import jobs
from vctl.operations.declare import Context
from vctl.ops.backup import backup, restore
from vctl.ops.prove import prove
from vctl.ops.waiting import JOBS, Watched
from vctl.store.kept import OpenStores
from vctl.store.store import Store

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

T = TypeVar("T")
SERVER_FAULTS = ("kill server", "cut line", "kill client")
"""What can go wrong between a client and the tables."""
MOST_WISHES, MOST_BACKUPS = 30, 2
MOST_JOBS = 20
"""Clients submit no more while so many jobs are not over."""
TIMEOUT_S = 20.0
SLACK_S = 2 * streams.SAFETY_S
"""How much later than its time a wait may be answered: others use the one CPU of the timeline."""
Outcome = Literal["answered", "cut", "no server"]


class KeptStores(OpenStores):
    """The stores of a server that may die."""

    def __init__(self, world: Simulation, actor: Actor) -> None:
        super().__init__(world.home, 5.0)
        self.world, self.actor = world, actor

    def _opened(self) -> Store:
        store = opened(self.world.home, self.world, self.actor)
        store.clock = self.world.now
        return store


class Pause:
    """What a waiting request of the server awaits: the next change, at most for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class Server:
    """One life of the server. It is what ``streams.wait_for`` needs of ``vctl.http.context.Server``, too."""

    def __init__(self, world: Simulation) -> None:
        world.actors += 1
        self.actor = Actor(f"server {world.actors}")
        self.stores = KeptStores(world, self.actor)
        self.config = load(env={"VCTL_HOME": str(world.home), "VCTL_LOCAL_NODE": "0"})
        self.changes = self
        self.ended = False

    def ticket(self) -> None: ...

    async def read(self, query: Callable[[Store], T]) -> T:
        return self.carry_out(query)

    def carry_out(self, do: Callable[[Store], T]) -> T:
        """A request, in a store that stays open."""
        if self.actor.dead:
            raise Killed
        with self.stores.opened() as store:
            store.caller, store.local_node = None, False
            return do(store)

    def verb(self, do: Callable[[Context], T]) -> T:
        return self.carry_out(lambda store: do(Context(store, self.config, lambda given: given or {})))

    def die(self) -> None:
        self.actor.dead = True
        self.stores.close()


@dataclass
class Wish:
    """Jobs that a client wants, once; it asks until it knows, or has enough."""

    number: int
    name: str | None
    """The id that it chose; None if the server chooses."""
    lines: int
    """How many jobs or arrays; each stands for itself in the journal."""
    is_array: bool = False
    tokens: list[str] = field(default_factory=list)
    """One for each time that it was sent."""
    prunes: int = 0
    """How many deletions there were when it was sent first."""
    acknowledged: str | None = None
    is_over: bool = False


@dataclass
class Wait:
    """A client that waits for the end of a job."""

    name: str
    server: Server
    coroutine: Coroutine[Pause, None, Watched]
    until: float
    is_gone: bool = False
    """Whether the client has died, or its line is cut."""
    round: int = 0
    is_looking: bool = False
    is_woken: bool = False
    """Whether somebody has committed while the server looked."""
    is_answered: bool = False


class Clients:
    """Clients of the server of one seed, and those who make backups meanwhile."""

    def __init__(self, world: Simulation, seed: int, without: frozenset[str]) -> None:
        self.world = world
        self.dice = random.Random(f"{seed} clients")
        self.is_there = self.dice.random() < 0.6
        self.gap_s = world.user_gap_s * self.dice.choice([0.5, 1, 3])
        drawn = {
            name: self.gap_s * self.dice.choice([3, 10, 30])
            for name in SERVER_FAULTS
            if self.dice.random() < 0.7
        }
        self.faults = {name: s for name, s in drawn.items() if name not in without} if self.is_there else {}
        self.server: Server | None = None
        self.wishes: list[Wish] = []
        self.waits: list[Wait] = []
        self.seen: Counter[str] = Counter()
        """Token -> how many jobs and arrays with it the journal has."""
        self.prunes = self.backups = self.waited = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let a waiting request of the server rest on the virtual clock."""

        async def within(ticket: object, seconds: float) -> None:
            await Pause(seconds)

        async def nobody_to_start(server: object) -> None: ...

        patch.setattr(streams, "within", within)
        patch.setattr(streams, "_see_to_it", nobody_to_start)
        patch.setattr(streams, "time", self)

    def monotonic(self) -> float:
        return self.world.elapsed_s

    def start(self) -> None:
        if self.is_there:
            self._serve()
            self.world.after(self.dice.expovariate(1 / self.gap_s), "clients", self._act)
            for name in self.faults:
                if name == "kill server":
                    self._plan(name)

    # ---- the server ----

    def _serve(self) -> None:
        if self.server is None:
            self.server = Server(self.world)

    def _plan(self, name: str) -> None:
        self.world.after(self.dice.expovariate(1 / self.faults[name]), name, self._strike)

    def _strike(self) -> None:
        """Kill the server: now, or some statements later, in whatever request that is."""
        if self.world.calm:
            return
        self._plan("kill server")
        if self.server is not None:
            if self.dice.random() < 0.3:
                self.lose_server()
            else:
                self.server.actor.fuse = self.dice.randint(1, 60)

    def lose_server(self) -> None:
        """It is gone with all its requests; another one starts soon."""
        server, self.server = self.server, None
        if server is None:
            return
        server.die()
        for wait in [one for one in self.waits if one.server is server]:
            self._cut(wait)
        self.world.after(self.dice.choice([0.01, 1.0, 10.0]), "a server starts", self._serve)

    def _request(self, what: str, do: Callable[[Server], T]) -> tuple[Outcome, T | VctlError | None]:
        """Send a request, and see what comes back."""
        server = self.server
        if server is None:
            return "no server", None
        breaks = "cut line" in self.faults and not self.world.calm and self.dice.random() < 0.15
        if breaks and self.dice.random() < 0.3:
            return "no server", None  # it was cut before the server had read all of it
        self.world.note(f"{server.actor.name}: {what}")
        answer: T | VctlError
        try:
            answer = do(server)
        except Killed:
            if server is self.server:
                self.lose_server()
            return "cut", None
        except VctlError as error:
            answer = error
        if breaks or server.actor.dead:
            return "cut", None
        self.world.note(f"{server.actor.name} answers {answer if isinstance(answer, VctlError) else 'well'}")
        return "answered", answer

    # ---- clients ----

    def _act(self) -> None:
        if self.world.calm:
            return
        self.world.after(self.dice.expovariate(1 / self.gap_s), "clients", self._act)
        actions = [(6, self._wish), (3, self._wait), (2, self._stop), (1, self._backup)]
        weights, chosen = zip(*actions, strict=True)
        self.dice.choices(chosen, weights)[0]()

    def _wish(self) -> None:
        waiting = self.world.store.value("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')")
        if len(self.wishes) >= MOST_WISHES or waiting >= MOST_JOBS:
            return
        number = len(self.wishes)
        lines = self.dice.choice([1, 1, 1, 3, 5])
        name = f"h{number:03}" if self.dice.random() < 0.6 else None
        wish = Wish(number, name, lines, self.dice.random() < 0.2, prunes=self.prunes)
        self.wishes.append(wish)
        self._send(wish)

    def _send(self, wish: Wish) -> None:
        token = f"http{wish.number}.{len(wish.tokens)}"
        wish.tokens.append(token)
        fields = {"entrypoint": ["x"], "cwd": "/", "num_cpus": None, "entrypoint_num_cpus": 0.5, "grace_s": 0.0,
                  "metadata": {"token": token}}  # fmt: skip
        fields = {name: value for name, value in fields.items() if value is not None}
        if wish.is_array:
            fields["array"] = "0-2"
        documents = [
            {**fields, **({"submission_id": f"{wish.name}{'abcde'[line]}"} if wish.name else {})}
            for line in range(wish.lines)
        ]
        if wish.lines == 1:
            outcome, answer = self._request(
                f"submit {token}", lambda server: server.verb(lambda at: submit(at, documents[0]))
            )
        else:
            outcome, answer = self._request(
                f"submit {wish.lines} of {token}",
                lambda server: server.verb(lambda at: jobs.submit_many.at(at, documents)),
            )
        self._learn(wish, token, outcome, answer)

    def _learn(self, wish: Wish, token: str, outcome: Outcome, answer: object) -> None:
        """What the client was told must be so; then it asks again, or not."""
        self.world.check_tables()
        there = self.seen[token]
        earlier = [one for one in wish.tokens if one != token and self.seen[one]]
        if there not in (0, wish.lines):
            raise Violation(f"{there} of {wish.lines} jobs of {token} are there")
        if outcome == "no server":
            if there:
                raise Violation(f"{token} is there, and no server had read it")
        elif isinstance(answer, VctlError):
            says = "before that, " in answer.problem
            if says != bool(there):
                raise Violation(f"{token}: {there} jobs are there, and the client was told: {answer.problem}")
            if "exists already" in answer.problem and not earlier:
                raise Violation(
                    f"{token}: nobody has submitted it, and the client was told: {answer.problem}"
                )
        elif outcome == "answered":
            if not there:
                raise Violation(f"{token} was acknowledged and is not there")
            if earlier and wish.name and wish.prunes == self.prunes:
                raise Violation(f"{token} and {earlier[0]} have the same id")
            wish.acknowledged = token
        knows = outcome == "answered" and (
            not isinstance(answer, VctlError) or "exists already" in answer.problem
        )
        if knows or len(wish.tokens) > 4 or self.dice.random() < 0.3 or (outcome == "cut" and not wish.name):
            wish.is_over = True  # whoever repeats a request without an id may have two jobs: it does not
        else:
            pause_s = self.dice.choice([0.0, 0.5, 5.0])
            self.world.after(pause_s, f"{token} again", lambda: self.world.calm or self._send(wish))

    def _names(self) -> list[str]:
        rows = self.world.store.rows(
            "SELECT submission_id FROM jobs WHERE status IN ('PENDING', 'RUNNING') ORDER BY job_id"
        )
        return [str(row[0]) for row in rows]

    def _stop(self) -> None:
        if names := self._names():
            name = self.dice.choice(names)
            self._request(
                f"stop {name}", lambda server: server.verb(lambda at: jobs.stop.at(at, name, grace_s=0.0))
            )

    # ---- waiting ----

    def _wait(self) -> None:
        if (names := self._names()) and self.server is not None:
            self._wait_for(self.dice.choice(names))

    def _wait_for(self, name: str) -> None:
        if (server := self.server) is None:
            return
        self.world.note(f"{server.actor.name}: wait for {name}")

        async def is_disconnected() -> bool:
            return wait.is_gone

        coroutine: Any = streams.wait_for(server, JOBS, name, TIMEOUT_S, is_disconnected)  # type: ignore[arg-type]
        wait = Wait(name, server, coroutine, self.world.elapsed_s + TIMEOUT_S)
        self.waits.append(wait)
        self._go_on(wait, 0)
        if "kill client" in self.faults and self.dice.random() < 0.3:
            self.world.after(
                self.dice.choice([0.1, 2.0]),
                f"the client that waits for {name} dies",
                lambda: self._leave(wait),
            )

    def _leave(self, wait: Wait) -> None:
        wait.is_gone = True
        wait.until = min(wait.until, self.world.elapsed_s + streams.SAFETY_S)

    def _cut(self, wait: Wait) -> None:
        """The server has died: its client sees that, and asks the next one, or leaves."""
        self.waits.remove(wait)
        wait.is_answered = True
        if not wait.is_gone and self.dice.random() < 0.7 and not self.world.calm:
            self.world.after(20.0, f"wait for {wait.name} again", lambda: self._wait_for(wait.name))

    def _go_on(self, wait: Wait, round_: int) -> None:
        """Let the server look again, unless something has woken it since."""
        if wait.is_looking:
            wait.is_woken = True
        if wait.is_looking or wait.is_answered or wait.round != round_:
            return
        wait.round += 1
        wait.is_looking, wait.is_woken = True, False
        late_s = self.world.elapsed_s - wait.until
        try:
            pause = wait.coroutine.send(None)
        except StopIteration as done:
            self._answered(wait, done.value)
        except Killed:
            if wait.server is self.server:
                self.lose_server()
            else:
                self._cut(wait)
        except VctlError as error:
            self.world.note(f"the client that waits for {wait.name} is told: {error.problem}")
            wait.is_answered = True
            self.waits.remove(wait)
        else:
            if late_s > SLACK_S:
                raise Violation(f"who waits for {wait.name} should have got an answer {late_s:.1f} s ago")
            pause_s = 0.0 if wait.is_woken else pause.seconds
            self.world.after(pause_s, f"look at {wait.name}", lambda: self._go_on(wait, round_ + 1))
        finally:
            wait.is_looking = False

    def _answered(self, wait: Wait, watched: Watched) -> None:
        wait.is_answered = True
        self.waits.remove(wait)
        self.waited += 1
        is_early = not watched.over and not wait.is_gone and self.world.elapsed_s < wait.until - 0.001
        if is_early:
            raise Violation(f"who waits for {wait.name} got no end, before the time was over")
        if watched.over and watched.form is not None and watched.form["status"] in ("PENDING", "RUNNING"):
            raise Violation(f"{wait.name} is over, and {watched.form['status']}")

    def wake(self) -> None:
        """Somebody has committed: all that wait look soon."""
        for wait in self.waits:
            self.world.after(
                0.001, f"a change wakes {wait.name}", lambda wait=wait, at=wait.round: self._go_on(wait, at)
            )

    # ---- backups ----

    def _backup(self) -> None:
        """A copy of the tables, made while all others go on; restored elsewhere it has all that was known before."""
        if self.backups >= MOST_BACKUPS:
            return
        self.backups += 1
        path = self.world.home.with_name(f"backup{self.backups}")
        known = [wish.acknowledged for wish in self.wishes if wish.acknowledged]
        prunes = self.prunes
        self.world.command("backup", lambda: backup(self.world.users.store, path))
        if not path.exists():
            return
        self.world.check_tables()
        elsewhere = self.world.home.with_name(f"elsewhere{self.backups}")
        try:
            restore(elsewhere, path)
        except VctlError as error:
            raise Violation(f"a backup cannot be restored: {error.problem}") from error
        with Store.open(elsewhere) as store:
            if problems := prove(store):
                raise Violation(f"a backup has {problems}")
            self._check_copy(store, known if prunes == self.prunes else [])

    def _check_copy(self, store: Store, known: list[str]) -> None:
        names = self._names_of(store)
        lines = {token: wish.lines for wish in self.wishes for token in wish.tokens}
        if self.prunes == 0 and (
            cut := {token for token, some in names.items() if len(some) != lines[token]}
        ):
            raise Violation(f"a backup has a part of {sorted(cut)}")
        if self.prunes == 0 and (lost := [token for token in known if token not in names]):
            raise Violation(f"a backup has not {lost}, which were acknowledged before")
        if strange := [token for token in names if not self.seen[token]]:
            raise Violation(f"a backup has {strange}, which nobody has submitted")

    @staticmethod
    def _names_of(store: Store) -> dict[str, set[str]]:
        """Token -> the ids of its jobs and arrays in some tables."""
        names: dict[str, set[str]] = {}
        for row in store.rows(
            "SELECT metadata, array_id, submission_id FROM jobs WHERE metadata LIKE '%token%'"
        ):
            token = json.loads(row["metadata"])["token"]
            names.setdefault(token, set()).add(row["array_id"] or row["submission_id"])
        return names

    # ---- the rules ----

    def submitted(self, metadata: str) -> None:
        """The journal has one more job or array."""
        token = json.loads(metadata).get("token")
        if token is not None:
            self.seen[token] += 1
            wish = self.wishes[int(token[4:].partition(".")[0])]
            if self.seen[token] > wish.lines:
                raise Violation(f"{token} was submitted twice")

    def rewound(self) -> None:
        """The tables are those of an earlier time: what was acknowledged since then is gone."""
        self.prunes += 1  # as if others had deleted it
        lines = {token: wish.lines for wish in self.wishes for token in wish.tokens}
        names = self._names_of(self.world.store)
        self.seen = Counter({token: lines[token] for token in names})
        for wish in self.wishes:
            if wish.acknowledged not in names:
                wish.acknowledged = None

    def heal(self) -> None:
        """The line holds, and no server dies any more."""
        if self.server is not None:
            self.server.actor.fuse = None

    def at_end(self) -> None:
        """All has ended: who waits knows it, and of each wish there is as much as its client may think."""
        if self.waits:
            raise Violation(f"nobody has told those who wait for {[wait.name for wait in self.waits]}")
        for wish in self.wishes:
            for token in wish.tokens:
                if self.seen[token] not in (0, wish.lines):
                    raise Violation(f"{self.seen[token]} of {wish.lines} jobs of {token} were submitted")
            if wish.acknowledged and self.seen[wish.acknowledged] != wish.lines:
                raise Violation(f"{wish.acknowledged} was acknowledged and is not there")

    def close(self) -> None:
        if self.server is not None:
            self.server.die()
        for wait in self.waits:
            wait.coroutine.close()


def submit(context: Context, document: Mapping[str, Any]) -> object:
    """The verb, with the fields of a body."""
    fields = dict(document)
    return jobs.submit.at(context, fields.pop("entrypoint"), **fields)
