"""A submit, of which each call and each allocation fails once.

What must hold: the command says that it worked, and the job is there once and as it was asked for; or it ends with one
error, its fix and a documented exit code, and the job is not there, or the error says that it is. Either way the state
is sound, nothing is locked, and the next submit works.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.faults.commands import Ended, Sample, counted, is_a_sentence, play, vctl, warm
from tests.faults.points import Points
from vctl import ops
from vctl.config import load
from vctl.operations import jobs, nodes
from vctl.operations.declare import Context
from vctl.ops.prove import prove
from vctl.store.store import Store

WORDS = (
    "job",
    "submit",
    "--no-wait",
    "--submission-id",
    "j",
    "--num-cpus",
    "1",
    "--env",
    "A=b",
    "--",
    "true",
)


class Submit:
    """Submits into a state directory that exists, or (``first``) into one that is made for it.

    ``cold``: the command imports its modules, too; otherwise this process has done that.
    """

    def __init__(self, work: Path, *, first: bool = False, cold: bool = False) -> None:
        self.work, self.first = work, first
        self.base = work / "base"
        if not first:
            with Store.open(self.base) as store:
                context = Context(store, load(env={"VCTL_HOME": str(self.base), "VCTL_LOCAL_NODE": "0"}))
                nodes.add.run(context, resources={"CPU": 4}, count=1)
                jobs.submit.run(
                    context, ["true"], submission_id="before", cwd="/", environment={"PATH": "/bin"}
                )
            (self.base / "changes").unlink()  # it names the files of the original
        self.sample = Sample(self.base, work)
        self.folder = work / "work"
        self.folder.mkdir(exist_ok=True)
        if not cold:
            warm(vctl(*WORDS), *self.fresh())

    def _env(self, home: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VCTL_")}
        return {
            **kept,
            "VCTL_HOME": str(home),
            "VCTL_LOCAL_NODE": str(int(self.first)),
            "VCTL_AUTOSTART": "0",
        }

    def fresh(self) -> tuple[Path, Mapping[str, str]]:
        return self.folder, self._env(self.sample.copy())

    def counted(self, kind: str) -> list[str]:
        return counted(vctl(*WORDS), self.fresh, kind)

    def fails(self, kind: str, at: int, turn: int) -> list[str]:
        """What does not hold when the point of this number fails."""
        folder, env = self.fresh()
        ended = play(vctl(*WORDS), folder, env, kind, Points(at, turn))
        home = Path(env["VCTL_HOME"])
        if kind == "memory" and ended.code < 0:  # CPython itself does not survive it: as a kill
            said = []
        else:
            said = is_a_sentence(ended)
        if "malformed" in ended.err:
            said.append("it speaks of damage, and there is none")
        return [f"{one}: {ended}" for one in [*said, *self._left(home, ended, killed=ended.code < 0)]]

    def _left(self, home: Path, ended: Ended, *, killed: bool) -> list[str]:
        wrong = []
        with Store.open(home, lock_timeout_s=1) as store:
            found = {
                row[0]: tuple(row[1:])
                for row in store.rows("SELECT submission_id, status, priority FROM jobs")
            }
            is_there = "j" in found
            if ended.code == 0 and not is_there:
                wrong.append("success, and the job is not there")
            if ended.code == 0 and ended.out != "j\n":
                wrong.append("success, and it does not say the id")
            if ended.code > 0 and is_there and "job j was submitted" not in ended.err:
                wrong.append("an error, and the job is there")
            expected = set() if self.first else {"before"}
            if set(found) - {"j"} != expected:
                wrong.append(f"jobs {sorted(found)}")
            if is_there:
                job = ops.jobs.get_job(store, "j")
                if (job["entrypoint"], job["status"]) != ("true", "PENDING"):
                    wrong.append(f"another job: {job}")
            context = Context(store, load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"}))
            nodes.add.run(context, resources={"CPU": 1}, count=1)
            jobs.submit.run(context, ["true"], submission_id="next", cwd="/", environment={"PATH": "/bin"})
            wrong += prove(store)
            if ops.replay.replay(store, dry_run=True)["changes"]:
                wrong.append("the journal does not lead to the tables")
        return wrong
