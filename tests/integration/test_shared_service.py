"""``vctl daemon --shared``: real users, through the socket, beside processes that are killed."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, eventually, is_gone
from tests.integration.service import (
    ACCOUNT,
    ANA,
    BEN,
    Service,
    running_service,
    users_of_the_host,
    variables,
)
from tests.specification import spec
from tests.test_readme import BLOCK

pytestmark = [
    spec("19.service"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes users of the machine, so it has to be root"),
]


@pytest.fixture(scope="module")
def users() -> Iterator[None]:
    with users_of_the_host():
        yield


@pytest.fixture
def service(users: None) -> Iterator[Service]:
    with running_service() as service:
        yield service


def test_two_users_have_one_queue(service: Service) -> None:
    """Each sees the jobs of the other, under the name that the kernel says, whatever the environment says."""
    first = service.ok(ANA, "run", "-d", "--", "sleep", "1000", USER="root", LOGNAME="root").strip()
    second = service.ok(BEN, "run", "-d", "--", "true").strip()
    items = {job["submission_id"]: job for job in service.read(BEN, "ps", "-a")["items"]}
    assert {name: job["user"] for name, job in items.items()} == {first: ANA, second: BEN}
    eventually(
        lambda: service.read(BEN, "job", "status", second)["status"] == "SUCCEEDED", "the end of the job"
    )


def test_the_places_belong_to_those_who_need_them(service: Service) -> None:
    """Nobody but the account reaches the state, nobody but root can rename what is in HOME."""
    service.ok(ANA, "run", "-d", "--", "true")
    modes = {
        name: (os.stat(path).st_uid == 0, stat.S_IMODE(os.stat(path).st_mode))
        for name, path in {
            "home": service.home, "state": service.state, "logs": service.home / "logs",
            "jobs": service.home / "jobs", "socket": service.socket, "run": service.socket.parent,
        }.items()
    }  # fmt: skip
    assert modes == {
        "home": (True, 0o755), "state": (False, 0o700), "logs": (True, 0o750), "jobs": (False, 0o711),
        "socket": (True, 0o666), "run": (True, 0o755),
    }  # fmt: skip
    for path in ("cluster.db", "records", "changes", "token", "../logs", "../keeper.lock"):
        tried = subprocess.run(
            ["ls", f"{service.state}/{path}/"], capture_output=True, check=False, **service.of(ANA)
        )
        assert b"Permission denied" in tried.stderr or b"Not a directory" in tried.stderr, tried
    seen = service.run(ANA, "ps", "--home", str(service.state))
    assert seen.code == 8, seen


@spec("19.start")
def test_jobs_of_users_have_objects_and_lists_of_gang_members(service: Service) -> None:
    """They lay in the state of the service, which no job of a user can enter."""
    vctl, folder = f"{service.python} -P -m vctl", "$VCTL_OBJECT_DIR"
    code = (
        f"{vctl} task run -n 0.1 --output a -- sh -c 'id -un > {folder}/a' &&"
        f" {vctl} task run -n 0.1 --input a -- cat {folder}/a && stat -c %U:%a {folder}"
    )
    assert service.ok(ANA, "run", "-n", "1", "--", "sh", "-c", code).split() == [ANA, f"{ANA}:2770"]
    assert service.ok(BEN, "run", "--per-node", "--", "sh", "-c", "cat $VCTL_HOSTFILE").split() == [
        "127.0.0.1",
        "slots=1",
    ]
    folders = service.home / "jobs" / "objects"
    tried = subprocess.run(["ls", str(folders)], capture_output=True, check=False, **service.of(BEN))
    assert b"Permission denied" in tried.stderr  # what it is called is to be known


def test_scheduler_and_server_have_no_right_of_root(service: Service) -> None:
    entry = pwd.getpwnam(ACCOUNT)
    for name in ("scheduler", "server"):
        pid = eventually(lambda name=name: service.pid_of(name), name)
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
        assert status["Uid"].split() == [str(entry.pw_uid)] * 4
        assert status["Gid"].split() == [str(entry.pw_gid)] * 4
        assert status["Groups"].split() == [str(entry.pw_gid)]
        assert status["CapEff"] == status["CapPrm"] == "0" * 16
        with open(f"/proc/{pid}/environ") as file:
            names = {pair.partition("=")[0] for pair in file.read().split("\0")}
        assert not names & {"USER", "LOGNAME", "SUDO_USER", "NOTIFY_SOCKET"}


@pytest.mark.parametrize("victim", ["scheduler", "server", "launcher"])
def test_what_is_killed_is_started_again(service: Service, victim: str) -> None:
    """Running jobs go on, commands wait for the server, and what was queued runs once."""
    running = service.ok(ANA, "run", "-d", "--", "sleep", "1000").strip()
    eventually(
        lambda: service.read(ANA, "job", "status", running)["status"] == "RUNNING", "the start of the job"
    )
    killed = eventually(lambda: service.pid_of(victim), victim)
    os.kill(killed, signal.SIGKILL)
    names = [service.ok(BEN, "run", "-d", "--", "true").strip() for _ in range(3)]
    for name in names:
        eventually(
            lambda name=name: service.read(BEN, "job", "status", name)["status"] == "SUCCEEDED",
            f"{name} to end",
        )
    assert {service.read(BEN, "job", "status", name)["attempt"] for name in names} == {1}
    after = service.read(ANA, "job", "status", running)
    assert (after["status"], after["attempt"]) == ("RUNNING", 1)
    assert service.pid_of(victim) not in (None, killed)


def test_no_job_is_lost_or_doubled_while_all_are_killed_in_turn(service: Service) -> None:
    """Two users submit, one after the other, while scheduler, server and launcher are killed again and again."""
    marks = Path(pwd.getpwnam(ANA).pw_dir, "marks")
    marks.mkdir()
    marks.chmod(0o777)
    victims = ["scheduler", "server", "launcher"]
    names = []
    for number in range(24):
        if number % 4 == 0 and (pid := service.pid_of(victims[number // 4 % 3])) is not None:
            os.kill(pid, signal.SIGKILL)
        user, name = (ANA, BEN)[number % 2], f"k{number}"
        words = ["run", "-d", "--submission-id", name, "--", "sh", "-c", f"echo x >> {marks}/{name}"]
        assert service.ok(user, *words).strip() == name
        names.append(name)
    for number, name in enumerate(names):
        assert service.run((ANA, BEN)[number % 2], "wait", name).code == 0
    assert {name: (marks / name).read_text() for name in names} == dict.fromkeys(names, "x\n")
    items = service.read(ANA, "ps", "-a")["items"]
    assert {(job["status"], job["attempt"]) for job in items} == {("SUCCEEDED", 1)}
    assert len(items) == len(names)


def test_another_keeper_takes_over(service: Service) -> None:
    """A killed keeper takes scheduler and server with it; jobs go on, and the next one finds them."""
    running = service.ok(ANA, "run", "-d", "--", "sleep", "1000").strip()
    eventually(
        lambda: service.read(ANA, "job", "status", running)["status"] == "RUNNING", "the start of the job"
    )
    pids = [eventually(lambda name=name: service.pid_of(name), name) for name in ("scheduler", "server")]
    assert service.keeper is not None
    service.keeper.kill()
    service.keeper.wait()
    for pid in pids:
        eventually(lambda pid=pid: is_gone(pid), "the end with the keeper")
    service.log.write_text("")
    service.start()
    after = service.read(ANA, "job", "status", running)
    assert (after["status"], after["attempt"]) == ("RUNNING", 1)
    assert service.run(ANA, "wait", service.ok(ANA, "run", "-d", "--", "true").strip()).code == 0


def test_a_second_service_is_refused(service: Service) -> None:
    words = [service.python, "-P", "-m", "vctl", "daemon", "--shared", "--account", ACCOUNT]
    more = ["--home", str(service.home), "--socket", f"{service.socket}2"]
    done = subprocess.run(
        [*words, *more], env=service.of("root")["env"], cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 5
    assert b"running already" in done.stderr


def test_a_flood_of_one_user_leaves_room_for_the_others(service: Service) -> None:
    """Connections that say nothing, and as many as the kernel gives him."""
    flood = (
        "import resource, socket, sys, time\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "lines = []\n"
        "for _ in range(1500):\n"
        "    line = socket.socket(socket.AF_UNIX)\n"
        "    line.settimeout(0.5)\n"
        "    try: line.connect(sys.argv[1])\n"
        "    except OSError: continue\n"
        "    lines.append(line)\n"
        "print(len(lines), flush=True)\n"
        "time.sleep(100)\n"
    )
    words = [service.python, "-c", flood, str(service.socket)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, **service.of(ANA)) as flooding:
        try:
            assert flooding.stdout is not None
            assert int(flooding.stdout.readline()) > 500
            assert service.run(BEN, "wait", service.ok(BEN, "run", "-d", "--", "true").strip()).code == 0
            assert service.read(BEN, "ps", "-a")["total"] == 1
        finally:
            flooding.kill()


@spec("13.help")
def test_the_commands_of_the_page_work(service: Service) -> None:
    """Those for users, as a user; those of systemd are in test_service_units.py."""
    page = (ROOT / "docs" / "shared-service.md").read_text(encoding="utf-8")
    tools = service.folder / "bin"
    tools.mkdir()
    (tools / "vctl").write_text(f'#!/bin/sh\nexec {service.python} -P -m vctl "$@"\n')
    (tools / "vctl").chmod(0o755)
    more = service.of(ANA, {"PATH": f"{tools}:{os.environ['PATH']}"})
    script = "".join(BLOCK.findall(page))
    home = pwd.getpwnam(ANA).pw_dir
    done = subprocess.run(
        ["bash", "-euc", script], cwd=home, capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done
    assert f"you are {ANA}" in done.stdout
    assert f"I am {ANA}, in {home}" in done.stdout
    assert f"socket {service.socket}" in done.stdout or "environment VCTL_SOCKET" in done.stdout


def test_commands_beside_the_state_say_what_to_do(service: Service) -> None:
    for words, code, said in (
        (["daemon"], 5, "set VCTL_HOME"),
        (["daemon", "--stop"], 8, "as root: systemctl stop vctl"),
        (["backup", "x"], 8, "sudo -u vctl vctl"),
        (["restore", "x"], 8, "sudo -u vctl vctl"),
        (["doctor"], 8, "you are"),
    ):
        ran = service.run(ANA, *words)
        assert (ran.code, said in ran.err) == (code, True), (words, ran)
    assert service.read(ANA, "daemon", "--status")["kind"] == "service"


def test_an_account_that_cannot_run_the_program_leaves_no_socket(service: Service) -> None:
    """Else all commands of the machine would use a service that nobody answers for."""
    keeper = ROOT / "vctl" / "privileged" / "keeper.py"
    other = service.folder / "other"
    words = [
        service.python,
        "-I",
        "-S",
        str(keeper),
        str(other / "home"),
        str(other / "run" / "vctl.sock"),
        ACCOUNT,
    ]
    done = subprocess.run(words, env={"PATH": os.environ["PATH"]}, cwd="/", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"cannot run" in done.stderr
    assert not (other / "run" / "vctl.sock").exists()


PLACES = {
    "home of another": (
        "home",
        lambda path: os.chown(path, 1, 1),
        b"belongs to daemon:daemon, not to root:root",
    ),
    "home that others may write to": ("home", lambda path: path.chmod(0o777), b"has mode 0777, not 0755"),
    "state of root": ("home/state", lambda path: os.chown(path, 0, 0), b"belongs to root:root"),
    "logs that others may list": ("home/logs", lambda path: path.chmod(0o755), b"has mode 0755, not 0750"),
    "a directory above that others may write to": (
        "",
        lambda path: path.chmod(0o777),
        b"others than root may rename",
    ),
}


@pytest.mark.parametrize(("name", "spoil", "said"), PLACES.values(), ids=list(PLACES))
def test_a_place_that_somebody_else_could_have_made_is_refused(
    users: None, name: str, spoil: Callable[[Path], None], said: bytes
) -> None:
    """With the command that corrects it; what is there is not changed."""
    with running_service() as service:
        assert service.keeper is not None
        service.keeper.terminate()
        service.keeper.wait()
        path = service.folder / name
        spoil(path)  # the directory is removed at the end
        before = os.stat(path)
        done = subprocess.run(service.words(), env=variables(), cwd="/", capture_output=True, check=False)
        assert (done.returncode, said in done.stderr) == (8, True), done
        assert b"Fix: " in done.stderr
        assert os.stat(path)[:6] == before[:6]


def test_garbage_on_the_socket(service: Service) -> None:
    """Bytes that are no request end their own connection only."""
    for data in (
        b"\0" * 4096,
        b"GET /api/v1/jobs HTTP/1.1\r\n" + b"a: b\r\n" * 20000,
        b"\x16\x03\x01" + os.urandom(512),
    ):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(str(service.socket))
            try:
                line.sendall(data)
                line.recv(1000)
            except (BrokenPipeError, ConnectionResetError):
                continue
    assert service.run(BEN, "ps").code == 0
