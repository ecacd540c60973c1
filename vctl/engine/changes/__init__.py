"""The changes of the state: frozen values with everything that a rule may read afterwards, never differences.

Each change knows its public event. A change without an event is in the journal for schedulers only. A change
is defined in the module of its objects, and listed here.
"""

from collections.abc import Mapping

from vctl.engine.changes.change import Change, PublicEvent
from vctl.engine.changes.clusters import (
    AccessChanged,
    ClusterAdded,
    ClusterChanged,
    ClusterDetached,
    ClusterMoved,
    ClusterRemoved,
    LeaseCalled,
    LeaseGranted,
    LeaseReturned,
    LeaseSpared,
    NodeReplaced,
    NodesPublished,
    QueueChanged,
    VNodesChanged,
)
from vctl.engine.changes.gates import (
    ArrayLimited,
    BeginTimesPassed,
    DependencyMet,
    JobsEdited,
    JobsHeld,
    Members,
    MembersAdmitted,
    MembersUnfolded,
)
from vctl.engine.changes.jobs import (
    JobEnded,
    JobEnding,
    JobRequeued,
    JobsStopped,
    JobStarted,
    NoticeSent,
    StopAsked,
)
from vctl.engine.changes.limits import LimitCleared, LimitSet
from vctl.engine.changes.nodes import (
    DeviceFenced,
    MachinesAsked,
    MachinesDone,
    MachinesFailed,
    NodeAdded,
    NodeChanged,
    NodeMoved,
    NodeRemoved,
)
from vctl.engine.changes.preemptions import (
    JobNominated,
    JobPreempted,
    JobPreempting,
    JobSpared,
    NominationDropped,
    PreemptionMoved,
    PreemptionOver,
)
from vctl.engine.changes.repair import ClusterRepaired, RowSetAside, RunStripped
from vctl.engine.changes.reruns import JobsRerun
from vctl.engine.changes.runs import (
    RunAssignedAhead,
    RunEnded,
    RunSeen,
    RunStopping,
    RunTakenBack,
    RunWarned,
    StartedProcess,
)
from vctl.engine.changes.submits import (
    ArrayForgotten,
    ArraysEmptied,
    ArraySubmitted,
    JobForgotten,
    JobsPruned,
    JobSubmitted,
    Launch,
    SubmitDetails,
)
from vctl.engine.changes.tasks import (
    Copy,
    ObjectCreated,
    ObjectLost,
    ObjectsDropped,
    TaskAwaits,
    TaskBound,
    TaskEnded,
    TaskReady,
    TaskRetried,
    TaskStarted,
    TaskStopAsked,
    TaskSubmitted,
)

OF_CAPACITY = (
    NodeAdded, NodeMoved, NodeChanged, DeviceFenced, NodeRemoved,
    ClusterAdded, ClusterChanged, ClusterMoved, ClusterRemoved, NodeReplaced,
)  # fmt: skip
"""The changes after which it is judged anew what could ever run."""
HOMES = (
    "jobs",
    "submits",
    "gates",
    "reruns",
    "runs",
    "clusters",
    "nodes",
    "tasks",
    "preemptions",
    "repair",
    "limits",
)
"""The modules of the changes. ``store/write`` has a module of each of these names."""
CHANGES: Mapping[str, type[Change]] = {kind.__name__: kind for kind in Change.__subclasses__()}
