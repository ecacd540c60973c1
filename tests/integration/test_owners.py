"""Who may use a state directory: its owner, and nobody else, by every way in; and what others may write to is refused.

Root's ``vctl job wait --home`` of a user's directory ran the jobs of that user as root.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import vctl
from tests.integration.conftest import Ran
from tests.specification import spec
from vctl.__main__ import main
from vctl.cli import command_client
from vctl.config import load
from vctl.core.resources import CPU, SCALE
from vctl.errors import NotPermitted
from vctl.http.listen import read_token
from vctl.ops import nodes
from vctl.store.store import Store

pytestmark = spec("17.private")

ROOT, ANA, BOB = 0, 61_001, 61_002
USERS = {"root": ROOT, "ana": ANA, "bob": BOB}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

VERBS = {
    "ps": "ps", "status": "status", "job status": "job status j", "why": "why j", "logs": "logs j", "top": "top",
    "events": "events", "vc tree": "vc tree", "node list": "node list", "summary": "summary jobs",
    "resources": "cluster-resources",
    "submit": "run -d -- true", "dry run": "run --dry-run -- true", "wait": "job wait j", "stop": "stop j",
    "hold": "job hold j", "rerun": "job rerun j -d", "task": "task run -- true", "prune": "prune --older-than 1d",
    "node add": 'node add n2 --simulated --resources {"CPU":1}', "vc create": "vc create v",
    "doctor": "doctor", "repair": "doctor --repair", "replay": "replay", "replay dry": "replay --dry-run",
    "backup": "backup {copy}.new", "restore": "restore {copy}", "simulate": "simulate",
    "daemon": "daemon", "background": "daemon --background", "daemon status": "daemon --status",
    "daemon stop": "daemon --stop", "serve": "serve --port 0", "serve uds": "serve --uds {copy}.sock",
}  # fmt: skip
"""Every way in on the command line."""


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """A child that is another user may read nothing of this installation."""
    for module in pkgutil.walk_packages(vctl.__path__, "vctl."):
        if "on_ray" not in module.name and not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that all users reach; that of pytest belongs to the user who runs it."""
    place = Path(tempfile.mkdtemp(prefix="vctl-owners-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def home(folder: Path) -> Path:
    """A state directory with a node and a job."""
    with Store.open(folder / "state") as store:
        nodes.add(store, resources={CPU: 4 * SCALE}, node_id="n", template="t")
    submit = vctl_of(folder / "state", "run", "-d", "--hold", "--submission-id", "j", "--", "true")
    assert in_child(os.geteuid(), folder, submit).code == 0
    return folder / "state"


def give(home: Path, owner: int) -> None:
    for path in (home, *home.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)


def vctl_of(home: Path, *words: str) -> Callable[[], int]:
    def command() -> int:
        os.environ.update(VCTL_HOME=str(home), VCTL_LOCAL_NODE="0", VCTL_AUTOSTART="0", HOME="/nonexistent")
        sys.argv = ["vctl", *words]
        return main()

    return command


def in_child(user: int, folder: Path, do: Callable[[], object]) -> Ran:
    """Do something in a fork that is another user."""
    out, err = folder / "out", folder / "err"
    files = [
        os.open(os.devnull, os.O_RDONLY),
        *(os.open(one, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666) for one in (out, err)),
    ]
    if (pid := os.fork()) == 0:
        code = 99
        signal.alarm(60)  # what is not refused may go on for ever
        try:
            for fd, file in enumerate(files):
                os.dup2(file, fd)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, "w" if fd else "r") for fd in range(3))
            if user != os.geteuid():
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            os.chdir("/")
            code = int(do() or 0)  # type: ignore[call-overload]
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001  # nothing may leave a fork but by _exit
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    for file in files:
        os.close(file)
    _, status = os.waitpid(pid, 0)
    return Ran(os.waitstatus_to_exitcode(status), out.read_bytes(), err.read_bytes(), 0.0)


def picture(home: Path) -> dict[str, object]:
    """Owner, mode, size and time of all that is in a directory."""
    return {
        str(path.relative_to(home)): (info.st_uid, info.st_mode, info.st_size, info.st_mtime_ns)
        for path in (home, *sorted(home.rglob("*")))
        for info in [path.lstat()]
    }


@as_root
@pytest.mark.parametrize(("owner", "caller"), [(o, c) for o in USERS for c in USERS if o != c])
def test_nobody_but_the_owner(home: Path, folder: Path, owner: str, caller: str) -> None:
    copy = folder / "copy"
    copy.write_bytes((home / "cluster.db").read_bytes())
    give(home, USERS[owner])
    before = picture(home)
    name = "root" if owner == "root" else f"#{USERS[owner]}"
    for what, verb in VERBS.items():
        words = [word.replace("{copy}", str(copy)) for word in verb.split()]
        done = in_child(USERS[caller], folder, vctl_of(home, *words))
        assert done.code == 8, (what, done)
        assert f"the state directory {home} belongs to {name}, and only its owner may use it" in done.err
        assert (f"sudo -u {name} vctl" in done.err) == (caller == "root")
        assert picture(home) == before, what


@as_root
@pytest.mark.parametrize("who", USERS)
def test_the_owner(home: Path, folder: Path, who: str) -> None:
    give(home, USERS[who])
    for verb in (
        "ps",
        "status",
        "job status j",
        "doctor",
        "replay --dry-run",
        "daemon --status",
        "run -d -- true",
    ):
        done = in_child(USERS[who], folder, vctl_of(home, *verb.split()))
        assert done.code == (6 if verb == "daemon --status" else 0), (verb, done)
    assert {info[0] for info in picture(home).values()} == {USERS[who]}  # type: ignore[index]


@as_root
def test_other_ways_in(home: Path, folder: Path) -> None:
    """Python, and a command server of another user: it got environment and terminal of who asked it."""
    give(home, ANA)

    def python() -> None:
        for use in (vctl.connect(home).jobs.list, lambda: vctl.connect(home).submit("true")):
            with pytest.raises(NotPermitted, match="only its owner may use it"):
                use()

    for user in (ROOT, BOB):
        done = in_child(user, folder, python)
        assert done.code == 0, done
    got = []

    def serve(server: socket.socket) -> None:
        line, _ = server.accept()
        with line, suppress(OSError):
            line.send(b"1 " + command_client.stamp())
            got.append(line.recv(10_000))

    def ask() -> int:
        os.environ["VCTL_HOME"] = str(home)
        return 0 if command_client.hand_over(["ps"]) is None else 1

    home.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(home / vctl.SOCKET))
        os.chmod(home / vctl.SOCKET, 0o777)
        server.listen()
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        assert in_child(BOB, folder, ask).code == 0
        thread.join(5)
    assert got in ([], [b""])


MODES = {
    "directory 777": ("", 0o777),
    "directory 770": ("", 0o770),
    "tables 666": ("cluster.db", 0o666),
    "tables 620": ("cluster.db", 0o620),
}


@pytest.mark.parametrize(("name", "mode"), MODES.values(), ids=list(MODES))
def test_what_others_may_write_to_is_refused(home: Path, folder: Path, name: str, mode: int) -> None:
    (home / name).chmod(mode)
    for words in (
        ["ps"],
        ["run", "-d", "--", "true"],
        ["daemon"],
        ["serve", "--port", "0"],
        ["daemon", "--status"],
    ):
        done = in_child(os.geteuid(), folder, vctl_of(home, *words))
        assert done.code == 8, (words, done)
        assert "others may write to" in done.err
        assert f"mode {mode:o}" in done.err
        assert f"chmod {'600' if name else '700'} {home / name}" in done.err
    assert (home / name).stat().st_mode & 0o777 == mode
    (home / name).chmod(0o600 if name else 0o700)
    assert in_child(os.geteuid(), folder, vctl_of(home, "ps")).code == 0


def test_a_directory_that_others_can_read_is_closed_by_a_scheduler(home: Path, folder: Path) -> None:
    home.chmod(0o755)
    assert in_child(os.geteuid(), folder, vctl_of(home, "ps")).code == 0
    said = in_child(os.geteuid(), folder, vctl_of(home, "doctor"))
    assert said.code == 1
    assert "mode 755, should be 700" in said.out


def test_an_empty_directory_of_ones_own_becomes_private(folder: Path) -> None:
    """``mkdir`` with the umask of many systems makes it 0775."""
    home = folder / "made"
    home.mkdir()
    home.chmod(0o775)
    assert in_child(os.geteuid(), folder, vctl_of(home, "status")).code == 0
    assert home.stat().st_mode & 0o777 == 0o700


@as_root
@pytest.mark.parametrize("name", ["token", "records", "scheduler.lock", "cluster.db", "cluster.db-wal"])
def test_files_of_others_in_a_directory_of_ones_own(home: Path, folder: Path, name: str) -> None:
    """Left there while others could write in it; or made by root, who was not refused in former versions."""
    place = home / name
    if name == "records":
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    else:
        place.touch()
    os.chown(place, BOB, BOB)
    for words in (["daemon"], ["serve", "--port", "0"]):
        done = in_child(ROOT, folder, vctl_of(home, *words))
        assert done.code == 8, done
        assert f"{place} belongs to #{BOB}, its directory to root" in done.err
        assert f"sudo chown root {place}" in done.err


@as_root
def test_a_planted_token_is_not_used(folder: Path) -> None:
    token = folder / "token"
    token.write_text("x" * 40)
    token.chmod(0o600)
    os.chown(token, BOB, BOB)
    with pytest.raises(NotPermitted, match="made by somebody else"):
        read_token(load(env={"VCTL_HOME": str(folder / "state")}), str(token))


def test_links(home: Path, folder: Path) -> None:
    """A directory may be reached by a link; the tables may not: SQLite keeps the WAL beside what the link names."""
    link = folder / "link"
    link.symlink_to(home)
    assert in_child(os.geteuid(), folder, vctl_of(link, "ps")).code == 0
    (home / "cluster.db").rename(folder / "elsewhere.db")
    (home / "cluster.db").symlink_to(folder / "elsewhere.db")
    done = in_child(os.geteuid(), folder, vctl_of(home, "ps"))
    assert done.code == 8
    assert "is no ordinary file, such as a symbolic link" in done.err
