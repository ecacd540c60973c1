"""What Ray's command is told of a virtual node, which part of one lacks a raylet, and where that command is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from vctl.ray.private import raylets

pytestmark = spec("16.ray")


def node(gpus: tuple[str, ...] = (), **resources: float) -> dict[str, Any]:
    return {
        "id": "c##j/0",
        "resources": resources,
        "gpus": list(gpus),
        "cores": None,
        "labels": {"a": "b", "e": ""},
    }


def told(one: dict[str, Any]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in raylets.arguments(one, "n") if "=" in word)


def test_a_raylet_has_what_its_virtual_node_has_and_no_more() -> None:
    words = told(node(("2", "3"), CPU=4.0, GPU=2.0, memory=8.0 * 2**30, FPGA=1.0, disk=0.0))
    assert (words["num-cpus"], words["num-gpus"], words["memory"]) == ("4", "2", str(8 * 2**30))
    assert json.loads(words["resources"]) == {"FPGA": 1.0}
    assert words["labels"] == "a=b,e="
    assert words["node-name"] == "n"
    bare = told(node())
    assert (bare["num-cpus"], bare["num-gpus"], bare["memory"]) == ("0", "0", "0"), (
        "never those of the machine"
    )


def test_no_port_is_fixed() -> None:
    assert {word for name, word in told(node()).items() if name.endswith("port")} == {"0"}


@pytest.mark.parametrize(
    ("asked", "has"),
    [({}, 256 << 20), ({"object_store_memory": 1e9}, 10**9), ({"object_store_memory": 1.0}, 75 << 20)],
)
def test_the_object_store_is_small_unless_it_was_asked_for(asked: dict[str, float], has: int) -> None:
    assert told(node(**asked))["object-store-memory"] == str(has)


def test_what_a_virtual_node_gains_is_a_part_of_its_own() -> None:
    first = node(("0",), CPU=1.0, GPU=1.0)
    grown = node(("0", "2"), CPU=3.5, GPU=2.0, FPGA=0.5)
    part = raylets.missing(grown, [first])
    assert part is not None
    assert part["resources"] == {"CPU": 2, "GPU": 1, "FPGA": 0.5}
    assert part["gpus"] == ["2"]
    assert raylets.missing(grown, [first, part]) is None
    assert raylets.missing(first, [first]) is None
    assert raylets.missing(first, []) == first, "a raylet that ended"
    assert raylets.exceeds(first, [first, part])
    assert not raylets.exceeds(grown, [first, part])


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_ray_is_that_of_the_program_then_that_of_the_path(tmp_path: Path) -> None:
    python, beside = executable(tmp_path / "venv" / "python"), executable(tmp_path / "venv" / "ray")
    other, plain = executable(tmp_path / "bin" / "ray"), executable(tmp_path / "plain" / "python")
    path = os.pathsep.join((str(tmp_path / "plain"), str(tmp_path / "bin")))
    assert raylets.program([python], path) == beside
    assert raylets.program(["venv/python"], path, str(tmp_path)) == beside
    assert raylets.program(["python"], path) == raylets.program([plain], path) == other
    assert raylets.program(["python"], f"{tmp_path / 'venv'}{os.pathsep}{path}") == beside


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kPrimaryClusterID##j/0", "kPrimaryClusterID##j.0"),
        ("a##b##j/12#3", "a##b##j.12#3"),
        ("a" * 200, "a" * 200),
    ],
)
def test_a_name_of_a_node_of_ray_is_a_file_name(name: str, told: str) -> None:
    """Serve names the log of its proxy after it, and could not start for the `/`."""
    assert raylets.node_name(name) == told


def test_a_name_that_is_too_long_for_a_file_stays_different_from_others() -> None:
    """The id of a cluster within others may be long."""
    names = [raylets.node_name("##".join(["c" * 128] * 3) + f"##j/{rank}") for rank in range(2)]
    assert names[0] != names[1]
    for name in names:
        Path("/tmp", f"proxy_{name}.log").exists()  # no OSError: a name that there may be


def test_the_port_of_the_gcs_is_known_before_it_starts_and_kept_for_it() -> None:
    """Ray's GCS sets SO_REUSEADDR; what does not, or does not name the port, does not get it."""
    held, port = raylets.held_port(socket.SO_REUSEADDR)
    with held:
        assert port not in {raylets.free_port() for _ in range(200)}
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        with socket.socket(socket.AF_INET6) as gcs:
            gcs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            gcs.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            gcs.bind(("::", port))
            gcs.listen()


def test_a_held_port_is_given_to_nobody_else() -> None:
    held, port = raylets.held_port()
    with held:
        assert port not in {raylets.free_port() for _ in range(200)}


def test_the_python_that_has_ray_is_that_of_its_workers() -> None:
    """Whatever Ray's command is: a script of a shell had led to a Python without Ray."""
    for python in ("/opt/env/bin/python3.11", "/home/a user/env/bin/python"):
        worker = subprocess.list2cmdline([python, "/opt/env/setup_worker.py", "--node-ip-address=127.0.0.1"])
        words = [b"/opt/env/raylet", b"--node_id=12", b"--python_worker_command=" + worker.encode(), b""]
        assert raylets.python_of(words) == python
        assert raylets.node_id_of(words) == "12"


def test_what_is_about_to_be_taken_from_a_virtual_node_is_not_used() -> None:
    whole = node(CPU=4.0, FPGA=1.0)
    assert raylets.clipped(whole, {"CPU": 2.0})["resources"] == {"CPU": 2.0}
    assert raylets.clipped(whole, {"CPU": 8.0, "FPGA": 1.0})["resources"] == {"CPU": 4.0, "FPGA": 1.0}
    assert raylets.clipped(whole, {})["resources"] == {}


def test_packages_and_metadata_share_a_variable() -> None:
    text = raylets.job_config('{"metadata": {"a": "b"}, "runtime_env": {"env_vars": {}}}', {"pip": ["x"]})
    assert json.loads(text) == {"metadata": {"a": "b"}, "runtime_env": {"env_vars": {}, "pip": ["x"]}}
    assert raylets.to_install(text) == {"env_vars": {}, "pip": ["x"]}
    assert json.loads(raylets.job_config("", {"uv": ["y"]})) == {"runtime_env": {"uv": ["y"]}}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no JSON", '{"runtime_env": null}', '{"runtime_env": {"pip": [], "env_vars": {"A": "1"}}}']
)  # fmt: skip
def test_nothing_is_to_be_installed(text: str) -> None:
    assert raylets.to_install(text) == {}


def test_pip_is_found_beside_ray() -> None:
    assert raylets.path_with("/env/bin/ray", "/usr/bin:/bin") == "/env/bin:/usr/bin:/bin"
    assert raylets.path_with("/env/bin/ray", "/usr/bin:/env/bin") == "/usr/bin:/env/bin"
