"""Real users of a shared service: through the command line, HTTP and files nobody does what is not his to do."""

from __future__ import annotations

import inspect
import json
import os
import pwd
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.conftest import PATIENCE_S, eventually
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

pytestmark = [
    spec("19.rights", "14.safety"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes users of the machine, so it has to be root"),
]
CANARY = "canary-7f3a"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with users_of_the_host(), running_service() as service:
        yield service


@pytest.fixture(scope="module")
def hers(service: Service) -> str:
    """A running job of ana's in a cluster to which she submits."""
    service.ok("root", "vc", "create", "lab", "--divisible", "--min", "CPU=1", "--submitters", ANA)
    words = [
        "--metadata",
        f"note={CANARY}",
        "--env",
        f"KEY={CANARY}",
        "--",
        "sh",
        "-c",
        f"echo {CANARY}; sleep 1000",
    ]
    name = service.ok(ANA, "run", "-d", "-c", "lab", "--priority", "3", *words).strip()
    eventually(lambda: CANARY in service.ok(ANA, "logs", name), "its output")
    return name


def test_others_see_that_it_is_there_and_not_what_it_does(service: Service, hers: str) -> None:
    said = ""
    for words in (
        ("ps",), ("job", "status", hers), ("why", hers), ("status",), ("events",), ("demand",), ("vc", "tree"),
        ("vc", "get", "lab##" + hers), ("list", "jobs"), ("get", "jobs", hers), ("timeline",), ("gpus",),
    ):  # fmt: skip
        for more in ((), ("-o", "json")):
            done = service.run(BEN, *words, *more)
            assert done.code == 0, (words, done)
            said += done.out + done.err
    assert hers in said
    assert ANA in said
    assert CANARY not in said
    assert CANARY in service.ok(ANA, "job", "status", hers)
    refused = service.run(BEN, "logs", hers)
    assert (refused.code, CANARY in refused.out) == (8, False)
    log = f"{service.home}/logs/{hers}.log"
    tried = subprocess.run(["cat", log], capture_output=True, check=False, **service.of(BEN))
    assert CANARY.encode() not in tried.stdout


def test_others_change_nothing_of_it(service: Service, hers: str) -> None:
    for words in (
        ("stop", hers), ("job", "edit", hers, "--time-limit", "1s"), ("job", "hold", hers), ("job", "rerun", hers),
        ("job", "delete", hers), ("task", "run", "--job", hers, "--", "true"), ("vc", "update", "lab", "--admins", BEN),
        ("vc", "delete", "lab", "--force"), ("vc", "stop", "lab"), ("vc", "create", "mine", "--divisible"),
        ("run", "-c", "lab", "--", "true"), ("node", "drain", "more"), ("prune", "--older-than", "0"), ("doctor",),
        ("limit", "set", "--user", ANA, "--running-jobs", "1"),
    ):  # fmt: skip
        refused = service.run(BEN, *words, USER=ANA, LOGNAME=ANA, SUDO_USER=ANA)
        assert refused.code == 8, (words, refused)
    posing = {
        "VCTL_JOB_ID": str(service.read(BEN, "job", "status", hers)["job_id"]),
        "VCTL_SUBMISSION_ID": hers,
    }
    assert "not one of" in service.run(BEN, "stop", hers, **posing).err
    assert service.read(ANA, "job", "status", hers)["status"] == "RUNNING"


def test_admins_of_a_cluster_are_named_and_taken_back(service: Service, hers: str) -> None:
    bad = service.run("root", "vc", "update", "lab", "--admins", f"@{BEN}x")
    assert (bad.code, "there is no group" in bad.err) == (2, True)
    service.ok("root", "vc", "update", "lab", "--admins", BEN)
    assert CANARY in service.ok(BEN, "logs", hers)
    service.ok(BEN, "job", "edit", hers, "--time-limit", "1h")
    assert service.run(BEN, "task", "run", "--job", hers, "--", "true").code == 8  # it would run as ana
    service.ok("root", "vc", "update", "lab", "--admins", "", "--private-queue")
    assert service.run(BEN, "logs", hers).code == 8
    shown = service.ok(BEN, "ps") + service.ok(BEN, "status") + service.ok(BEN, "events")
    assert hers not in shown
    assert "hidden-1" in shown
    service.ok("root", "vc", "update", "lab", "--public-queue")
    assert hers in service.ok(BEN, "ps")


@contextmanager
def http(service: Service) -> Iterator[str]:
    """The address of ``vctl serve``, run by the account of the service."""
    entry = pwd.getpwnam(ACCOUNT)
    words = [service.python, "-P", "-m", "vctl", "serve", "--port", "0", "--home", str(service.state)]
    with subprocess.Popen(
        words, env=variables(), cwd="/", user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as serving:  # fmt: skip
        try:
            assert serving.stdout is not None
            line = serving.stdout.readline()
            assert "answers at http" in line, line
            yield line.split()[-1]
        finally:
            serving.terminate()
            serving.wait(PATIENCE_S)


def test_a_token_is_its_user_over_http(service: Service, hers: str) -> None:
    with http(service) as address:
        token = service.ok(BEN, "login", "--for", "1h", "--name", "laptop", "-o", "name").strip()
        given = {"VCTL_ADDRESS": address, "VCTL_TOKEN": token}
        for user in (BEN, ANA, "root"):  # whoever carries it
            assert CANARY not in service.ok(user, "ps", "-o", "json", **given)
            refused = service.run(user, "stop", hers, **given)
            assert (refused.code, ANA in refused.err) == (8, True)
            assert service.run(user, "login", **given).code == 8
        made = service.ok("root", "run", "-d", "--", "id", "-un", **given).strip()
        assert service.read(ANA, "job", "status", made)["user"] == BEN
        without = service.run(BEN, "ps", VCTL_ADDRESS=address)
        assert (without.code, "vctl login" in without.err) == (8, True)
        with urllib.request.urlopen(f"{address}/healthz") as answer:
            assert json.load(answer)["ok"]
        assert [one["name"] for one in service.read(BEN, "token", "list")["items"]] == ["laptop"]
        assert service.read(ANA, "token", "list")["items"] == []
        number = str(service.read("root", "token", "list", "--all")["items"][0]["token_id"])
        assert service.run(ANA, "token", "revoke", number).code == 4
        service.ok(BEN, "token", "revoke", number)
        ended = service.run(BEN, "ps", **given)
        assert (ended.code, "revoked" in ended.err) == (8, True)
        short = service.ok(BEN, "login", "--for", "1s", "-o", "name").strip()
        time.sleep(1.2)
        assert "the token ended at" in service.run(BEN, "ps", VCTL_ADDRESS=address, VCTL_TOKEN=short).err
        assert short.partition(".")[2].encode() not in (service.state / "cluster.db").read_bytes()


def test_an_edit_leaves_a_job_where_it_is(service: Service, hers: str) -> None:
    """The directory and the variables of who edits or runs it again are not those of the job."""
    line = ["--", "sh", "-c", "pwd; echo $MARK"]
    for change in (("job", "edit", "--priority", "2"), ("job", "rerun", "--name", "again")):
        name = service.ok(ANA, "run", "-d", "--hold", "--cwd", "/tmp", *line, MARK="first").strip()
        if change[1] == "rerun":
            service.ok(ANA, "job", "release", name)
            service.run(ANA, "wait", name)
        done = service.read(ANA, *change[:2], name, *change[2:], *(["-d"] if change[1] == "rerun" else []))
        name = done["submission_id"]
        if change[1] == "edit":
            service.ok(ANA, "job", "release", name)
        service.run(ANA, "wait", name)
        assert service.ok(ANA, "logs", name).split() == ["/tmp", "first"], change


def test_a_job_is_its_user(service: Service, hers: str) -> None:
    """What runs in a job asks as its user, narrowed to the job."""
    vctl = f"{service.python} -P -m vctl"
    env = ["--env", f"PYTHONPATH={variables()['PYTHONPATH']}"]
    line = f"{vctl} stop {hers}; echo $?; {vctl} login; echo $?; {vctl} run -d -- true; echo $?"
    name = service.ok(BEN, "run", "-d", *env, "--", "sh", "-c", line).strip()
    service.run(BEN, "wait", name)
    said = service.ok(BEN, "logs", name)
    assert [word for word in said.split() if word in ("0", "8")] == ["8", "8", "0"], said


def test_python_has_the_same_rights(service: Service, hers: str) -> None:
    lines = f"""
        import vctl
        from vctl.errors import NotPermitted
        client = vctl.connect()
        made = client.tokens.login("1h", name="script")
        assert [one["token_id"] for one in client.tokens.list()] == [made["token_id"]], client.tokens.list()
        again = vctl.connect("unix:{service.socket}", token=made["token"])
        assert client.jobs.get({hers!r}).info()["entrypoint"] == ""
        for refused in (lambda: client.jobs.stop({hers!r}), lambda: client.jobs.logs({hers!r}),
                        lambda: client.clusters.update("lab", admins=["{BEN}"])):
            try:
                refused()
            except NotPermitted as error:
                assert error.details["may"][-1] == "root", error.details
            else:
                raise AssertionError("not refused")
        assert [one["name"] for one in client.tokens.revoke([str(made["token_id"])])] == ["script"]
    """
    done = subprocess.run(
        [service.python, "-c", inspect.cleandoc(lines)], capture_output=True, text=True, check=False, cwd="/",
        **service.of(BEN),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_personal_mode_has_nobody_to_sign_in(service: Service) -> None:
    home = {"VCTL_HOME": f"{pwd.getpwnam(ANA).pw_dir}/own"}
    for words in (("login",), ("logout",), ("token", "list"), ("token", "revoke", "1")):
        refused = service.run(ANA, *words, **home)
        assert refused.code == 5, (words, refused)
        assert "several users share" in refused.err
