"""The options that commands share, and which kind of command has which."""

from typing import Annotated, Any

from vctl.config import COLORS, OUTPUTS
from vctl.operations.declare import Opt, Param

Timeout = Annotated[
    float | None,
    Opt("--timeout", metavar="TIME", reads="duration", help="Give up after this time (exit 7)."),
]
WithProgress = Annotated[
    bool, Opt("--progress", help="Show progress on stderr, also where stderr is not a terminal.")
]
OUTPUT = Param(
    "output",
    Annotated[str | None, Opt("-o", "--output", choices=OUTPUTS, help="How results are written to stdout.")],
    default=None,
)
SHORT_OUTPUT = Param(
    "output",
    Annotated[str | None, Opt("-o", choices=OUTPUTS, help="How results are written to stdout.")],
    default=None,
)
"""For a command whose ``--output`` is something else."""
COLOR = Param(
    "color",
    Annotated[str | None, Opt("--color", choices=COLORS, help="Colours in tables; NO_COLOR is honoured.")],
    default=None,
)
HOME = Param(
    "home",
    Annotated[
        str | None,
        Opt("--home", metavar="DIR", complete="dir", help="State directory, instead of VCTL_HOME."),
    ],
    default=None,
)
NO_HEADER = Param(
    "no_header",
    Annotated[bool, Opt("--no-header", help="Leave out the heading of tables and CSV.")],
    default=False,
)
WATCH = Param(
    "watch",
    Annotated[
        float | None,
        Opt("-w", "--watch", metavar="SEC", bare="2", help="Refresh every SEC seconds (2)."),
    ],
    default=None,
)
LIMIT = Param(
    "limit",
    Annotated[int | None, Opt("--limit", help="At most N entries (tables: 100, else no limit).")],
    default=None,
)
FILTER = Param(
    "filter",
    Annotated[
        list[str] | None,
        Opt(
            "-f",
            "--filter",
            metavar="K=V|K!=V",
            help="Only entries whose field has (not) that value; repeatable.",
        ),
    ],
    default=None,
)
USER = Param(
    "user",
    Annotated[str | None, Opt("--user", metavar="NAME", help="Only entries of this user.")],
    default=None,
)
STATE = Param(
    "state",
    Annotated[
        str | None,
        Opt("--state", metavar="STATE,…", help="Only entries in one of these states, finished or not."),
    ],
    default=None,
)
SINCE = Param(
    "since",
    Annotated[
        str | None,
        Opt(
            "--since",
            metavar="TIME",
            help="Only entries that began in the last 1h, or since 2030-01-31T08:00; finished or not.",
        ),
    ],
    default=None,
)
SORT = Param(
    "sort",
    Annotated[
        str | None,
        Opt(
            "--sort",
            metavar="FIELD[:desc]",
            help="Sort by a field of the JSON form; entries without a value come last.",
        ),
    ],
    default=None,
)
COLUMNS = Param(
    "columns",
    Annotated[
        str | None,
        Opt("--columns", metavar="FIELD,…", help="Show these fields of the JSON form in tables and CSV."),
    ],
    default=None,
)
NO_LOCAL_NODE = Param(
    "no_local_node",
    Annotated[bool, Opt("--no-local-node", help="Do not make this machine a node.")],
    default=False,
)

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

CHANGES = (OUTPUT, COLOR, HOME)
"""Shared by every command, those that change something included."""
NAMES_OUTPUTS = (SHORT_OUTPUT, COLOR, HOME)
"""Instead of CHANGES where ``--output`` names objects."""
READS = (OUTPUT, NO_HEADER, WATCH, COLOR, HOME)
LISTS = (FILTER, SORT, COLUMNS, LIMIT, *READS)
CHOICES = (USER, STATE, SINCE)
"""Beside LISTS, as far as a kind of object has a user, a state and a beginning."""
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
    "clusters": {"state": "state", "states": ("ACTIVE", "STOPPED", "REMOVING")},
    "objects": {"since": "created_at"},
    "leases": {"since": "since"},
    "events": {"since": "at"},
    "vnodes": {},
}
"""The fields that --state, --user and --since mean, for each kind of object."""
HOISTED = (OUTPUT, COLOR, HOME)
"""Accepted in front of the command word too: ``vctl -o json job list``."""
