"""``vctl __complete WORDS…``: the words that may replace the last word, for the scripts of three shells.

It runs at every TAB, so it imports only the module of the command in use, and it never fails. Each line is a word,
a tab and its description. ``:file`` and ``:dir`` ask the shell for paths; ``:command N`` says that the words after
the first N belong to the user's own command.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from vctl import operations, spec
from vctl.cli import catalog, declare
from vctl.cli.common import CHOSEN_BY, HOISTED
from vctl.cli.declare import Command
from vctl.core import tasks as tk
from vctl.core.text import visible
from vctl.spec.params import Param

if TYPE_CHECKING:
    from vctl.operations.declare import Backend

FILES = {"bash": "vctl.bash", "zsh": "_vctl", "fish": "vctl.fish"}
MAX_OFFERED = 500
AFTER, STRATEGIES = "after", "strategies"
Offer = tuple[str, str]
HELP = ("--help", "Show help.")
VERSION = ("--version", "Print the version.")


def offer(words: Sequence[str]) -> int:
    """Print the words that may replace the last word."""
    try:
        offers = [(visible(word), visible(about)) for word, about in candidates(words or [""])]
        sys.stdout.write("".join(f"{word}\t{about}\n" if about else f"{word}\n" for word, about in offers))
        sys.stdout.flush()
    except Exception:
        # a shell cannot show a problem without spoiling the line that the user types
        if os.environ.get("VCTL_DEBUG") == "1":
            raise
    return 0


def candidates(words: Sequence[str]) -> Iterable[Offer]:
    """The words that may replace the last word, each with a description."""
    line = _Line()
    *before, current = words
    for word in before:
        line.read(word)
    if line.goes_on(current):
        line.read(current)
        current = ""
    elif line.pending is None and line.with_value(current):
        line.read(current.partition("=")[0])
        current = current.partition("=")[2]
    if line.pending:
        return _values(line.pending, line, current)
    if line.own_from:
        return [(f":command {line.own_from}", "")]
    if line.command is None:
        if current.startswith("-"):
            return [HELP] if line.group else [*_names(HOISTED), HELP, VERSION]
        if line.group:
            return [(command.path.split()[1], command.help) for command in catalog.members(line.group)]
        return [(word, catalog.line_of(word)) for words in catalog.SECTIONS.values() for word in words]
    if current.startswith("-"):
        return [*_names(line.params), HELP]
    arguments = [param for param in line.command.params if param.is_argument]
    if len(line.loose) < len(arguments):
        return _values(arguments[len(line.loose)], line, current)
    return _values(arguments[-1], line, current) if arguments and arguments[-1].many else []


class _Line:
    """The words before the word to complete."""

    def __init__(self) -> None:
        self.read_words = 0
        self.group = ""
        self.command: Command | None = None
        self.params: Sequence[Param] = HOISTED
        self.pending: Param | None = None
        """The option whose value comes next."""
        self.last: Param | None = None
        """The option whose value was the previous word."""
        self.split_value = ""
        """That value, or its part in front of a colon, where bash splits words."""
        self.loose: list[str] = []
        self.own_from = 0
        """How many words stand in front of the user's own command, once it has begun."""
        self.home: str | None = None

    def read(self, word: str) -> None:
        """Take the next word."""
        self.read_words += 1
        if word == "=" and self.pending:
            return  # bash splits words at =
        if self.goes_on(word):
            self.pending = self.last
            return
        self.last, self.split_value = self.pending, word
        if self.pending:
            if self.pending.name == "home":
                self.home = word
            self.pending = None
        elif self.own_from:
            pass
        elif word == "--":
            self.own_from = self.read_words
        elif word.startswith("-"):
            if self.with_value(word):
                self.read_words -= 1
                self.read(word.partition("=")[0])
                self.read(word.partition("=")[2])
            else:
                last = declare.spelled_out(self.command, [word])[-1] if self.command else word  # -ac
                self.pending = self._option(last)
        elif self.command:
            self.loose.append(word)
            if self.command.own_words:
                self.own_from = self.read_words - 1
        elif word in catalog.GROUPS and not self.group:
            self.group = word
        else:
            self.command, _ = catalog.find([self.group, word] if self.group else [word])
            self.params = self.command.params

    def goes_on(self, word: str) -> bool:
        """Whether the value of the last option goes on: bash splits ``ok:ID`` at its colon."""
        return word == ":" and self.last is not None and self.last.info.complete in (AFTER, STRATEGIES)

    def with_value(self, word: str) -> bool:
        """Whether a word is an option with its value, such as ``--limit=3``."""
        name, equals, _ = word.partition("=")
        return bool(not self.own_from and word.startswith("--") and equals and self._option(name))

    def _option(self, name: str) -> Param | None:
        return next((p for p in self.params if name in p.info.names and not (p.is_flag or p.info.bare)), None)


def _names(params: Iterable[Param]) -> list[Offer]:
    return [
        (name, param.info.help)
        for param in params
        for name in (*param.info.names, param.info.off)
        if name and not param.is_argument
    ]


def _values(param: Param, line: _Line, current: str) -> Iterable[Offer]:
    if param.info.choices:
        return [(choice, "") for choice in param.info.choices]
    kind = param.info.complete
    if kind == "command":
        return [(f":command {line.read_words}", "")]
    if kind in ("file", "dir"):
        return [(f":{kind}", "")]
    if kind == AFTER:
        return _awaited(line, current)
    if kind == STRATEGIES:
        return _strategies(line, current)
    if kind in ("states", "causes", "private"):
        known = {"causes": spec.job_request.CAUSES, "private": spec.options.PRIVATE}
        return _more_of(_states(line) if kind == "states" else known[kind], current)
    kind = line.loose[0] if kind == "objects" and line.loose else kind
    return _live(LIVE[kind], line.home) if kind in LIVE else []


def _awaited(line: _Line, current: str) -> list[Offer]:
    """The values of ``--after``: a job, or a condition with a job."""
    jobs = list(_live(_jobs, line.home))
    if line.pending is line.last:  # the condition is a word of its own
        return jobs if line.split_value in spec.options.CONDITIONS else []
    together = [(f"{condition}:{job}", about) for condition in spec.options.CONDITIONS for job, about in jobs]
    return together if ":" in current else jobs + together


def _strategies(line: _Line, current: str) -> list[Offer]:
    """The values of ``--strategy``: a word, or a node and what holds if it cannot take the task."""
    others = [(tk.SOFT, "Elsewhere if it cannot hold it."), (tk.SPILL, "Elsewhere if it is full, too.")]
    if line.pending is line.last and line.split_value != tk.NODE:  # behind the second colon
        return others
    nodes = [(vnode_id, about) for ids in (_nodes, _vnodes) for vnode_id, about in _live(ids, line.home)]
    if line.pending is line.last:
        return nodes
    on_node = [(f"{tk.NODE}:{node_id}", about) for node_id, about in nodes]
    words = [(word, "") for word in tk.STRATEGIES if word != tk.NODE]
    if current.count(":") > 1:
        return [(f"{node}:{word}", about) for node, _ in on_node for word, about in others]
    return on_node if ":" in current else words + on_node


def _states(line: _Line) -> Sequence[str]:
    assert line.command is not None
    group = catalog.SHORT.get(line.command.path, line.command.path).split()[0]
    kind = {"job": "jobs", "task": "tasks", "node": "nodes", "vc": "clusters"}.get(
        group, "".join(line.loose[:1])
    )
    states: Sequence[str] = CHOSEN_BY.get(kind, {}).get("states", ())
    return states


def _more_of(words: Sequence[str], current: str) -> list[Offer]:
    """The values of an option that takes words separated by commas: the given words and one more."""
    before, comma, _ = current.rpartition(",")
    return [(f"{before}{comma}{word}", "") for word in words if word.upper() not in before.upper().split(",")]


def _live(ids: Callable[["Backend"], list[Offer]], home: str | None) -> list[Offer]:
    """The present ids of the state directory or the server."""
    from contextlib import closing

    from vctl.config import load
    from vctl.store.database import database_path

    config = load(flags={"home": home})
    if config.get("address"):
        return ids(operations.declare.Remote(lambda: closing(operations.connection.connect(config))))
    if not database_path(config.home()).exists():
        return []
    from vctl.store.store import Store

    return ids(operations.declare.Local(config, lambda: Store.open(config.home(), create=False)))


def _jobs(backend: "Backend") -> list[Offer]:
    jobs, _ = operations.jobs.list_jobs(backend, limit=MAX_OFFERED, forecast=False)
    newest = [("last", "The job submitted last.")] if jobs else []
    return [(job["submission_id"], f"{job['status']} {job['name'] or ''}".rstrip()) for job in jobs] + newest


def _tasks(backend: "Backend") -> list[Offer]:
    tasks, _ = operations.tasks.list_tasks(backend)
    return [(task["task_id"], task["state"]) for task in tasks][-MAX_OFFERED:]


def _clusters(backend: "Backend") -> list[Offer]:
    clusters = operations.clusters.list_clusters(backend)[:MAX_OFFERED]
    return [("primary" if vc["kind"] == "primary" else vc["cluster_id"], vc["kind"]) for vc in clusters]


def _nodes(backend: "Backend") -> list[Offer]:
    return [(node["node_id"], node["state"]) for node in operations.nodes.list_nodes(backend)][:MAX_OFFERED]


def _vnodes(backend: "Backend") -> list[Offer]:
    return [(vnode["vnode_id"], vnode["kind"]) for vnode in operations.views.vnodes(backend)][:MAX_OFFERED]


LIVE: dict[str, Callable[["Backend"], list[Offer]]] = {
    "jobs": _jobs,
    "tasks": _tasks,
    "clusters": _clusters,
    "nodes": _nodes,
    "vnodes": _vnodes,
}

SCRIPTS = {
    "bash": r"""# bash completion for vctl, printed by `vctl completion bash`; vctl itself knows the words.
_vctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} word
    if [[ $cur == [=:] ]]; then cur=""; fi
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        case $word in
            :dir) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
            :file | :command*) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;&
            ":command $((COMP_CWORD - 1))") if [[ -n $cur ]]; then COMPREPLY+=($(compgen -c -- "$cur")); fi ;;
            :*) ;;
            "$cur"*) COMPREPLY+=("$word") ;;
        esac
        if [[ $word == :* ]]; then compopt -o filenames 2>/dev/null; fi
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _vctl vctl
""",
    "zsh": r"""#compdef vctl
# zsh completion for vctl, printed by `vctl completion zsh`; vctl itself knows the words.
_vctl() {
    local line
    local -a found
    for line in ${(f)"$(vctl __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
        case $line in
            :command*) shift ${line#* } words; shift words; (( CURRENT -= ${line#* } + 1 )); _normal; return ;;
            :file) compset -P 1 '--*='; _files; return ;;
            :dir) compset -P 1 '--*='; _files -/; return ;;
            *) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    compset -P 1 '--*='
    _describe value found
}
if [[ $funcstack[1] == _vctl ]]; then _vctl "$@"; else compdef _vctl vctl; fi
""",
    "fish": r"""# fish completion for vctl, printed by `vctl completion fish`; vctl itself knows the words.
function __vctl_complete
    set -l words (commandline -opc)[2..-1]
    set -l cur (commandline -ct)
    set -l name (string match -r -- '^--[^=]*=' "$cur")
    set -l path (string replace -- "$name" '' "$cur")
    for line in (vctl __complete $words "$cur" 2>/dev/null)
        switch $line
            case ':dir'
                printf "$name%s\n" (__fish_complete_directories "$path")
            case ':file' ':command*'
                printf "$name%s\n" (__fish_complete_path "$path")
                test "$line" = ":command "(count $words); and __fish_complete_command
            case '*'
                printf "$name%s\n" "$line"
        end
    end
end
complete -c vctl -f -a '(__vctl_complete)'
""",
}
"""The script of each shell; ``completions/`` has copies, which a test compares."""
