"""The lifecycles: the phases in which each move of an object is possible, and the phases to which it leads.

These tables are executed: ``vctl/store/moves.py`` puts the phases of a move into the WHERE of its UPDATE. A
phase is a state that users see, with two exceptions. A job in the phase ENDING is RUNNING to users: its
entrypoint has ended, and its other processes still end. A job in the phase AHEAD is PENDING to users: its run
is assigned ahead of the end of another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core import jobs as jb
from vctl.core import nodes as nd
from vctl.core import tasks as tk
from vctl.core.clusters import ACTIVE, BOOKED, REMOVING, STOPPED
from vctl.core.leases import CALLED, GRANTED
from vctl.core.values import value
from vctl.errors import VctlError

GONE = "gone"
"""The row is deleted."""
ENDING = "ENDING"
AHEAD = "AHEAD"
BEGUN, TOLD = "BEGUN", "TOLD"

Phases = tuple[str, ...]
SAME: Phases = ()
"""The targets of a move that does not change the phase."""
Moves = Mapping[str, tuple[Phases, Phases]]


@value(frozen=True, slots=True)
class Lifecycle:
    """``moves``: name -> (phases in which it is possible, phases to which it leads)."""

    name: str
    begins: Phases
    moves: Moves

    def sources(self, move: str) -> Phases:
        """The phases in which a move is possible."""
        return self.moves[move][0]

    def targets(self, move: str) -> Phases:
        """The phases to which a move leads."""
        return self.moves[move][1]

    def moves_from(self, phase: str) -> list[str]:
        """The moves that are possible in a phase."""
        return [move for move, (sources, _) in self.moves.items() if phase in sources]

    def phases(self) -> list[str]:
        """All phases, in the order in which the moves name them."""
        return list(
            dict.fromkeys((*self.begins, *(p for both in self.moves.values() for side in both for p in side)))
        )


JOB = Lifecycle(
    "job",
    (jb.PENDING,),
    {
        "start": ((jb.PENDING, AHEAD), (jb.RUNNING,)),
        "assign_ahead": ((jb.PENDING,), (AHEAD,)),
        "take_back": ((AHEAD,), (jb.PENDING,)),
        "stop": ((jb.PENDING,), (jb.STOPPED,)),
        "reject": ((jb.PENDING,), (jb.FAILED,)),
        "gate": ((jb.PENDING,), SAME),
        "edit": ((jb.PENDING, jb.RUNNING, ENDING), SAME),
        "ask_stop": ((jb.RUNNING, ENDING), SAME),
        "entry_over": ((jb.RUNNING, ENDING), (ENDING,)),
        "end": ((jb.RUNNING, ENDING), (jb.SUCCEEDED, jb.FAILED, jb.STOPPED)),
        "requeue": ((jb.RUNNING, ENDING), (jb.PENDING,)),
        "rerun": ((jb.FAILED, jb.STOPPED), (jb.PENDING,)),
        "forget": ((jb.SUCCEEDED, jb.FAILED, jb.STOPPED), (GONE,)),
    },
)
RUN = Lifecycle(
    "run",
    (jb.ASSIGNED,),
    {
        "seen": ((jb.ASSIGNED, jb.RUNNING), (jb.RUNNING,)),  # RUNNING: adopted before its process was found
        "end": ((jb.ASSIGNED, jb.RUNNING), (GONE,)),
    },
)
TASK = Lifecycle(
    "task",
    (tk.PENDING_ARGS, tk.PENDING_NODE),
    {
        "ready": ((tk.PENDING_ARGS,), (tk.PENDING_NODE,)),
        "bind": ((tk.PENDING_NODE,), SAME),
        "start": ((tk.PENDING_NODE,), (tk.RUNNING,)),
        "ask_stop": ((tk.RUNNING,), SAME),
        "await": ((tk.PENDING_ARGS, tk.PENDING_NODE), (tk.PENDING_ARGS,)),
        "finish": ((tk.RUNNING,), (tk.FINISHED,)),
        "fail": ((tk.RUNNING,), (tk.FAILED,)),
        "retry": ((tk.RUNNING,), (tk.PENDING_NODE,)),
        "cancel": ((tk.PENDING_ARGS, tk.PENDING_NODE), (tk.FAILED,)),
        "forget": ((tk.FINISHED, tk.FAILED), (GONE,)),
    },
)
NODE = Lifecycle(
    "node",
    (nd.ALIVE,),
    {
        "drain": ((nd.ALIVE, nd.DRAINING, nd.DRAINED), (nd.DRAINING,)),  # again: for another reason
        "empty": ((nd.DRAINING,), (nd.DRAINED,)),
        "undrain": ((nd.DRAINING, nd.DRAINED), (nd.ALIVE,)),
        "die": ((nd.ALIVE, nd.DRAINING, nd.DRAINED), (nd.DEAD,)),
        "release": ((nd.ALIVE, nd.DRAINING, nd.DRAINED, nd.DEAD), (nd.RELEASING,)),
        "forget": ((nd.ALIVE, nd.DRAINING, nd.DRAINED, nd.DEAD, nd.RELEASING), (GONE,)),
    },
)
CLUSTER = Lifecycle(
    "cluster",
    (ACTIVE, BOOKED),
    {
        "open": ((BOOKED,), (ACTIVE,)),
        "stop": ((ACTIVE, STOPPED), (STOPPED,)),
        "resume": ((ACTIVE, STOPPED), (ACTIVE,)),
        "remove": ((BOOKED, ACTIVE, STOPPED, REMOVING), (REMOVING,)),
        "forget": ((BOOKED, ACTIVE, STOPPED, REMOVING), (GONE,)),
    },
)
LEASE = Lifecycle(
    "lease",
    (GRANTED, CALLED),
    {
        "call": ((GRANTED,), (CALLED,)),
        "split": ((GRANTED,), SAME),
        "spare": ((CALLED,), (GRANTED,)),
        "merge": ((CALLED,), (GONE,)),
        "cut": ((GRANTED, CALLED), SAME),
        "return": ((GRANTED, CALLED), (GONE,)),
    },
)
PREEMPTION = Lifecycle(
    "preemption",
    (BEGUN,),
    {
        "tell": ((BEGUN,), (TOLD,)),
        "end": ((BEGUN, TOLD), (ENDING,)),
        "spare": ((BEGUN, TOLD), (GONE,)),
        "over": ((BEGUN, TOLD, ENDING), (GONE,)),
    },
)
LIFECYCLES = (JOB, RUN, TASK, NODE, CLUSTER, LEASE, PREEMPTION)


class IllegalTransition(VctlError):
    """The phase of an object does not allow a move. Nothing of the transaction is written."""

    code = "IllegalTransition"

    def __init__(self, lifecycle: Lifecycle, move: str, key: object, phase: str, story: list[str]) -> None:
        self.lifecycle, self.move, self.key, self.phase = lifecycle, move, key, phase
        events = "; ".join(story) or "none"
        super().__init__(
            f"{lifecycle.name} {key} is {phase}, so the move {move!r} is impossible. Its last events: {events}",
            fix="look with `vctl doctor`, and report this: a program error, or a row that was changed by hand",
            details={"object": lifecycle.name, "key": key, "move": move, "phase": phase, "story": story},
        )
