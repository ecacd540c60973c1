"""The scheduler itself and the care of the state: daemon, replay, doctor, backup, restore, prune."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vctl import cli, operations, ops
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, Data, done, single
from vctl.errors import BadSpec, Conflict, NotPermitted, Unreachable
from vctl.operations import upkeep
from vctl.spec.params import Arg, Given, Opt, Together

if TYPE_CHECKING:
    from vctl.cli.screen import Screen
    from vctl.cli.service_units import ServiceWords
    from vctl.spec.documents import Pruned

File = Annotated[str, Arg("FILE", help="The backup.", complete="file")]


@command(
    "daemon",
    "vctl daemon",
    "VCTL_HOME=/var/lib/vctl vctl daemon --no-local-node",
    "vctl daemon --ray auto",
    "vctl daemon --shared",
    "vctl daemon --install-service --dry-run",
    "vctl daemon --status",
    "vctl daemon --stop",
    common=(NO_LOCAL_NODE, *CHANGES),
    lasts=True,
)
def daemon(
    call: Call,
    background: Annotated[
        bool,
        Opt(
            "--background",
            help="Run in the background; the scheduler ends when it is idle (setting idle_exit).",
        ),
    ] = False,
    status: Annotated[
        bool, Opt("--status", help="Show the running scheduler; exit 6 when none runs.")
    ] = False,
    stop: Annotated[bool, Opt("--stop", help="Stop the running scheduler; jobs go on.")] = False,
    ray: Annotated[
        str | None,
        Opt(
            "--ray",
            metavar="ADDRESS",
            help="Schedule on the nodes of a Ray cluster: its address, or auto; needs Ray.",
        ),
    ] = None,
    shared: Annotated[
        bool, Opt("--shared", help="Serve all users of this machine, until it is stopped; as root.")
    ] = False,
    account: Annotated[
        str | None,
        Opt("--account", metavar="NAME", help="With --shared: the account of the service (vctl)."),
    ] = None,
    socket: Annotated[
        str | None,
        Opt(
            "--socket",
            metavar="PATH",
            complete="file",
            help="With --shared: the socket for users (/run/vctl/vctl.sock).",
        ),
    ] = None,
    install_service: Annotated[
        bool, Opt("--install-service", help="Let systemd run `vctl daemon --shared` from now on.")
    ] = False,
    uninstall_service: Annotated[
        bool, Opt("--uninstall-service", help="Remove that service from systemd; its state stays.")
    ] = False,
    dry_run: Annotated[
        bool, Opt("--dry-run", help="With --install-service: only show the units of systemd.")
    ] = False,
) -> Answer | int:
    """Run the scheduler until it is stopped.

    Jobs outlive the scheduler: the next one adopts the running jobs. A background scheduler, which commands start when
    they need one, ends when this one starts. A second foreground scheduler is refused.

    With --shared it is a service for all users, whose jobs run under their own accounts: commands of every user on this
    machine use it, unless they name a state directory. Its own is /var/lib/vctl, or that of --home.
    """
    modes = {
        "--background": background, "--status": status, "--stop": stop, "--shared": shared,
        "--install-service": install_service, "--uninstall-service": uninstall_service,
    }  # fmt: skip
    chosen = [option for option, is_given in modes.items() if is_given]
    if len(chosen) > 1:
        raise BadSpec(f"{chosen[0]} and {chosen[1]} exclude each other", fix="give one of them")
    of_service = shared or install_service or uninstall_service
    for option, given, has_meaning, where in (
        ("--account", account is not None, of_service, "--shared"),
        ("--socket", socket is not None, of_service, "--shared"),
        ("--dry-run", dry_run, install_service, "--install-service"),
    ):
        if given and not has_meaning:
            raise BadSpec(
                f"{option}: it means something only with {where}", fix=f"add {where}, or leave out {option}"
            )
    if of_service:
        from vctl.cli import sharing

        config = call.config.with_flags({"ray": ray, "socket": socket})
        words = sharing.words_of(config, account)
        if shared:
            sharing.serve_users(config, words)
        return _installation(words, remove=uninstall_service, dry_run=dry_run)
    if call.config.is_shared:
        return _of_service(call, status=status, stop=stop)
    if status:
        return _status(ops.background.status(call.home))
    if stop:
        ended = ops.background.stop(call.home)
        if ended is None:
            return _sentence({"stopped": False, "kind": None, "pid": None}, "no scheduler is running")
        stopped = {"stopped": True, "kind": ended.kind, "pid": ended.pid}
        return _sentence(stopped, f"{ended.kind} scheduler {ended.pid} stopped; running jobs go on")
    config = call.config.with_flags({"ray": ray})
    if not background:
        from vctl.daemon.loop import run_daemon

        return run_daemon(call.home, config)
    from vctl.runtime.detached import HANDED_OVER
    from vctl.store.locks import StartLock

    if (start := StartLock.inherited(call.home, HANDED_OVER)) is not None:
        from vctl.daemon.loop import run_in_background

        return run_in_background(call.home, config, start)
    _ = call.store  # creates the state if there is none
    starter = ops.background.Background(config)
    starter.autostart = True  # the setting is about commands that need a scheduler
    ops.background.wait_for_start(starter)
    return _status(ops.background.status(call.home))


def _installation(words: "ServiceWords", *, remove: bool, dry_run: bool) -> Answer:
    """Install or remove the units of a service, or show them."""
    from vctl.cli.service_units import Installation, units_of

    installation = Installation(words)
    units = (
        {} if remove else {str(installation.folder / name): text for name, text in units_of(words).items()}
    )
    if not dry_run:
        (installation.uninstall if remove else installation.install)()
    data: Data = {"dry_run": dry_run, "units": units, "done": installation.done}
    answer = done(data, "", "")
    answer.names = list(units)
    answer.sentences = (
        [line for path, text in units.items() for line in (f"# {path}", *text.splitlines(), "")]
        if dry_run
        else installation.done
    )
    return answer


def _of_service(call: Call, *, status: bool, stop: bool) -> Answer:
    """What the command does where the shared service of this machine has the scheduler of all."""
    address = call.config.get("address")
    if stop:
        raise NotPermitted(
            f"the scheduler is that of the service at {address}, which serves others, too",
            fix="as root: systemctl stop vctl, or end what runs `vctl daemon --shared`",
        )
    if not status:
        raise Conflict(
            f"commands of this machine use the service at {address}, so a scheduler of your own would have no work",
            fix="use the service; or set VCTL_HOME, for this command and for those that are to work without it",
        )
    remote = operations.declare.Remote(lambda: closing(operations.connection.connect(call.config)))
    form = operations.views.scheduler(remote)
    running = form["running"]
    data: Data = {
        "running": running,
        "kind": "service" if running else None,
        "pid": form["pid"] if running else None,
        "since": None,  # its heartbeat says that it lives, not since when
    }
    sentence = (
        f"scheduler of the service at {address}, pid {form['pid']}" if running else cli.words.no_scheduler()
    )
    answer = _sentence(data, sentence)
    answer.code = 0 if running else Unreachable.exit_code
    return answer


def _status(data: Data) -> Answer:
    sentence = cli.words.no_scheduler()
    if data["running"]:
        sentence = f"{data['kind']} scheduler, pid {data['pid']}, since {cli.words.moment(data['since'])}"
    answer = _sentence(data, sentence)
    answer.code = 0 if data["running"] else Unreachable.exit_code
    return answer


def _sentence(data: Data, sentence: str) -> Answer:
    return done(data, data["pid"] or "", sentence)


def _replay(data: Data) -> Answer:
    def draw(screen: "Screen") -> Iterator[str]:
        for step in data["steps"]:
            yield from screen.text((str(step["step"]), "bold"), f" {step['title']}")
            for action in step["actions"]:
                yield from screen.text(f"    {action}")
            if not step["actions"]:
                yield from screen.text(("    nothing to do", "dim"))

    return single(data, "replay", draw)


shows(upkeep.replay, _replay, "vctl replay --dry-run", "vctl replay -o json", common=CHANGES, lasts=True)


@command("doctor", "vctl doctor", "vctl doctor --prove -o json", common=CHANGES, lasts=True)
def doctor(
    call: Call,
    prove: Annotated[bool, Opt("--prove", help="Check every rule again from the raw tables.")] = False,
    repair: Annotated[bool, Opt("--repair", help="Make the repairs that are safe.")] = False,
) -> Answer:
    """Check the state and this machine; exit 1 when something is wrong."""
    data = (upkeep.repair if repair else upkeep.doctor)(call.backend, prove=prove)

    def draw(screen: "Screen") -> Iterator[str]:
        for action in data["repaired"]:
            yield from screen.text(("repaired", "green"), f"  {action}")
        for finding in data["findings"]:
            yield from screen.text(("finding", "red"), f"   {finding}")
        for note in data["notes"]:
            yield from screen.text(("note", "dim"), f"      {note}")
        yield from screen.text(("ok", "green") if data["ok"] else ("something is wrong", "strong red"))

    return single(data, "ok" if data["ok"] else "findings", draw, code=0 if data["ok"] else 1)


def _refuse_remote(call: Call, problem: str) -> None:
    if call.is_remote:
        raise NotPermitted(problem, fix=call.config.nearer)


@command("backup", "vctl backup state.db", common=CHANGES, lasts=True)
def backup(call: Call, file: File) -> Answer:
    """Write a copy of the state to a file, while jobs run."""
    path = Path(os.path.abspath(file))
    _refuse_remote(call, f"{path} cannot be written: the state is at {call.config.get('address')}")
    data = ops.backup.backup(call.store, path)
    return done(data, path, f"backup written to {path}")


@command("restore", "vctl restore state.db", common=CHANGES, lasts=True)
def restore(call: Call, file: File) -> Answer:
    """Replace the state with a backup; no scheduler may be running."""
    path = Path(os.path.abspath(file))
    _refuse_remote(call, f"{path} is not restored: the state is at {call.config.get('address')}")
    data = ops.backup.restore(call.home, path)
    before = f"; the state before is kept in {data['kept']}" if data["kept"] else ""
    return done(data, path, f"{call.home} restored from {path}{before}")


def _pruned(data: "Pruned") -> Answer:
    from vctl.core.wording import counted

    count = len(data["jobs"])
    verb = "would be deleted" if data["dry_run"] else "deleted"
    files = f" and {counted(len(data['files']), 'file')} moved aside" if data["files"] else ""
    unused = f" and {counted(len(data['clusters']), 'cluster')} of users" if data["clusters"] else ""
    answer = done(data, "", f"{counted(count, 'job')}{files}{unused} {verb}")
    answer.names = data["jobs"]
    return answer


@command(
    "prune",
    "vctl prune --older-than 30d",
    "vctl prune --older-than 12h --dry-run",
    common=CHANGES,
    lasts=True,
)
def prune(call: Call, options: Annotated[Given, Together.of(upkeep.prune)]) -> Answer:
    """Delete jobs that ended long ago, files moved aside, and unused users' clusters."""
    return _pruned(upkeep.prune(call.backend, **options or {}))
