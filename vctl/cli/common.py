"""The options that commands share, and the groups of them for each kind of command."""

from typing import Annotated, Any

from vctl.config import COLORS, OUTPUTS
from vctl.spec.params import Opt, Param

Timeout = Annotated[
    float | None, Opt("--timeout", metavar="TIME", reads="duration", help="Give up after this time (exit 7).")
]
WithProgress = Annotated[
    bool, Opt("--progress", help="Show progress on stderr, also where stderr is not a terminal.")
]
Follow = Annotated[
    bool, Opt("-f", "--follow", waits=True, help="Follow the output to its end, and return the exit code.")
]
Tail = Annotated[int | None, Opt("-n", "--tail", help="Only the last N lines.")]
Raw = Annotated[
    bool, Opt("--raw", help="Let control sequences of another user's job act on the terminal, too.")
]


def _option(name: str, kind: Any, *names: str, **about: Any) -> Param:
    return Param(name, Annotated[kind, Opt(*names, **about)], default=False if kind is bool else None)


Text, Flag = str | None, bool
RESULTS = "Form of the results: table, json, jsonl, yaml, csv or name."
OUTPUT = _option("output", Text, "-o", "--output", metavar="FORM", choices=OUTPUTS, help=RESULTS)
SHORT_OUTPUT = _option("output", Text, "-o", metavar="FORM", choices=OUTPUTS, help=RESULTS)
"""For a command whose ``--output`` is something else."""
COLOR = _option(
    "color",
    Text,
    "--color",
    metavar="WHEN",
    choices=COLORS,
    help="Colours: auto, always or never; NO_COLOR is honoured.",
)
HOME = _option(
    "home", Text, "--home", metavar="DIR", complete="dir", help="State directory, instead of VCTL_HOME."
)
NO_HEADER = _option("no_header", Flag, "--no-header", help="Leave out the heading of tables and CSV.")
WATCH = _option(
    "watch", float | None, "-w", "--watch", metavar="SEC", bare="2", lasts=True,
    help="Refresh every SEC seconds (2).",
)  # fmt: skip
LIMIT = _option("limit", int | None, "--limit", help="At most N entries (tables: 100, else no limit).")
FILTER = _option(
    "filter", list[str] | None, "-f", "--filter", metavar="K=V|K!=V",
    help="Only entries whose field has (not) that value; repeatable.",
)  # fmt: skip
ALL = _option("all", Flag, "-a", "--all", help="Include finished ones, as this list always does.")
USER = _option("user", Text, "--user", metavar="NAME", help="Only entries of this user.")
STATE = _option(
    "state",
    Text,
    "--state",
    metavar="STATE,…",
    complete="states",
    help="Only entries in one of these states, finished or not.",
)
SINCE = _option(
    "since", Text, "--since", metavar="TIME",
    help="Only entries that began in the last 1h, since 16:00, or since 2030-01-31T08:00; finished or not.",
)  # fmt: skip
SORT = _option(
    "sort", Text, "--sort", metavar="FIELD[:desc]",
    help="Sort by a field of the JSON form; entries without a value come last.",
)  # fmt: skip
COLUMNS = _option(
    "columns", Text, "--columns", metavar="FIELD,…",
    help="Show these fields of the JSON form in tables and CSV.",
)  # fmt: skip
NO_LOCAL_NODE = _option("no_local_node", Flag, "--no-local-node", help="Do not make this machine a node.")

CHANGES = (OUTPUT, COLOR, HOME)
"""The options of every command, also of those that change something."""
NAMES_OUTPUTS = (SHORT_OUTPUT, COLOR, HOME)
"""Instead of CHANGES where ``--output`` names objects."""
READS = (OUTPUT, NO_HEADER, WATCH, COLOR, HOME)
LISTS = (FILTER, SORT, COLUMNS, LIMIT, *READS)
CHOICES = (USER, STATE, SINCE)
"""In addition to LISTS, where a kind of object has a user, a state and a begin."""
CHOSEN_BY: dict[str, dict[str, Any]] = {
    "jobs": {
        "state": "status",
        "states": ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"),
        "user": "user",
        "since": "submitted_at",
    },
    "tasks": {
        "state": "state",
        "states": ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "RUNNING", "FINISHED", "FAILED"),
        "since": "created_at",
    },
    "nodes": {"state": "state", "states": ("ALIVE", "DRAINING", "DRAINED", "DEAD"), "since": "created_at"},
    "clusters": {"state": "state", "states": ("BOOKED", "ACTIVE", "STOPPED", "REMOVING")},
    "objects": {"since": "created_at"},
    "leases": {"since": "since"},
    "events": {"since": "at"},
    "vnodes": {},
}
"""The fields that --state, --user and --since mean, for each kind of object."""
HOISTED = (OUTPUT, COLOR, HOME)
"""Accepted in front of the command word too: ``vctl -o json job list``."""


HERE = "(default: inside a job its cluster, else the primary)."


def cluster_option(what: str) -> Opt:
    """The option ``-c``; ``what`` begins its help text."""
    return Opt("-c", "--cluster", metavar="ID", complete="clusters", help=f"{what} {HERE}")


InCluster = Annotated[str | None, cluster_option("Only entries in this cluster and below")]
