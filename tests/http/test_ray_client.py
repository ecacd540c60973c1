"""Stock Ray's client and command against a server: behaviours of Ray's own tests of its clients, as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.http.conftest import TOKEN, Running, Start
from tests.ray_cluster import IN_CI, RAY_S
from tests.specification import spec
from tests.wheels import wheel

pytestmark = [
    spec("14.ray-jobs"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("ray") is None or find_spec("wsproto") is None,
        reason="stock Ray's client is needed: pip install -e '.[ray,server]'",
    ),
]

HEADERS = json.dumps({"Authorization": f"Bearer {TOKEN}"})

CLIENT = """
import asyncio, os, sys, time
from pathlib import Path
import ray
from ray.job_submission import JobStatus, JobSubmissionClient, JobType

address, token = sys.argv[1:]
client = JobSubmissionClient(address, headers={"Authorization": f"Bearer {token}"}, metadata={"by": "default"})


def ended(job):
    give_up = time.monotonic() + 120
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return client.get_job_info(job)


def refused(words, call, *args, **more):
    try:
        call(*args, **more)
    except Exception as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


# versions, and an address with a slash at its end
assert client.get_version() == "4"
assert JobSubmissionClient(address + "/").get_version() == "4"

# a job with variables and metadata; metadata of the client are merged
job = client.submit_job(entrypoint="echo $TEST_A", runtime_env={"env_vars": {"TEST_A": "b"}}, metadata={"k": "v"})
info = ended(job)
assert info.type == JobType.SUBMISSION and info.status == JobStatus.SUCCEEDED and info.submission_id == job
assert info.entrypoint == "echo $TEST_A" and info.driver_exit_code == 0 and info.end_time >= info.start_time
assert info.metadata == {"k": "v", "by": "default"} and info.runtime_env == {"env_vars": {"TEST_A": "b"}}
assert client.get_job_logs(job) == "b\\n"
assert job in [each.submission_id for each in client.list_jobs()]

# an id of one's own, once
assert client.submit_job(entrypoint="true", submission_id="mine") == "mine"
refused("Please use a different submission_id", client.submit_job, entrypoint="true", submission_id="mine")
assert client.submit_job(entrypoint="true", job_id="former") == "former"

# what does not exist
for call in (client.get_job_info, client.get_job_status, client.get_job_logs, client.stop_job, client.delete_job):
    refused("does not exist", call, "none")

# working_dir and py_modules: a directory, the same again, an archive
place = Path(sys.argv[0]).parent / "work"
(place / "sub").mkdir(parents=True)
(place / "job.py").write_text("import mod; print(open('sub/data').read(), mod.NAME)")
(place / "sub/data").write_text("data")
(place / "left_out.log").write_text("x")
mod = place.parent / "mod"
mod.mkdir()
(mod / "__init__.py").write_text("NAME = 'mod'")
environment = {"working_dir": str(place), "py_modules": [str(mod)], "excludes": ["*.log"]}
for _ in range(2):
    job = client.submit_job(entrypoint=f"{sys.executable} job.py; ls; touch left", runtime_env=environment)
    info = ended(job)
    assert client.get_job_logs(job) == "data mod\\njob.py\\nsub\\n", client.get_job_logs(job)
    assert info.runtime_env["working_dir"].startswith("gcs://_ray_pkg_")
import shutil
packed = shutil.make_archive(str(place), "zip", place)
job = client.submit_job(entrypoint="cat sub/data", runtime_env={"working_dir": packed})
assert ended(job).status == JobStatus.SUCCEEDED and client.get_job_logs(job) == "data"

# what is not done is refused, and says so
refused("runtime_env.pip", client.submit_job, entrypoint="true", runtime_env={"pip": ["requests"]})
refused("runtime_env.working_dir", client.submit_job, entrypoint="true", runtime_env={"working_dir": "s3://b/w.zip"})
refused("can never", client.submit_job, entrypoint="true", entrypoint_num_cpus=1000)

# a failure has its code and what it said last
info = ended(client.submit_job(entrypoint="echo why; exit 9"))
assert info.status == JobStatus.FAILED and info.driver_exit_code == 9 and "why" in info.message
assert info.error_type == "JOB_ENTRYPOINT_COMMAND_ERROR"

# stop and delete; one that ignores SIGTERM too
job = client.submit_job(entrypoint="trap '' TERM; echo up; sleep 1000")
refused("non-terminal state", client.delete_job, job)
assert client.stop_job(job) is True
assert ended(job).status == JobStatus.STOPPED and client.stop_job(job) is False
assert client.delete_job(job) is True
refused("does not exist", client.get_job_info, job)


# the output as it grows
async def tail(job):
    return [lines async for lines in client.tail_job_logs(job)]


job = client.submit_job(entrypoint="for i in 1 2 3; do echo $i; sleep 0.2; done")
assert "".join(asyncio.run(tail(job))) == "1\\n2\\n3\\n"
assert client.get_job_status(job).is_terminal()

# waits in the queue with a reason; resources of the entrypoint; a spec and a target in the metadata
holder = client.submit_job(entrypoint="sleep 1000", entrypoint_num_cpus=4)
job = client.submit_job(entrypoint="true", entrypoint_num_cpus=1, entrypoint_memory=1024)
give_up = time.monotonic() + 60
while "InsufficientResources" not in client.get_job_info(job).message:
    assert time.monotonic() < give_up, client.get_job_info(job)
assert client.get_job_status(job) == JobStatus.PENDING
client.stop_job(holder)
assert ended(job).status == JobStatus.SUCCEEDED
spec = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]}'
metadata = {"virtual_cluster": spec, "virtual_cluster_id": "primary"}
job = client.submit_job(entrypoint="echo $VCTL_RESOURCES", metadata=metadata)
assert ended(job).status == JobStatus.SUCCEEDED and '"CPU"' in client.get_job_logs(job)

# the wrong token
refused("token is wrong", JobSubmissionClient(address, headers={"Authorization": "Bearer x"}).list_jobs)
print("all as with Ray", ray.__version__)
"""


def clean(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "VCTL_"))}
    return {**env, "RAY_USAGE_STATS_ENABLED": "0", **more}


@pytest.fixture
def busy(server: Running) -> Running:
    body = {"count": 1, "template": "t", "resources": {"CPU": 4, "memory": "1GiB"}}
    assert server.http.post("/api/v1/nodes", json=body).status_code == 200
    return server


def test_the_python_client(busy: Running, tmp_path: Path):
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    ran = subprocess.run(
        [sys.executable, script, busy.address, TOKEN],
        env=clean(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "all as with Ray" in ran.stdout


def ray_job(server: Running, *words: str, cwd: Path | None = None, **more: str) -> tuple[int, str]:
    env = clean(RAY_JOB_HEADERS=HEADERS, **more)
    found = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "job", words[0], "--address", server.address, *words[1:]],
        env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RAY_S, check=False,
    )  # fmt: skip
    return found.returncode, found.stdout


def test_the_command(busy: Running, tmp_path: Path):
    """Exit codes as with Ray itself: 1 for a failed job and for a request that is refused, 0 for a stopped job."""
    (tmp_path / "job.py").write_text("import sys; print('said', *sys.argv[1:]); sys.exit(len(sys.argv) - 1)")
    python = (sys.executable, "job.py")

    code, said = ray_job(busy, "submit", "--working-dir", ".", "--", *python, cwd=tmp_path)
    assert (code, "said\n" in said, "succeeded" in said) == (0, True, True), said
    code, said = ray_job(
        busy,
        "submit",
        "--submission-id",
        "two",
        "--working-dir",
        ".",
        "--",
        *python,
        "a b",
        "$c",
        cwd=tmp_path,
    )
    assert (code, "said a b $c\n" in said, "exit code 2" in said) == (1, True, True), said
    code, said = ray_job(busy, "submit", "--no-wait", "--submission-id", "long", "--", "sleep", "1000")
    assert (code, "Job 'long' submitted successfully" in said) == (0, True), said
    code, said = ray_job(busy, "list")
    assert (code, "'long'" in said, "'two'" in said) == (0, True, True), said
    code, said = ray_job(busy, "stop", "long")
    assert (code, "Job 'long' was stopped" in said) == (0, True), said
    code, said = ray_job(busy, "logs", "--follow", "two")
    assert (code, "said a b $c\n" in said, "Job 'two' failed" in said) == (0, True, True), said
    code, said = ray_job(busy, "delete", "two")
    assert (code, "Job 'two' deleted successfully" in said) == (0, True), said
    code, said = ray_job(busy, "status", "two")
    assert (code, "Job two does not exist" in said) == (1, True), said


@spec("16.ray")
@pytest.mark.slow
@IN_CI
@pytest.mark.usefixtures("alone_with_ray")
def test_a_job_of_rays_command_sees_its_own_ray(start: Start, tmp_path: Path) -> None:
    """By default where Ray is installed, and started when the job connects; ``none`` leaves it without."""
    server = start(VCTL_RAY_JOBS="")
    server.nodes(1)
    (tmp_path / "job.py").write_text(
        "import os, ray\nif 'RAY_ADDRESS' in os.environ:\n    ray.init(log_to_driver=False)\n"
        "    print('sees', ray.cluster_resources()['CPU'])\n"
        "    has = ray._private.worker.global_worker.core_worker.get_job_config().metadata\n"
        "    print(*(has.get(name) for name in ('who', 'job_submission_id', 'job_name')))\n"
        "else:\n    print('has none')\n"
    )
    two = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]}'
    sees = ({"virtual_cluster": two, "who": "me"}, "sees 2.0\nme s s\n")
    for more, says in (sees, ({"vctl_ray": "none"}, "has none\n")):
        metadata = ("--metadata-json", json.dumps(more), *(("--submission-id", "s") if "who" in more else ()))
        code, said = ray_job(
            server, "submit", *metadata, "--working-dir", ".", "--", sys.executable, "job.py", cwd=tmp_path
        )
        assert (code, says in said) == (0, True), said
    look = 'echo "at $RAY_ADDRESS"; ls "$RAY_TMPDIR"'
    words = ("submit", "--submission-id", "echo", "--", "sh", "-c", look)
    code, said = ray_job(server, *words)
    assert (code, ":" in said.partition("at ")[2].splitlines()[0]) == (0, True), said
    assert "start.log" not in said  # Ray's command has not run
    assert server.http.get("/api/jobs/echo").json()["message"] == "Job finished successfully."


@spec("16.ray")
@pytest.mark.slow
@pytest.mark.usefixtures("alone_with_ray")
def test_packages_of_a_job_of_rays_command_reach_its_ray(start: Start, tmp_path: Path) -> None:
    """A wheel for pip, and one that Ray's client uploads as a module: the command finds both, and so does a task."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    server = start(VCTL_RAY_JOBS="", PATH=path)
    server.nodes(1)
    first, second = (wheel(tmp_path, f"vctl_probe_{n}", n) for n in ("pip", "wheel"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.py").write_text(
        "import ray, vctl_probe_pip, vctl_probe_wheel\n"
        "def says():\n    import vctl_probe_pip as a, vctl_probe_wheel as b\n    return a.SAYS, b.SAYS\n"
        "print('command', *says())\nray.init(log_to_driver=False)\nprint('task', *ray.get(ray.remote(says).remote()))\n"
    )
    wanted = json.dumps({"pip": [str(first)], "py_modules": [str(second)]})
    code, said = ray_job(
        server,
        "submit",
        "--runtime-env-json",
        wanted,
        "--working-dir",
        ".",
        "--",
        "python",
        "job.py",
        cwd=folder,
    )
    assert (code, "command pip wheel\n" in said, "task pip wheel\n" in said) == (0, True, True), said
