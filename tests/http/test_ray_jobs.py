"""Ray's job API on the wire: the requests that Ray's client sends, without Ray."""

from __future__ import annotations

import io
import json
import os
import socket
import sqlite3
import stat
import struct
import tarfile
import time
import zipfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.conftest import TOKEN, Running, Start
from tests.specification import spec
from vctl.ray.ops import packages
from vctl.store.store import Store

pytestmark = spec("14.ray-jobs")

FIELDS = {
    "type", "job_id", "submission_id", "driver_info", "status", "entrypoint", "message", "error_type", "start_time",
    "end_time", "metadata", "runtime_env", "driver_agent_http_address", "driver_node_id", "driver_exit_code",
}  # fmt: skip


@pytest.fixture
def server(start: Start) -> Running:
    server = start()
    server.nodes(1)
    return server


def submit(server: Running, entrypoint: str, **more: Any) -> str:
    answer = server.http.post("/api/jobs/", json={"entrypoint": entrypoint, **more})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["job_id"] == body["submission_id"]
    return str(body["submission_id"])


def problem(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    assert error["hint"]
    return str(error["message"])


def details(server: Running, job: str) -> dict[str, Any]:
    found = server.http.get(f"/api/jobs/{job}")
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    assert set(body) == FIELDS
    return body


def ended(server: Running, job: str) -> dict[str, Any]:
    give_up = time.monotonic() + 60
    while details(server, job)["status"] in ("PENDING", "RUNNING"):
        assert time.monotonic() < give_up, details(server, job)
        server.http.get(f"/api/v1/jobs/{job}/wait", params={"timeout_s": 20})
    return details(server, job)


def output(server: Running, job: str) -> str:
    ended(server, job)
    found = server.http.get(f"/api/jobs/{job}/logs")
    assert found.headers["content-type"] == "application/json"
    return str(found.json()["logs"])


def archive(files: dict[str, str]) -> bytes:
    """A package as Ray's client makes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return made.getvalue()


def upload(server: Running, name: str, content: bytes) -> str:
    assert server.http.get(f"/api/packages/gcs/{name}").status_code == 404
    assert server.http.put(f"/api/packages/gcs/{name}", content=content).status_code == 200
    assert server.http.head(f"/api/packages/gcs/{name}").status_code == 200
    return f"gcs://{name}"


# ---- submit, look ----


def test_a_job_from_submit_to_end(server: Running):
    job = submit(server, "echo out; echo err >&2; exit 0", metadata={"job_name": "mine", "k": "v"})
    assert job.startswith("raysubmit_")
    assert len(job) == len("raysubmit_") + 16
    found = ended(server, job)
    assert found["type"] == "SUBMISSION"
    assert found["status"] == "SUCCEEDED"
    assert found["entrypoint"] == "echo out; echo err >&2; exit 0"
    assert found["message"] == "Job finished successfully."
    assert found["metadata"] == {"job_name": "mine", "k": "v"}
    assert found["runtime_env"] == {}
    assert found["driver_exit_code"] == 0
    assert found["end_time"] >= found["start_time"] > 1.7e12
    assert output(server, job) == "out\nerr\n"
    assert server.http.get(f"/api/v1/jobs/{job}").json()["name"] == "mine"


def test_list_has_every_job(server: Running):
    first = submit(server, "true", runtime_env={"env_vars": {"A": "1"}})
    own = server.http.post("/api/v1/jobs", json={"entrypoint": ["sleep", "0"], "array": "0-2"}).json()
    listed = {entry["submission_id"]: entry for entry in server.http.get("/api/jobs/").json()}
    assert set(listed) == {first, own["array_id"]}
    assert set(listed[first]) == FIELDS
    assert listed[first]["entrypoint"] == "true"
    assert listed[first]["runtime_env"] == {"env_vars": {"A": "1"}}
    assert listed[own["array_id"]]["entrypoint"] == "sleep 0"


def test_a_failure_has_its_code_and_the_last_lines(server: Running):
    job = submit(server, "seq 30; exit 7")
    found = ended(server, job)
    assert found["status"] == "FAILED"
    assert found["driver_exit_code"] == 7
    assert found["error_type"] == "JOB_ENTRYPOINT_COMMAND_ERROR"
    assert "failed with exit code 7" in found["message"]
    assert found["message"].splitlines()[1:] == [str(number) for number in range(21, 31)]
    assert ended(server, submit(server, "kill -9 $$"))["driver_exit_code"] == 137


def test_what_cannot_start_now_is_queued_with_the_reason(server: Running):
    holder = submit(server, "sleep 1000", entrypoint_num_cpus=3)
    job = submit(server, "true", entrypoint_num_cpus=2, submission_id="waits")
    give_up = time.monotonic() + 30
    while (
        details(server, holder)["status"] != "RUNNING"
        or "Insufficient" not in details(server, job)["message"]
    ):
        assert time.monotonic() < give_up, details(server, job)
        time.sleep(0.05)
    found = details(server, job)
    assert found["status"] == "PENDING"
    assert found["message"].startswith("InsufficientResources: ")
    assert found["end_time"] is None
    assert found["driver_exit_code"] is None
    assert server.http.get(f"/api/jobs/{job}/logs").json() == {"logs": ""}
    assert server.http.post(f"/api/jobs/{holder}/stop").json() == {"stopped": True}
    assert ended(server, job)["status"] == "SUCCEEDED"


def test_spec_and_target_travel_in_the_metadata(server: Running):
    server.nodes(2, "u")
    made = {"virtualClusterId": "team", "divisible": True, "replicaSets": {"u": 2}}
    assert server.http.post("/virtual_clusters", json=made).status_code == 200
    cluster = {
        "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2, "scheduling_policy": "STRICT_SPREAD"}]
    }
    job = submit(
        server,
        'echo "$VCTL_CLUSTER_ID"',
        metadata={"virtual_cluster": json.dumps(cluster), "virtual_cluster_id": "team"},
    )
    assert output(server, job) == f"team##{job}\n"
    form = server.http.get(f"/api/v1/jobs/{job}").json()
    assert form["parent_cluster_id"] == "team"
    assert form["resources"] == {"CPU": 4.0}


REQUESTS: list[tuple[dict[str, Any], dict[str, float]]] = [
    ({}, {"CPU": 1.0}),
    ({"entrypoint_num_cpus": 0.5}, {"CPU": 0.5}),
    ({"entrypoint_num_cpus": 2, "entrypoint_num_gpus": 1}, {"CPU": 2.0, "GPU": 1.0}),
    ({"entrypoint_memory": 1 << 20}, {"memory": float(1 << 20)}),
    ({"entrypoint_resources": {"disk": 3}}, {"disk": 3.0}),
    ({"entrypoint_num_cpus": 2, "entrypoint_label_selector": {"zone": "a"}}, {"CPU": 2.0}),
    ({"entrypoint_label_selector": {"zone": "in(a,b)"}}, {"CPU": 1.0}),
]


def test_the_request_of_the_entrypoint(start: Start):
    server = start()
    node = {"CPU": 4, "GPU": 2, "memory": "1GiB", "disk": 5}
    assert (
        server.http.post("/api/v1/nodes", json={"resources": node, "labels": {"zone": "a"}}).status_code
        == 200
    )
    for request, resources in REQUESTS:
        job = submit(server, "true", **request)
        assert server.http.get(f"/api/v1/jobs/{job}").json()["resources"] == resources, request


@spec("13.errors", "14.api")
def test_the_hint_for_a_missing_command_is_for_the_way_of_asking(server: Running):
    for path, body, hint in (
        ("/api/jobs/", {"entrypoint": ""}, "write a command line, such as python train.py"),
        (
            "/api/v1/jobs",
            {"entrypoint": []},
            'give the program and its arguments, such as ["python", "train.py"]',
        ),
        (
            "/api/v1/jobs",
            {"entrypoint": [""]},
            'give the program and its arguments, such as ["python", "train.py"]',
        ),
    ):
        error = server.http.post(path, json=body).json()["error"]
        assert (error["message"], error["hint"]) == ("entrypoint: there is no command to run", hint)
    typed = server.vctl("job", "submit", "--no-wait", "--", "")
    assert typed.stderr == (
        "Error: CMD: there is no command to run\n"
        "Fix: give the program and its arguments, such as -- python train.py\n"
    )


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "entrypoint"),
    ({"entrypoint": 1}, 400, "entrypoint"),
    ({"entrypoint": " "}, 400, "there is no command to run"),
    ({"entrypoint": "true", "submission_id": 1}, 400, "submission_id"),
    ({"entrypoint": "true", "submission_id": "a b"}, 400, "is not a submission id"),
    ({"entrypoint": "true", "runtime_env": 1}, 400, "runtime_env"),
    ({"entrypoint": "true", "metadata": {"a": 1}}, 400, "metadata.a"),
    ({"entrypoint": "true", "metadata": []}, 400, "metadata"),
    ({"entrypoint": "true", "entrypoint_num_cpus": "1"}, 400, "entrypoint_num_cpus: it must be a number"),
    ({"entrypoint": "true", "entrypoint_memory": 1.5}, 400, "entrypoint_memory: it must be a whole number"),
    ({"entrypoint": "true", "entrypoint_resources": {"a": "1"}}, 400, "entrypoint_resources.a: it must be a number"),
    ({"entrypoint": "true", "unknown": 1}, 400, "unknown"),
    ({"entrypoint": "true", "entrypoint_num_cpus": 100}, 409, "100"),
    ({"entrypoint": "true", "metadata": {"virtual_cluster": "{"}}, 400, "metadata.virtual_cluster: a cluster spec is"),
    ({"entrypoint": "true", "metadata": {"virtual_cluster": '{"a": 1, "a": 2}'}}, 400, 'the key "a" appears twice'),
    ({"entrypoint": "true", "metadata": {"virtual_cluster": "[]"}}, 400, "not a cluster spec"),
    ({"entrypoint": "true", "metadata": {"virtual_cluster": '{"nodes": 1}'}}, 400, "nodes"),
    ({"entrypoint": "true", "metadata": {"virtual_cluster_id": "none"}}, 404, "none"),
    (
        {"entrypoint": "true", "metadata": {"virtual_cluster": "{}"}, "entrypoint_label_selector": {"a": "b"}},
        400,
        "entrypoint_label_selector",
    ),
    ({"entrypoint": "true", "runtime_env": {"env_vars": {"A": 1}}}, 400, "runtime_env.env_vars"),
    ({"entrypoint": "true", "runtime_env": {"env_vars": {"A=B": "1"}}}, 400, "A=B"),
    ({"entrypoint": "true", "runtime_env": {"working_dir": "s3://b/a.zip"}}, 400, "runtime_env.working_dir"),
    ({"entrypoint": "true", "runtime_env": {"working_dir": "."}}, 400, "runtime_env.working_dir"),
    ({"entrypoint": "true", "runtime_env": {"working_dir": "gcs://none.zip"}}, 404, "gcs://none.zip does not exist"),
    ({"entrypoint": "true", "runtime_env": {"working_dir": "gcs://../a.zip"}}, 400, "not the name of a package"),
    ({"entrypoint": "true", "runtime_env": {"py_modules": "m"}}, 400, "runtime_env.py_modules"),
    ({"entrypoint": "true", "runtime_env": {"py_modules": ["gcs://m-1-py3-none-any.whl"]}}, 404, "m-1-py3-none"),
    ({"entrypoint": "true", "runtime_env": {"py_modules": ["gcs://m.jar"]}}, 400, "not the name of a package"),
    ({"entrypoint": "true", "runtime_env": {"pip": ["x"]}}, 400, "runtime_env.pip: Ray installs it, and this job"),
    ({"entrypoint": "true", "runtime_env": {"uv": "x", "config": {}}}, 400, "runtime_env.uv: Ray installs it"),
    *[
        ({"entrypoint": "true", "runtime_env": {field: ["x"]}}, 400, f"runtime_env.{field}: not supported here")
        for field in ("conda", "container", "image_uri", "py_executable", "nsight", "something")
    ],
]  # fmt: skip


def test_what_is_refused_leaves_nothing(server: Running):
    for body, status, words in REFUSED:
        answer = server.http.post("/api/jobs/", json=body)
        assert answer.status_code == status, (body, answer.text)
        assert words in problem(answer), (body, answer.text)
    assert server.rows("SELECT count(*) FROM jobs") == [(0,)]
    assert not list((server.home / "job-files").glob("*"))


def test_the_same_submission_id_runs_once(server: Running, tmp_path: Path):
    line = f"echo x >> {tmp_path}/ran"
    assert submit(server, line, submission_id="once") == "once"
    again = server.http.post("/api/jobs/", json={"entrypoint": line, "submission_id": "once"})
    assert again.status_code == 409
    assert "Job with submission_id once already exists" in problem(again)
    assert submit(server, "true", job_id="former-name") == "former-name"
    ended(server, "once")
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_job_is_named_by_its_whole_id(server: Running):
    ended(server, submit(server, "true", submission_id="whole"))
    for method, path in (("GET", ""), ("GET", "/logs"), ("POST", "/stop"), ("DELETE", "")):
        for name in ("none", "who", "last", "1"):
            answer = server.http.request(method, f"/api/jobs/{name}{path}")
            assert answer.status_code == 404
            assert problem(answer) == f"Job {name} does not exist"
        assert server.http.request(method, f"/api/jobs/whole{path}").status_code == 200


# ---- end ----


def test_stop_and_delete(server: Running):
    job = submit(server, "trap '' TERM; echo up; sleep 1000")
    refused = server.http.delete(f"/api/jobs/{job}")
    assert refused.status_code == 409
    assert "it is in a non-terminal state" in problem(refused)
    assert server.http.post(f"/api/jobs/{job}/stop").json() == {"stopped": True}
    found = ended(server, job)
    assert found["status"] == "STOPPED"
    assert found["driver_exit_code"] is None
    assert found["message"].startswith("StoppedByUser")
    assert server.http.post(f"/api/jobs/{job}/stop").json() == {"stopped": False}
    assert server.http.delete(f"/api/jobs/{job}").json() == {"deleted": True}
    assert server.http.get(f"/api/jobs/{job}").status_code == 404


# ---- the runtime environment ----


def test_variables(server: Running):
    env = {"PLAIN": "a b", "PATH": "/first:${PATH}", "NONE": "x${NOT_THERE}y", "HALF": "$NOT_THERE"}
    job = submit(server, 'echo "$PLAIN|$PATH|$NONE|$HALF|$PYTHONUNBUFFERED"', runtime_env={"env_vars": env})
    plain, path, none, half, unbuffered = output(server, job).strip().split("|")
    assert (plain, none, half, unbuffered) == ("a b", "xy", "$NOT_THERE", "1")
    assert path == f"/first:{os.environ['PATH']}"
    assert details(server, job)["runtime_env"] == {"env_vars": env}
    assert "a b" not in server.http.get("/api/v1/jobs").text


def test_working_dir_and_modules_are_unpacked_for_each_job(server: Running, tmp_path: Path):
    place = upload(
        server, "_ray_pkg_1.zip", archive({"job.sh": "cat data/x; echo used >> data/x", "data/x": "one\n"})
    )
    module = upload(server, "_ray_pkg_2.zip", archive({"lib/__init__.py": "NAME = 'lib'", "empty/": ""}))
    env = {"working_dir": place, "py_modules": [module], "excludes": ["*.log"]}
    for _ in range(2):  # what one job writes there is not there for the next
        job = submit(server, "sh job.sh; python3 -c 'import lib; print(lib.NAME)'", runtime_env=env)
        assert output(server, job) == "one\nlib\n"
        assert details(server, job)["runtime_env"] == env
    stored = server.home / "packages" / "_ray_pkg_1.zip"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE((server.home / "job-files").stat().st_mode) == 0o700
    for made in (server.home / "job-files").rglob("*"):
        if "__pycache__" not in made.parts:  # made by the job
            assert made.stat().st_mode & 0o077 == 0, made
    at = submit(server, "pwd", runtime_env={"working_dir": str(tmp_path)})
    assert output(server, at) == f"{tmp_path}\n"


def tarred(*members: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as file:  # type: ignore[call-overload]
        for member in members:
            file.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return info


def link_in_zip() -> bytes:
    made = io.BytesIO()
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(info, "/etc/passwd")
    return made.getvalue()


HOSTILE = {
    "up.zip": archive({"../up": "x"}),
    "deep.zip": archive({"a/../../up": "x"}),
    "absolute.zip": archive({"/tmp/vctl-absolute": "x"}),
    "link.zip": link_in_zip(),
    "twice.zip": archive({"a": "x", "a/b": "y"}),
    "long.zip": archive({"x" * 300: "x"}),
    "up.tar.gz": tarred(member("../up")),
    "link.tgz": tarred(member("link", tarfile.SYMTYPE, "/etc"), member("link/vctl-up")),
    "hard.tar.gz": tarred(member("hard", tarfile.LNKTYPE, "/etc/passwd")),
    "device.tar.xz": tarred(member("null", tarfile.CHRTYPE), mode="w:xz"),
    "fifo.tar.gz": tarred(member("fifo", tarfile.FIFOTYPE)),
}


NO_ARCHIVES = {
    "text.zip": b"no archive at all",
    "empty.zip": b"",
    "broken.zip": archive({"a": "x" * 100})[:-30],
    "zip.tar.gz": archive({"a": "x"}),
    "tar.zip": tarred(member("a")),
    "text.tgz": b"no archive at all",
    "empty.tar.xz": b"",
}


def test_what_is_no_archive_is_refused_at_its_upload_and_not_kept(server: Running):
    """Ray's client takes a package that is there for a good one, and would not send it again."""
    for name, content in NO_ARCHIVES.items():
        answer = server.http.put(f"/api/packages/gcs/{name}", content=content)
        assert (answer.status_code, problem(answer).partition(": ")[0]) == (
            400,
            f"package {name} cannot be unpacked",
        )
        assert server.http.get(f"/api/packages/gcs/{name}").status_code == 404
    upload(server, "good.zip", good := archive({"a": "x"}))
    assert server.http.put("/api/packages/gcs/good.zip", content=b"x").status_code == 400
    left = list((server.home / "packages").iterdir())
    assert [(place.name, place.read_bytes()) for place in left] == [("good.zip", good)]


@spec("17.private")
def test_a_hostile_package_is_refused_and_nothing_is_left(server: Running):
    for name, content in HOSTILE.items():
        place = upload(server, name, content)
        answer = server.http.post(
            "/api/jobs/", json={"entrypoint": "true", "runtime_env": {"working_dir": place}}
        )
        assert answer.status_code == 400, (name, answer.text)
        assert f"package {name} cannot be unpacked" in problem(answer)
    assert not list((server.home / "job-files").iterdir())
    assert not list(server.home.rglob("up"))
    assert server.rows("SELECT count(*) FROM jobs") == [(0,)]
    for name, mode in (("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar.xz", "w:xz")):
        place = upload(server, name, tarred(member("dir", tarfile.DIRTYPE), member("dir/file"), mode=mode))
        assert output(server, submit(server, "cat dir/file", runtime_env={"working_dir": place})) == "x"


def test_names_that_are_no_packages(server: Running):
    for name in ("a.exe", "a", ".zip", "a%2F..%2Fb.zip", "..%2Fa.zip", "a b.zip", "a" * 300 + ".zip"):
        for method in ("GET", "PUT"):
            assert server.http.request(method, f"/api/packages/gcs/{name}").status_code in (400, 404), name
    assert server.http.put("/api/packages/s3/a.zip", content=b"x").status_code == 400
    assert not (server.home / "packages").exists() or not list((server.home / "packages").iterdir())


def test_limits_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    Store.open(home).close()
    monkeypatch.setattr(packages, "MAX_BYTES", 1000)
    monkeypatch.setattr(packages, "MAX_UNPACKED", 5000)
    monkeypatch.setattr(packages, "MAX_FILES", 3)
    with pytest.raises(packages.BadSpec, match="larger than"), packages.upload(home, "a.zip", None) as coming:
        coming.write(b"x" * 1001)
    assert not list((home / "packages").iterdir())
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", b"\0" * 5001)
    for content in (bomb.getvalue(), archive({str(number): "" for number in range(4)})):
        with packages.upload(home, "a.zip", None) as coming:
            coming.write(content)
            with pytest.raises(packages.BadSpec, match="larger than"):
                coming.finish()
        (home / "packages" / "a.zip").write_bytes(content)  # as an earlier version has stored it
        with (
            pytest.raises(packages.BadSpec, match="larger than"),
            packages.unpacked(home, "job", None, "a.zip", ()),
        ):
            pass
    assert not list((home / "job-files").iterdir())


def zeros(size: int) -> bytes:
    """A zip archive with so many zeros, which are compressed a block at a time."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("zeros", "w") as entry,
    ):
        for _ in range(size >> 20):
            entry.write(bytes(1 << 20))
    small = bytearray(made.getvalue())
    at = small.rindex(b"PK\1\2") + 24  # the uncompressed size in the table of contents
    small[at : at + 4] = (0xF0000000).to_bytes(4, "little")
    return bytes(small)


def two_of(one: bytes) -> bytes:
    """A zip archive whose table of contents names the file of another one twice."""
    at, end = one.index(b"PK\1\2"), one.rindex(b"PK\5\6")
    entry = one[at:end]
    other = entry.replace(b"zeros", b"other")
    tail = bytearray(one[end:])
    tail[8:12] = (2).to_bytes(2, "little") * 2
    tail[12:16] = (2 * len(entry)).to_bytes(4, "little")
    return one[:at] + entry + other + bytes(tail)


def many(count: int) -> bytes:
    """A zip archive with so many empty files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for number in range(count):
            file.writestr(f"{number}", b"")
    return made.getvalue()


@spec("14.safety")
def test_bombs_are_refused_by_their_table_of_contents(server: Running):
    """One of 4.4 GiB and one of 60,000 files were unpacked until a limit was reached: no answer in 40 seconds."""
    long = archive({"a": "x"})
    at = long.rindex(b"PK\5\6")
    table = long[:at] + bytes(packages.MAX_CONTENTS) + long[at : at + 12]
    table += (packages.MAX_CONTENTS + at - long.index(b"PK\1\2")).to_bytes(4, "little") + long[at + 16 :]
    for name, content in (
        ("size.zip", two_of(zeros(1 << 20))),
        ("files.zip", many(60_000)),
        ("table.zip", table),
    ):
        began = time.monotonic()
        answer = server.http.put(f"/api/packages/gcs/{name}", content=content)
        assert time.monotonic() - began < 10, name
        assert answer.status_code == 400, (name, answer.text)
        assert "larger than 4 GiB or 50,000 files" in problem(answer), name
        assert server.http.get(f"/api/packages/gcs/{name}").status_code == 404, name
    assert not list((server.home / "packages").iterdir())


def test_what_no_job_needs_is_removed_after_a_time(server: Running):
    place = upload(server, "_ray_pkg_1.zip", archive({"a": "x"}))
    env = {"working_dir": place}
    over = submit(server, "true", runtime_env=env)
    ended(server, over)
    waits = submit(server, "true", runtime_env=env, entrypoint_num_cpus=4)
    server.http.post(f"/api/v1/jobs/{waits}/hold")
    forgotten = submit(server, "true", runtime_env=env)
    ended(server, forgotten)
    assert server.http.delete(f"/api/jobs/{forgotten}").status_code == 200
    folder, stored = server.home / "job-files", server.home / "packages" / "_ray_pkg_1.zip"

    def left() -> set[str]:
        with_store = Store.open(server.home)
        packages.sweep(with_store)
        with_store.close()
        return {found.name.rpartition(".")[0] for found in folder.iterdir()}

    assert left() == {over, waits, forgotten}  # young: a submit may be about to use it
    for found in folder.iterdir():
        os.utime(found, (0, 0))
    assert left() == {over, waits}
    assert stored.exists()
    os.utime(stored, (0, 0))
    left()
    assert not stored.exists()


# ---- follow ----


class Following:
    """A websocket to the output of a job, as a client opens it."""

    def __init__(self, server: Running, job: str, **headers: str) -> None:
        events = pytest.importorskip("wsproto.events")
        from wsproto import ConnectionType, WSConnection

        self.events = events
        self.ws = WSConnection(ConnectionType.CLIENT)
        host = server.address.removeprefix("http://")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        given = {"Authorization": f"Bearer {TOKEN}", **headers}
        extra = [(key.encode(), value.encode()) for key, value in given.items() if value]
        target = job if job.startswith("/") else f"/api/jobs/{job}/logs/tail"
        self._send(events.Request(host=host, target=target, extra_headers=extra))

    def _send(self, event: Any) -> None:
        self.socket.sendall(self.ws.send(event))

    def all(self) -> list[Any]:
        """Everything to its end."""
        found: list[Any] = []
        while True:
            data = self.socket.recv(65536)
            self.ws.receive_data(data or None)
            for event in self.ws.events():
                found.append(event)
                if isinstance(event, self.events.CloseConnection):
                    self._send(event.response())
                    self.socket.close()
                    return found
                if isinstance(event, self.events.RejectData) and event.body_finished:
                    return found
            if not data:
                return found

    def end(self) -> tuple[str, int, str]:
        """The output, and the code and reason with which it was closed."""
        found = self.all()
        assert isinstance(found[0], self.events.AcceptConnection), found
        assert isinstance(found[-1], self.events.CloseConnection), found[-1]
        return "".join(event.data for event in found[1:-1]), found[-1].code, found[-1].reason or ""

    def text(self) -> str:
        """The output, after a close that means its end."""
        text, code, _ = self.end()
        assert code == 1000
        return text

    def refusal(self) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer that is no websocket."""
        found = self.all()
        body = b"".join(event.data for event in found if isinstance(event, self.events.RejectData))
        self.socket.close()
        return found[0].status_code, json.loads(body)


def test_the_output_is_followed_to_the_end_of_the_job(server: Running, tmp_path: Path):
    go = tmp_path / "go"
    job = submit(
        server, f"printf 'a\\303'; while [ ! -e {go} ]; do sleep 0.05; done; printf '\\244b'; exit 3"
    )
    following = Following(server, job)
    go.touch()
    assert following.text() == "aäb"
    assert details(server, job)["driver_exit_code"] == 3  # the end is known when the output has ended
    assert Following(server, job).text() == "aäb"


@spec("14.safety")
def test_who_may_follow(server: Running):
    job = submit(server, "true")
    ended(server, job)
    for headers, status in (
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": "http://elsewhere"}, 403),
    ):
        found, body = Following(server, job, **headers).refusal()
        assert (found, body["error"]["exit_code"]) == (status, 8)
    assert Following(server, "none").refusal()[0] == 404
    assert "websocket" in problem(server.http.get(f"/api/jobs/{job}/logs/tail"))


@spec("14.safety")
def test_a_websocket_elsewhere_is_refused_in_the_envelope(server: Running):
    for path in ("/nothing", "/api/v1/jobs", "/api/jobs/none/logs", "/virtual_clusters"):
        status, body = Following(server, path).refusal()
        said = body["msg"] if "msg" in body else body["error"]["message"]
        assert (status, said) == (404, f"there is no websocket at {path}")


def test_a_waiting_job_is_followed_from_its_start_or_to_its_stop(server: Running):
    holder = submit(server, "sleep 1000", entrypoint_num_cpus=4)
    waits, other = (submit(server, "echo ran", entrypoint_num_cpus=1) for _ in range(2))
    followed, stopped = Following(server, waits), Following(server, other)
    time.sleep(0.5)
    for job in (other, holder):
        assert server.http.post(f"/api/jobs/{job}/stop").json() == {"stopped": True}
    assert stopped.text() == ""
    assert followed.text() == "ran\n"


def test_a_log_that_loses_its_beginning_is_followed_to_its_end(start: Start):
    server = start(VCTL_LOG_MAX_BYTES="64KiB")
    server.nodes(1)
    job = submit(server, "for i in 1 2 3 4; do seq $((i * 100000)) $((i * 100000 + 99999)); sleep 0.3; done")
    text = Following(server, job).text()
    assert "\0" not in text
    assert text.endswith("".join(f"{number}\n" for number in range(499_500, 500_000)))


def test_the_close_tells_the_end_of_the_job_from_all_else(start: Start):
    """A follower that is told 1000 takes what it has for all the output."""
    server = start(VCTL_AUTOSTART="0")
    server.nodes(1)
    job = submit(server, "true")
    alone = "no scheduler is running, and `autostart` is off"
    assert Following(server, job).end() == ("", 1011, alone)
    again = start(VCTL_AUTOSTART="")
    job = submit(again, "echo up; sleep 1000", submission_id="runs")
    followed = Following(again, job)
    with closing(sqlite3.connect(again.home / "cluster.db")) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        while not server.http.get(f"/api/jobs/{job}/logs").json()["logs"]:
            time.sleep(0.05)
        time.sleep(0.5)
        db.execute("PRAGMA user_version = 9999")
        text, code, reason = followed.end()
        db.execute(f"PRAGMA user_version = {version}")
    assert (text, code, "written by a newer vctl" in reason) == ("up\n", 1011, True)
    last = Following(again, job)
    time.sleep(0.5)
    again.process.terminate()
    assert last.all()[-1].code in (1001, 1012)
    assert again.process.wait(10) == 0
    start(VCTL_AUTOSTART="").http.post(f"/api/jobs/{job}/stop")


def test_who_hangs_up_leaves_nothing_behind(server: Running):
    job = submit(server, "sleep 1000")
    for wait_s in (None, 0.0, 0.02, 0.1) * 4:
        following = Following(server, job)
        if wait_s is None:
            following.socket.recv(65536)
        else:  # before the answer, without a word
            time.sleep(wait_s)
            following.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        following.socket.close()
    assert server.http.post(f"/api/jobs/{job}/stop").json() == {"stopped": True}
    assert ended(server, job)["status"] == "STOPPED"


@spec("16.ray")
def test_a_job_of_rays_api_has_a_ray_of_its_own_where_it_can(start: Start, tmp_path: Path) -> None:
    """The setting ray_jobs, and vctl_ray in the metadata of a job; without Ray the refusal names the extra."""
    (tmp_path / "bin").mkdir()

    def submit(server: Running, name: str, **body: object) -> httpx.Response:
        spec = {"virtual_cluster": '{"flexible_resource_min": {"CPU": 99}}'}  # it waits
        body = {"entrypoint": "true", "submission_id": name, **body}
        body["metadata"] = {**spec, **body.get("metadata", {})}  # type: ignore[dict-item]
        return server.http.post("/api/jobs/", json=body)

    def kind(server: Running, name: str) -> str:
        found = server.rows(
            f"SELECT options FROM commands JOIN jobs USING (command_id) WHERE submission_id = '{name}'"
        )
        return str(json.loads(found[0][0]).get("private_ray", ""))

    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    plain = start(PATH=path, VCTL_RAY_JOBS="")
    plain.nodes(1, resources={"CPU": 100})
    if find_spec("ray") is None:
        assert submit(plain, "without").status_code == 200
        assert kind(plain, "without") == ""
        answer = submit(plain, "refused", metadata={"vctl_ray": "private"})
        assert answer.status_code == 400
        assert "metadata.vctl_ray: Ray is not installed" in answer.text
        assert "pip install 'ray[default]'" in answer.text
        asks = start(home=tmp_path / "asks", PATH=path, VCTL_RAY_JOBS="private")
        asks.nodes(1, resources={"CPU": 100})
        answer = submit(asks, "refused")
        assert answer.status_code == 400
        assert "ray_jobs: Ray is not installed" in answer.text
        assert "pip install 'ray[default]'" in answer.text
    (ray := tmp_path / "bin/ray").write_text("#!/bin/sh\n")
    ray.chmod(0o755)
    for name, body, wanted in (
        ("default", {}, "lazy"),
        ("lazy", {"metadata": {"vctl_ray": "lazy"}}, "lazy"),
        ("private", {"metadata": {"vctl_ray": "private"}}, "plain"),
        ("dashboard", {"metadata": {"vctl_ray": "dashboard"}}, "dashboard"),
        ("none", {"metadata": {"vctl_ray": "none"}}, ""),
        ("part", {"entrypoint_num_cpus": 0.5}, ""),
    ):
        assert submit(plain, name, **body).status_code == 200, name
        assert kind(plain, name) == wanted, name
    answer = submit(plain, "odd", metadata={"vctl_ray": "yes"})
    assert answer.status_code == 400
    assert "lazy, private, dashboard, none" in answer.text
    answer = submit(plain, "both", entrypoint_num_cpus=1, metadata={"vctl_ray": "private"})
    assert answer.status_code == 400
    assert "metadata.vctl_ray" in answer.text
    off = start(home=tmp_path / "off", PATH=path)
    off.nodes(1, resources={"CPU": 100})
    assert submit(off, "none").status_code == 200
    assert kind(off, "none") == ""
