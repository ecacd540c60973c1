"""The table of contents: every first word of a command, its one-line help and the module that declares it.

Only the module of the word in use is imported. A new group is one module in ``commands/`` and one entry here.
"""

from collections.abc import Collection

from vctl import cli, spec
from vctl.cli.declare import COMMANDS, Command
from vctl.errors import BadSpec

ABOUT = (
    "Divide a machine or a cluster into virtual clusters and run jobs in them: isolated, gang-scheduled, "
    "nested, elastic, queued, and recovered after any crash."
)
EXAMPLES = (
    "vctl run --num-cpus 2 -- python train.py",
    "vctl vc create team-a --divisible --replica-sets '{\"8c16g\": 2}'",
    "vctl status",
)

GROUPS = {
    "job": ("Submit, watch and stop jobs.", "job_submit jobs"),
    "vc": ("Create, change and show virtual clusters.", "clusters cluster_files"),
    "task": ("Run commands inside a job, watch and cancel them.", "tasks"),
    "node": ("Add, drain and remove physical nodes.", "nodes"),
    "token": ("List and end the tokens that you have for the HTTP API of a shared service.", "tokens"),
    "lease": ("Show the resources that clusters have borrowed.", "objects"),
    "limit": ("Limit what users and clusters may have at a time.", "limits"),
    "config": ("Show the settings and where they come from.", "serve"),
}
"""First words that need a second word -> help and the names of the modules."""

WORDS = {
    "status": ("Show running jobs, waiting jobs and free resources.", "views"),
    "cluster-resources": ("Show the total resources of a virtual cluster.", "views"),
    "available-resources": ("Show the free resources of a virtual cluster.", "views"),
    "nodes": ("List the virtual nodes of a virtual cluster.", "views"),
    "gpus": ("Show each GPU with who has booked it, and what runs there, booked or not.", "gpus"),
    "current-cluster": ("Show the current virtual cluster.", "views"),
    "current-node": ("Show the virtual node that this command runs on.", "views"),
    "list": ("List objects of one kind.", "objects"),
    "get": ("Show one object.", "objects"),
    "summary": ("Count the objects of one kind.", "objects"),
    "simulate": ("Simulate a workload under other policies or machines.", "simulate"),
    "attach": ("Open a shell beside a running job, or run a command there.", "job_submit"),
    "reserve": ("Book resources for a time.", "clusters"),
    "why": ("Explain why a job or a task waits, and which changes would start it now.", "jobs"),
    "demand": ("Show the resource requests that wait.", "objects"),
    "events": ("Show the history of changes.", "views"),
    "report": ("Show what users, clusters or jobs held, waited for and wasted.", "report"),
    "timeline": ("Show when jobs and tasks ran, and on which nodes.", "timeline"),
    "daemon": ("Run the scheduler until it is stopped.", "upkeep"),
    "login": ("Get a token for the HTTP API of a shared service: it acts as you.", "tokens"),
    "logout": (
        "End the token that you use; at the socket of the service, all of yours.",
        "tokens",
    ),
    "serve": ("Run the HTTP server until it is stopped.", "serve"),
    "replay": ("Repair the state from its tables, as the scheduler does at every start.", "upkeep"),
    "doctor": ("Check the state and this machine.", "upkeep"),
    "backup": ("Write a copy of the state to a file.", "upkeep"),
    "restore": ("Replace the state with a backup.", "upkeep"),
    "prune": ("Delete jobs that ended long ago.", "upkeep"),
}
HIDDEN = {"completion": "serve"}
SHORT = {
    "run": "job submit",
    "ps": "job list",
    "logs": "job logs",
    "stop": "job stop",
    "wait": "job wait",
    "shell": "job submit",
    "top": "status",
}
"""Short words for frequent commands, with the same options."""
ALONE = {
    "job submit": "job_submit",
    "job list": "jobs", "job status": "jobs", "job logs": "jobs", "job wait": "jobs", "job stop": "jobs",
}  # fmt: skip
"""Frequent commands -> the module that declares them. For others, all modules of the first word are imported."""
SHELL = "shell"
SHELL_HELP = "Open a shell with a terminal inside a job of its own."
SHELL_DETAILS = "Without CMD it is the shell that the variable SHELL names."
SHELL_EXAMPLES = ("vctl shell -n 4 -g 1", "vctl shell --time-limit 2h -- python3 -i train.py")
"""``vctl shell`` is ``vctl job submit --pty -- $SHELL``, or another command behind ``--``."""
TOP = "top"
TOP_HELP = "Watch running jobs, waiting jobs and free resources; without a terminal, show them once."
SECTIONS = {
    "Work": ("run", "ps", "logs", "stop", "wait", "shell", "attach", "job", "task"),
    "Look": (
        "status", "top", "why", "gpus", "events", "list", "get", "summary", "cluster-resources", "available-resources",
        "nodes", "current-cluster", "current-node", "timeline", "report", "simulate",
    ),
    "Clusters": ("vc", "reserve", "lease", "limit", "demand"),
    "Nodes": ("node",),
    "Run the service": ("daemon", "serve", "config", "doctor", "replay", "backup", "restore", "prune"),
    "Sign in to a shared service": ("login", "logout", "token"),
}  # fmt: skip
"""The sections of the first help page; each word that is not hidden is in one of them."""
ELSEWHERE = {
    "srun": "run", "salloc": "shell", "submit": "run", "exec": "task run", "start": "run",
    "sbatch": "run --no-wait", "qsub": "run --no-wait", "bsub": "run --no-wait",
    "squeue": "ps", "qstat": "ps", "bjobs": "ps", "queue": "ps", "jobs": "ps", "ls": "ps", "sacct": "ps -a",
    "scancel": "stop", "qdel": "stop", "bkill": "stop", "kill": "stop", "cancel": "stop", "end": "stop",
    "log": "logs", "output": "logs", "tail": "logs --tail 20", "sattach": "attach",
    "sinfo": "node list", "snodes": "node list", "scontrol": "job edit", "sprio": "why", "sdiag": "status",
    "scontrol show": "job status", "scontrol hold": "job hold", "scontrol release": "job release",
    "scontrol requeue": "job rerun", "scontrol show node": "get nodes", "scontrol show nodes": "node list",
    "scontrol show partition": "vc list", "htop": "top", "watch": "top", "info": "status",
    "show": "status", "describe": "job status", "inspect": "job status", "explain": "why",
    "apply": "vc apply", "create": "vc create", "delete": "job delete", "rm": "job delete", "edit": "job edit",
    "drain": "node drain", "cordon": "node drain", "uncordon": "node undrain", "hold": "job hold",
    "release": "job release", "cluster": "vc", "clusters": "vc list", "tree": "vc tree", "leases": "lease list",
    "tasks": "task list", "objects": "list objects", "up": "daemon", "ssh": "shell", "server": "serve",
    "memory": "list objects", "retry": "job rerun", "restart": "job rerun", "requeue": "job rerun",
    "free": "available-resources", "df": "available-resources", "gpu": "gpus",
    "nvidia-smi": "gpus", "nvtop": "gpus", "nvitop": "gpus", "gpustat": "gpus", "devices": "gpus",
    "priority": "job edit", "nice": "job edit", "renice": "job edit",
    "export": "vc export", "import": "vc apply", "plan": "vc plan", "alloc": "shell",
    "book": "reserve", "booking": "reserve", "bookings": "vc list", "reservation": "reserve",
    "reservations": "vc list",
    "users": "ps", "who": "ps", "quota": "limit list", "quotas": "limit list", "limits": "limit list",
    "sacctmgr": "limit", "sreport": "report", "usage": "report", "reports": "report", "accounting": "report",
}  # fmt: skip
"""First words of Slurm, PBS, LSF, Ray and kubectl -> the command of vctl; the longest entry counts."""
_SUMS = "`vctl summary jobs` counts jobs, `vctl timeline` shows when they ran, `vctl ps -a` lists them"
INSTEAD = {
    **dict.fromkeys(("history", "stats", "seff", "sstat"), _SUMS),
    **dict.fromkeys(
        ("pause", "suspend"), "`vctl job hold` keeps a waiting job from starting; no running job pauses"
    ),
    "resume": "`vctl job release` lets a job on hold start, `vctl vc resume` opens a stopped cluster",
    "init": "there is nothing to set up: `vctl run -- CMD` runs a job",
    **dict.fromkeys(("dashboard", "ui", "web"), "`vctl top` watches jobs and resources in the terminal"),
}  # fmt: skip
"""First words for which no single command stands -> what does it."""
OTHER_WORDS = {
    "ls": ("list",),
    "ps": ("list",),
    "queue": ("list",),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "delete": ("remove",),
    "kill": ("stop", "cancel"),
    "cancel": ("stop",),
    "end": ("stop", "cancel"),
    "stop": ("cancel",),
    "run": ("submit",),
    "submit": ("run",),
    "start": ("submit", "run"),
    "exec": ("run",),
    "add": ("create", "submit"),
    "new": ("create", "add"),
    "create": ("add", "submit"),
    "show": ("status", "get"),
    "describe": ("status", "get"),
    "info": ("status", "get"),
    "get": ("status", "show"),
    "status": ("get",),
    "log": ("logs",),
    "output": ("logs",),
    "tail": ("logs",),
    "requeue": ("rerun",),
    "retry": ("rerun",),
    "restart": ("rerun",),
    "modify": ("edit", "update"),
    "set": ("edit", "update", "path"),
    "edit": ("update",),
    "update": ("edit",),
    "cordon": ("drain",),
    "uncordon": ("undrain",),
    "resume": ("undrain", "release"),
}
"""Second words of other tools -> words of vctl; the first one that the group has counts."""
OTHER_KINDS = {
    "pod": "jobs", "pods": "jobs", "po": "jobs", "deployments": "jobs", "queue": "jobs", "actors": "tasks",
    "namespaces": "clusters", "namespace": "clusters", "ns": "clusters", "vc": "clusters", "vcs": "clusters",
    "partitions": "clusters", "queues": "clusters", "machines": "nodes", "no": "nodes", "placement-groups": "vnodes",
}  # fmt: skip
"""Kinds of objects of other tools -> the kind of vctl."""
_AMOUNTS = "--num-cpus --cpus --cpu --num-gpus --gpus --gpu --memory --mem"
_BOUNDS = '{"flexible_resource_min": {"CPU": 4}, "flexible_resource_max": {"CPU": 8, "GPU": 1}}'
OTHER_OPTIONS = {
    "--num-cpus": "--cpus --cpu --ntasks --cpus-per-task",
    "--num-gpus": "--gpus --gpu --gres --gpus-per-node -G",
    "--nodes": "--num-nodes -N",
    "--memory": "--mem --ram --mem-per-cpu",
    "--cluster": "--partition --namespace --queue --account -p",
    "--time-limit": "--time --timeout --walltime -t",
    "--name": "--job-name -J",
    "--cwd": "--chdir --workdir -D",
    "--after": "--dependency",
    "--env": "--export",
    "--max-retries": "--requeue",
    "--metadata": "--comment",
    "--priority": "--nice",
    "--no-wait": "--background --async",
    "--per-node": "--ntasks-per-node",
    "--follow": "--stream",
    "--watch": "--refresh --follow -f",
    "--repair": "--fix",
    "--all": "--all-namespaces --show-all -A",
    "leave it out: the command waits; --no-wait returns at once": "--wait",
    "leave it out: nobody else uses what a job reserves": "--exclusive",
    "write --notify mailto:NAME@HOST": "--mail-user --mail-type",
    "write --max-running 4: of an array only the limit can be changed": "--array",
    "leave it out: output and errors are one log; `vctl logs` prints both": "--error",
    "write the line last: -- sh -c '…'": "--wrap",
    "set VCTL_ADDRESS=http://HOST:PORT to work on a server": "--address",
    'write --resources \'{"CPU": 8, "GPU": 1}\'': _AMOUNTS,
    "write --min CPU=4,GPU=1, and --max CPU=8,GPU=1 as the limit": f"{_AMOUNTS} --resources --virtual-cluster",
    f"write --virtual-cluster '{_BOUNDS}'": "--min --max --minimum --maximum --spec",
    "write --replica-sets '{\"8c16g\": 2}' for whole nodes": "--nodes --num-nodes --count -N",
}
"""Answers -> the options of other tools that they answer. An answer is an option of vctl, or what to do."""


def answers_to(option: str, own: Collection[str]) -> list[str]:
    """The answers to an option of another tool for a command with its own options, the best one first."""
    return [
        answer
        for answer, words in OTHER_OPTIONS.items()
        if option in words.split() and named_options(answer) <= set(own)
    ]


def named_options(answer: str) -> set[str]:
    """The options that an answer names."""
    return {word for word in answer.split() if word.startswith("--") and word != "--"}


def load(word: str, path: str = "") -> None:
    """Import the modules that declare the commands of a first word; of a frequent command (``path``), only its own."""
    modules = ALONE.get(path) or HIDDEN.get(word) or (GROUPS.get(word) or WORDS[word])[1]
    for module in modules.split():
        __import__(f"vctl.cli.commands.{module}")


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


def short(word: str) -> Command:
    """The command behind a short word, under that word."""
    path = SHORT[word]
    load(path.split()[0], path)
    command = COMMANDS[path].called(word)
    if word == SHELL:
        command.help, command.details, command.examples = SHELL_HELP, SHELL_DETAILS, SHELL_EXAMPLES
    if word == TOP:
        command.help, command.examples = TOP_HELP, ("vctl top", "vctl top -c team-a")
    return command


def _in_shell(words: list[str]) -> list[str]:
    import os

    words = ["--pty", *words]
    values = None if "--" in words else cli.declare.read(COMMANDS[SHORT[SHELL]], words)
    if "--" in words or (values is not None and values["entrypoint"]):
        return words
    return [*words, "--", os.environ.get("SHELL") or "/bin/sh"]


def _watched(words: list[str]) -> list[str]:
    import sys

    return ["--watch", *words] if sys.stdout.isatty() else words


def line_of(word: str) -> str:
    """The one-line help of a first word."""
    return short(word).help if word in SHORT else (GROUPS.get(word) or WORDS[word])[0]


def find(words: list[str]) -> tuple[Command, list[str]]:
    """The command that the first words name, and the rest of the words."""
    first = words[0]
    if first in SHORT:
        command, rest = short(first), words[1:]
        return command, _in_shell(rest) if first == SHELL else _watched(rest) if first == TOP else rest
    if first not in GROUPS and first not in WORDS and first not in HIDDEN:
        raise _unknown("vctl", words, [*GROUPS, *WORDS, *SHORT])
    load(first, " ".join(words[:2]))
    if first in COMMANDS:
        return COMMANDS[first], words[1:]
    if len(words) == 1 or words[1].startswith("-"):
        names = [command.path.split()[1] for command in members(first)]
        if meant := next((word for word in words[2:] if word in names), None):
            raise too_early(words[1], f"{first} {meant}")
        fix = f"one of: {', '.join(names)}; see `vctl {first} --help`"
        raise BadSpec(f"vctl {first} needs a command", fix=fix)
    path = f"{first} {words[1]}"
    if path not in COMMANDS:
        raise _unknown(f"vctl {first}", words[1:], [command.path.split()[1] for command in members(first)])
    return COMMANDS[path], words[2:]


def too_early(word: str, meant: str) -> BadSpec:
    """The error about an option in front of the command."""
    option = word.partition("=")[0]
    return BadSpec(
        f"{option} stands before the command", fix=f"options follow the command: `vctl {meant} {option} …`"
    )


def _unknown(before: str, words: list[str], known: list[str]) -> BadSpec:
    word, guess = words[0], None
    if before == "vctl":
        starts = (" ".join(words[:length]) for length in (3, 2, 1))
        guess = next((ELSEWHERE[start] for start in starts if start in ELSEWHERE), None)
        if guess is None and f"job {word}" in (job.path for job in members("job")):  # most users mean a job
            guess = f"job {word}"
    else:
        guess = _elsewhere(word, known)
    guess = guess or _mistyped(word, before, known)
    fix = f"did you mean `{before} {guess}`?" if guess else f"`{before} --help` lists the commands"
    if before == "vctl" and word in INSTEAD:
        fix = INSTEAD[word]
    if not guess and word in WORDS:
        fix = f"did you mean `vctl {word}`?"
    return BadSpec(f"{before} has no command {word!r}", fix=fix)


def _elsewhere(word: str, known: list[str]) -> str | None:
    return next((other for other in OTHER_WORDS.get(word, ()) if other in known), None)


def _mistyped(word: str, before: str, known: list[str]) -> str | None:
    """The command that is most similar to a word, or that stands for a similar word of another tool (``sbmit``)."""
    from difflib import get_close_matches

    ours = spec.fields.nearest(word, known)
    theirs = [other for other in (ELSEWHERE if before == "vctl" else OTHER_WORDS) if other[0] == word[:1]]
    meant = get_close_matches(word[:100], theirs if ours is None else [*theirs, ours], n=1, cutoff=0.75)
    if not meant or meant[0] == ours:
        return ours
    return (ELSEWHERE[meant[0]] if before == "vctl" else _elsewhere(meant[0], known)) or ours
