"""The table of contents: every first word of a command, its one-line help and the module that declares it.

Only the module of the word in use is imported. A new group is one module in ``commands/`` and one entry here.
"""

from importlib import import_module

from vctl.cli.declare import COMMANDS, Command
from vctl.errors import BadSpec

ABOUT = (
    "Divide a machine or a cluster into virtual clusters and run jobs in them: isolated, gang-scheduled, "
    "nested, elastic, queued, and recovered after any crash."
)
EXAMPLES = (
    "vctl job submit --num-cpus 2 -- python train.py",
    "vctl vc create team-a --divisible --replica-sets '{\"8c16g\": 2}'",
    "vctl status",
)

GROUPS = {
    "job": ("Submit, watch and stop jobs.", "job_submit jobs job_edits"),
    "vc": ("Create, change and show virtual clusters.", "clusters cluster_files"),
    "task": ("Run commands inside a job, watch and cancel them.", "tasks"),
    "node": ("Add, drain and remove physical nodes.", "nodes"),
    "lease": ("Show what clusters have borrowed.", "leases"),
    "config": ("Show the settings and where they come from.", "configuration"),
}
"""Words that are followed by a second word; the last column names one module, or several."""

WORDS = {
    "status": ("What runs, what waits and what is free.", "views"),
    "cluster-resources": ("Total resources of a virtual cluster.", "views"),
    "available-resources": ("What is free in a virtual cluster.", "views"),
    "nodes": ("The virtual nodes of a virtual cluster.", "views"),
    "current-cluster": ("The virtual cluster this command runs in.", "views"),
    "current-node": ("The virtual node this command runs on.", "views"),
    "list": ("List objects of one kind.", "objects"),
    "get": ("Show one object.", "objects"),
    "summary": ("Count the objects of one kind.", "objects"),
    "simulate": ("Play work under other policies or on other machines.", "simulate"),
    "why": ("Why a job waits, and what would start it now.", "why"),
    "demand": ("What waits for resources.", "leases"),
    "events": ("The history of changes.", "views"),
    "daemon": ("Run the scheduler until it is stopped.", "upkeep"),
    "serve": ("Answer the HTTP API until it is stopped.", "serve"),
    "replay": ("Repair the state from its tables, as at every start.", "upkeep"),
    "doctor": ("Check the state and this machine.", "upkeep"),
    "backup": ("Write a copy of the state to a file.", "upkeep"),
    "restore": ("Replace the state by a backup.", "upkeep"),
    "prune": ("Forget jobs that ended long ago.", "upkeep"),
}
HIDDEN = {"completion": "shells"}
OTHER_WORDS = {
    "ls": ("list",),
    "ps": ("list",),
    "jobs": ("list",),
    "squeue": ("list",),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "delete": ("remove",),
    "kill": ("stop", "cancel"),
    "cancel": ("stop",),
    "end": ("stop", "cancel"),
    "stop": ("cancel",),
    "run": ("submit",),
    "submit": ("run",),
    "start": ("submit",),
    "add": ("create", "submit"),
    "new": ("create", "add"),
    "create": ("add", "submit"),
    "show": ("status", "get"),
    "describe": ("status", "get"),
    "info": ("status", "get"),
    "get": ("status",),
    "status": ("get",),
    "log": ("logs",),
    "output": ("logs",),
    "tail": ("logs",),
}
"""What people type who come from elsewhere -> what it is called here, the first one that exists."""


def load(word: str) -> None:
    """Import what declares the commands of a first word."""
    modules = HIDDEN.get(word) or (GROUPS.get(word) or WORDS[word])[1]
    for module in modules.split():
        import_module(f"vctl.cli.commands.{module}")


def load_all() -> dict[str, Command]:
    """Every command there is, in the order of the catalogue."""
    for word in (*GROUPS, *WORDS, *HIDDEN):
        load(word)
    order = [*GROUPS, *WORDS, *HIDDEN]
    return dict(sorted(COMMANDS.items(), key=lambda item: order.index(item[0].split()[0])))


def members(group: str) -> list[Command]:
    """The commands of a group, in the order of their declaration."""
    load(group)
    return [command for path, command in COMMANDS.items() if path.split()[0] == group and not command.hidden]


def find(words: list[str]) -> tuple[Command, list[str]]:
    """The command that the first words name, and the rest of the words."""
    first = words[0]
    if first not in GROUPS and first not in WORDS and first not in HIDDEN:
        raise _unknown("vctl", first, [*GROUPS, *WORDS])
    load(first)
    if first in COMMANDS:
        return COMMANDS[first], words[1:]
    if len(words) == 1 or words[1].startswith("-"):
        names = ", ".join(command.path.split()[1] for command in members(first))
        raise BadSpec(f"vctl {first} needs a command", fix=f"one of: {names}; see `vctl {first} --help`")
    path = f"{first} {words[1]}"
    if path not in COMMANDS:
        raise _unknown(f"vctl {first}", words[1], [command.path.split()[1] for command in members(first)])
    return COMMANDS[path], words[2:]


def _unknown(before: str, word: str, known: list[str]) -> BadSpec:
    from vctl.spec.fields import nearest

    wanted = OTHER_WORDS.get(word, ())
    guess = None
    if before == "vctl":  # jobs are what most people are after
        guess = next((f"vctl job {one}" for one in (word, *wanted) if f"job {one}" in _job_paths()), None)
    if guess is None:
        guess = next((f"{before} {one}" for one in wanted if one in known), None)
    if guess is None and (close := nearest(word, known)):
        guess = f"{before} {close}"
    fix = f"did you mean `{guess}`?" if guess else f"`{before} --help` lists the commands"
    return BadSpec(f"{before} has no command {word!r}", fix=fix)


def _job_paths() -> list[str]:
    return [command.path for command in members("job")]
