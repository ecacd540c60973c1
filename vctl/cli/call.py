"""One call of a command: its settings, its store or server, and its output."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl import cli, operations, ops, spec
from vctl.cli.common import CHOSEN_BY
from vctl.cli.declare import Command
from vctl.config import OF_THE_SCHEDULER, Config, load
from vctl.core.caller import Caller
from vctl.core.clusters import PRIMARY
from vctl.core.text import visible
from vctl.errors import BadSpec, NotPermitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vctl.cli.live_view import LiveView
    from vctl.cli.output import Answer, Data
    from vctl.cli.progress import Progress
    from vctl.operations.connection import Connection
    from vctl.operations.declare import Backend
    from vctl.ops.background import Background
    from vctl.store.store import Store

TABLE_LIMIT = 100
MIN_WATCH_S = 0.1
_LOCAL = ("daemon", "serve")
"""Commands that always work on this machine, also where VCTL_ADDRESS names a server."""


class Call:
    """The first argument of a command function. ``shared`` are the values of the common options.

    ``lasts``: whether the command may wait.
    """

    def __init__(self, command: Command, shared: dict[str, Any], *, lasts: bool) -> None:
        self.command = command
        self.lasts = lasts
        self.requested_output: str | None = shared.get("output")
        flags = {name: shared.get(name) for name in ("output", "color", "home")}
        flags["local_node"] = False if shared.get("no_local_node") else None
        self.config: Config = load(flags=flags)
        self.output: str = self.config.get("output")
        self.filters: list[str] = list(shared.get("filter") or [])
        self._choices: tuple[str | None, ...] = tuple(shared.get(name) for name in ("state", "user", "since"))
        self.watch_s: float | None = shared.get("watch")
        self.sort: str | None = shared.get("sort")
        self.columns: str | None = shared.get("columns")
        self._limit: int | None = shared.get("limit")
        self._unlimited = False
        self._header = not shared.get("no_header")
        self.written: Mapping[str, Any] = {}
        """Its options as they were written."""
        self._store: Store | None = None
        self._backend: Backend | None = None
        self._live: LiveView | None = None
        self._line: Progress | None = None
        self._background: Background | None = None
        self._connection: Connection | None = None
        if self.watch_s is not None and self.watch_s < MIN_WATCH_S:
            raise BadSpec(f"--watch: {self.watch_s:g} s is too often", fix=f"write {MIN_WATCH_S:g} or more")
        if self._limit is not None and self._limit < 0:
            raise BadSpec(f"--limit: {self._limit} is negative", fix="write 0 or more")

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.close()
        if self._store is not None:
            self._store.close()
        if self._connection is not None:
            self._connection.close()

    @property
    def is_remote(self) -> bool:
        """Whether the state is that of a server."""
        return bool(self.config.get("address")) and self.command.path not in _LOCAL

    def act_on(self, backend: "Backend") -> None:
        """Carry verbs out on this backend, for a user of a service whose process this is not."""
        self._backend = backend

    def is_about(self, folder: os.stat_result) -> bool:
        """Whether the state is in this directory, or is that of a server."""
        try:
            return self.is_remote or os.path.samestat(os.stat(self.home), folder)
        except OSError:  # it is to be made
            return False

    @property
    def home(self) -> Path:
        """The state directory."""
        return self.config.home()

    @property
    def store(self) -> "Store":
        """The state, opened on first use."""
        if self.is_remote:
            raise NotPermitted(
                "this works only on the machine itself, not through a server",
                fix=self.config.nearer,
            )
        if self._store is None:
            from vctl.store.store import Store

            self._store = Store.open(self.home, lock_timeout_s=self.config.get("lock_timeout"))
            self._store.caller = Caller.of(os.environ)
            self._store.local_node = self.config.local_node
            if self.lasts:
                self._store.progress = self._tell
            if self.command.path not in _LOCAL:
                self._scheduling().attend(self._store)
                self._say_what_is_not_in_force(self._store)
        else:
            self._store.reopen_tables()
        return self._store

    @property
    def effect(self) -> str:
        """What this command has changed so far, for an error that comes after it."""
        return "" if self._store is None else self._store.effect

    def _tell(self, text: str) -> None:
        from vctl.cli.progress import Progress

        if self._line is None:
            self._line = Progress(sys.stderr, always=True)
        self._line.tell(text)

    @property
    def backend(self) -> "Backend":
        """The backend that carries verbs out."""
        if self._backend is None:
            from contextlib import nullcontext

            if self.is_remote:
                self._backend = operations.declare.Remote(lambda: nullcontext(self.connection))
            else:
                self._backend = operations.declare.Local(
                    self.config, lambda: nullcontext(self.store), self._scheduling()
                )
        return self._backend

    @property
    def connection(self) -> "Connection":
        """The connection to the server, opened on first use."""
        if self._connection is None:
            self._connection = operations.connection.connect(self.config)
        return self._connection

    def require_scheduler(self) -> None:
        """Refuse later changes that need a scheduler where none may be started; a server does so anyway."""
        self._scheduling().insisted = True

    def _say_what_is_not_in_force(self, store: "Store") -> None:
        """Say which of the settings given here the running scheduler does not have; where one only looks, nothing."""
        given = any(self.config.origins[name] != "default" for name in OF_THE_SCHEDULER)
        if given and all(param.name != "watch" for param in self.command.params):
            for sentence in ops.background.not_in_force(store, self.config):
                self.note(f"Warning: {sentence}. Restart it: `vctl daemon --stop`")

    def _scheduling(self) -> "Background":
        if self._background is None:
            self._background = ops.background.Background(self.config)
        return self._background

    @property
    def for_people(self) -> bool:
        """Whether a table is shown, not data."""
        return self.output == "table"

    def has_place_for(self, least: int) -> bool:
        """Whether the output shows a column that needs this width of a terminal; data has all fields."""
        if self.output == "name":
            return False
        return self.output != "table" or not sys.stdout.isatty() or cli.screen.size_of(sys.stdout)[0] >= least

    @property
    def limit(self) -> int | None:
        """The most entries of a list: ``--limit``, else 100 in tables. A list that is sorted is read completely."""
        return None if self.sort else self._row_limit

    @property
    def _row_limit(self) -> int | None:
        return (
            self._limit if self._limit is not None or self._unlimited or not self.for_people else TABLE_LIMIT
        )

    @property
    def rows(self) -> int | None:
        """The most rows of a part of a page: as many as a terminal and its keys can show; None: the usual few."""
        return TABLE_LIMIT if self.for_people and sys.stdout.isatty() else None

    def choose(
        self,
        *,
        state: str | None = None,
        states: "Sequence[str]" = (),
        user: str | None = None,
        since: str | None = None,
    ) -> bool:
        """Add ``--state``, ``--user`` and ``--since`` to the filters, by the fields that the objects have for them.

        Returns whether finished objects are wanted too, because a state or a time was given.
        """
        given = {
            "state": (state, self._choices[0]),
            "user": (user, self._choices[1]),
            "since": (since, self._choices[2]),
        }
        for name, (field, value) in given.items():
            if value is not None and field is None:
                raise BadSpec(f"--{name}: objects of this kind have no {name}", fix=f"leave out --{name}")
        states_given, user_given, since_given = self._choices
        self._choices = (None, None, None)
        if states_given is not None:
            for word in states_given.split(","):
                if word.upper() not in states:
                    raise BadSpec(f"--state: unknown state {word!r}", fix=_instead(word, states))
            self.filters.append(f"{state}={states_given.upper()}")
        if user_given is not None:
            self.filters.append(f"{user}={user_given}")
        if since_given is not None and since is not None:
            self.filters.append(self.began(since, since_given))
        return states_given is not None or since_given is not None

    @staticmethod
    def began(field: str, since: str) -> str:
        """The filter for objects that began since a time."""
        import time

        from vctl.spec.options import parse_since

        return f"{field}>={ops.forms.timestamp(int(parse_since(since, time.time()) * 1e9))}"

    def over_too(self, kind: str, *, requested: bool) -> bool:
        """Whether finished jobs or tasks are listed: with ``-a``, with a filter, and always in data."""
        filtered = bool(self.filters)
        chosen = self.choose(**CHOSEN_BY[kind])
        return requested or filtered or chosen or not self.for_people

    def unlimited(self) -> None:
        """Read all entries of a list, because they are only counted."""
        self._unlimited = True

    def first(self, items: "Sequence[Data]") -> "Sequence[Data]":
        """The items up to the limit."""
        return items if self.limit is None else items[: self.limit]

    def cluster(self, given: str | None) -> str:
        """The cluster of a command: the given one, else the one in which this process runs, else the primary."""
        current = os.environ.get("VCTL_CLUSTER_ID") if self._job_is_known() else None
        return spec.ids.resolve_cluster_id(given or current or PRIMARY, "--cluster")

    def existing_cluster(self, given: str | None) -> str:
        """The cluster of a command. Raises NotFound for an unknown cluster that was given."""
        cluster = self.cluster(given)
        if given is not None:
            operations.clusters.get_cluster(self.backend, cluster)
        return cluster

    @property
    def current_job(self) -> str | None:
        """The submission id of the job of this process."""
        return os.environ.get("VCTL_SUBMISSION_ID") or None if self._job_is_known() else None

    def _job_is_known(self) -> bool:
        """Whether the job of this environment is in this state directory; assumed for a server."""
        if self.is_remote or not os.environ.get("VCTL_SUBMISSION_ID"):
            return True
        return ops.rights.calling_job(self.store) is not None

    def note(self, text: str | None) -> None:
        """Write a text that is not a result to stderr."""
        if text:
            sys.stdout.flush()
            tell(text)

    def warn_if_nothing_schedules(self) -> None:
        """Warn when no scheduler has sent a heartbeat lately; only after the state was opened."""
        if self._live is None:  # a live view shows the warning itself
            self.note(self._notice())

    def _notice(self) -> str | None:
        """The warning with the age of the scheduler's last heartbeat; None while it is fresh."""
        if self._store is None and self._connection is None:
            return None
        if self._background is not None and self._background.problem:
            return f"Warning: {self._background.problem}"
        if self.is_remote:
            state = operations.views.scheduler(self.backend)
        else:  # every command comes here, so do not import the declarations of all views
            state = ops.views.scheduler(self.store)
        if state["running"] or state["starting"]:
            return None
        age_s = cli.words.seconds_between(state["last_beat"], None)
        if age_s is None:
            return cli.words.no_scheduler()
        ended = "just now" if age_s < 1 else f"{spec.quantities.format_duration(int(age_s))} ago"
        return cli.words.no_scheduler(f" (last seen {ended})")

    def write(self, answer: "Answer") -> int:
        """Write an answer in the chosen form; returns its exit code."""
        if self.sort or self.columns:
            cli.arrange.arrange(answer, sort=self.sort, columns=self.columns, limit=self._row_limit)
        if not self.for_people:
            cli.output.write(answer, self.output, sys.stdout, header=self._header)
        elif answer.draw is None:
            sys.stdout.writelines(f"{visible(line)}\n" for line in answer.sentences)
        elif self.watch_s and cli.screen.replaces_text(sys.stdout):
            self._redraw(answer)
        else:
            screen = cli.screen.Screen.on(sys.stdout, color=self.config.get("color"), header=self._header)
            sys.stdout.writelines(f"{line}\n" for line in screen.finish(answer.draw(screen)))
            if answer.more > 0:
                self.note(f"… {answer.more} more; --limit {len(answer.rows) + answer.more} shows all")
        return answer.code

    def _redraw(self, answer: "Answer") -> None:
        if self._live is None:
            self._live = cli.live_view.LiveView(
                self.command.path, self.watch_s or 0, color=self.config.get("color")
            )
        self._live.show(answer, self._notice(), header=self._header)

    def pause(self) -> bool:
        """Wait until a watched answer is due again; False if the user has ended the watch."""
        if self._live is not None:
            return not self._live.quit_within(self.watch_s or 0)
        import time

        time.sleep(self.watch_s or 0)
        return True


def tell(text: str) -> None:
    """Write to stderr. A failure to write is ignored: the result and the exit code still count."""
    try:
        sys.stderr.write(visible(text) + "\n")
        sys.stderr.flush()
    except OSError:
        cli.output.drop(sys.stderr)


def _instead(word: str, states: "Sequence[str]") -> str:
    """The fix for a word that is no state: the filter if it is a reason, else the nearest state."""
    from vctl.core import jobs, tasks

    known = (value for module in (jobs, tasks) for value in vars(module).values() if isinstance(value, str))
    reasons = [text for text in known if text.casefold() == word.casefold() and not text.isupper()]
    if reasons and jobs.RUNNING in states:
        return f"it is a reason: write --filter state_reason={reasons[0]}"
    return spec.fields.did_you_mean(word, states)
