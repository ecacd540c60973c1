"""Finds Ray's command, and makes its arguments and its environment. Stand-alone, like processes.py."""

import hashlib
import json
import os
import shlex
import shutil
import socket
import sys

MYPY = False
if MYPY:
    from collections.abc import Mapping
    from typing import Any

PACKAGE = "ray[default]"
"""The package in error messages about a missing Ray; no extra of vctl: on PyPI, vctl is another project."""
OBJECT_STORE_BYTES = 256 << 20
"""The object store of a virtual node that has no object_store_memory."""
MIN_OBJECT_STORE_BYTES = 75 << 20
LOOPBACK = "127.0.0.1"
_STANDARD = ("CPU", "GPU", "memory", "object_store_memory")
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # the head declares a node dead about 5 s after its raylet was killed, and a minute after a raylet hangs
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
    # Ray's memory monitor judges the whole machine: when others fill it, it kills the workers of this job, and it
    # does not see that this job uses more than it has. vctl's supervisors judge each job by its own memory
    "RAY_memory_monitor_refresh_ms": "0",
}
ELSEWHERE = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS")
"""Variables that may lead to another Ray or to vctl's own server: those of whoever submitted the job."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which Ray's job API gives a job its metadata; only the command and what it starts have it."""
INSTALLED = ("pip", "uv", "py_modules")
"""The fields of a ``runtime_env`` that Ray installs before a process starts."""
_NOT_OURS = (*ELSEWHERE, JOB_CONFIG, "OMP_NUM_THREADS", "VCTL_TASK_ID")
_MAX_NAME = 200
PYTHON_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_start")
"""A folder for PYTHONPATH: `ray stop` ends the Ray of its job alone."""
_ANY_PORT = (
    "--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0",
    "--runtime-env-agent-port=0", "--node-manager-port=0", "--object-manager-port=0", "--min-worker-port=0",
    "--max-worker-port=0",
)  # fmt: skip


def program(command: "list[str] | tuple[str, ...]", path: str, cwd: str | None = None) -> str | None:
    """Ray's command: beside the program of the job, else in its PATH, else beside this Python."""
    own = shutil.which(os.path.join(cwd or "", command[0]) if "/" in command[0] else command[0], path=path)
    beside = None if own is None else shutil.which(os.path.join(os.path.dirname(own), "ray"))
    return beside or shutil.which("ray", path=path) or shutil.which(os.path.dirname(sys.executable) + "/ray")


def path_with(ray: str, path: str) -> str:
    """The search path for Ray's processes: they call ``pip`` by its name, which is beside Ray's command."""
    beside = os.path.dirname(os.path.abspath(ray))
    return path if beside in path.split(os.pathsep) else f"{beside}{os.pathsep}{path}"


def python_of(raylet: "list[bytes]") -> str:
    """The Python that has Ray, from the words of a raylet: it starts Ray's workers with it.

    Ray's command would not say: it may be a script of a shell anywhere. A raylet that does not say either has a Ray
    that we do not know: then it is the one in PATH.
    """
    return next(iter(shlex.split(_option(raylet, "python_worker_command"))), "python3")


def node_id_of(raylet: "list[bytes]") -> str:
    """The id of a raylet's node in Ray, from its words; empty if they do not say."""
    return _option(raylet, "node_id")


def _option(words: "list[bytes]", name: str) -> str:
    mark = f"--{name}=".encode()
    return next((word[len(mark) :].decode() for word in words if word.startswith(mark)), "")


def environment(access: "dict[str, str]", folder: str) -> dict[str, str]:
    """The environment of this Ray's processes. Whatever tasks and actors start inherits it, and finds this Ray by it.

    ``access``: how to reach this Ray. ``folder``: its directory on this machine; Ray's own files are in
    ``ray`` there, which is where a program looks that has no RAY_ADDRESS.
    """
    around = {name: text for name, text in os.environ.items() if name not in _NOT_OURS}
    return {**around, **SETTINGS, **access, **ways(around, folder)}


def ways(around: "Mapping[str, str]", folder: str) -> dict[str, str]:
    """What leads to this Ray beside its address, for a process with the environment ``around``."""
    paths = [path for path in around.get("PYTHONPATH", "").split(os.pathsep) if path != PYTHON_START]
    python_path = os.pathsep.join([PYTHON_START, *paths] if any(paths) else [PYTHON_START])
    return {"RAY_TMPDIR": folder, "PYTHONPATH": python_path}


def job_config(text: str, runtime_env: "Mapping[str, Any]") -> str:
    """The value of JOB_CONFIG with these fields in its ``runtime_env``; ``text``: the value that it had."""
    config = json.loads(text or "{}")
    return json.dumps({**config, "runtime_env": {**config.get("runtime_env", {}), **runtime_env}})


def to_install(text: str) -> "dict[str, Any]":
    """The ``runtime_env`` in a value of JOB_CONFIG, if there is something to install."""
    try:
        config = json.loads(text or "{}")
    except ValueError:
        return {}  # Ray says what is wrong with it
    runtime_env = (config.get("runtime_env") if isinstance(config, dict) else None) or {}
    return runtime_env if any(runtime_env.get(field) for field in INSTALLED) else {}


def node_name(name: str) -> str:
    """A name of a raylet as Ray gets it: libraries of Ray name files after it, such as the log of Serve's proxy.

    A name that is too long for that ends in a hash of itself.
    """
    plain = name.replace("/", ".")
    return plain if len(plain) <= _MAX_NAME else marked(plain, name, _MAX_NAME)


def marked(plain: str, text: str, limit: int) -> str:
    """``plain``, which stands for ``text``, cut to ``limit`` characters that end in a hash of ``text``."""
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: limit - 1 - len(mark)]}-{mark}"


def arguments(node: "dict[str, Any]", name: str) -> list[str]:
    """The arguments of ``ray start`` for a virtual node, or for a part of one."""
    amounts = node["resources"]
    store = amounts.get("object_store_memory", OBJECT_STORE_BYTES)
    others = {key: amount for key, amount in amounts.items() if key not in _STANDARD and amount}
    return [
        f"--num-cpus={int(amounts.get('CPU', 0))}",
        f"--num-gpus={int(amounts.get('GPU', 0))}",
        f"--memory={int(amounts.get('memory', 0))}",
        f"--object-store-memory={max(int(store), MIN_OBJECT_STORE_BYTES)}",
        f"--resources={json.dumps(others)}",
        "--labels=" + ",".join(f"{key}={value}" for key, value in node["labels"].items()),
        f"--node-name={name}",
        *_ANY_PORT,
        "--disable-usage-stats",
    ]


def missing(node: "dict[str, Any]", parts: "list[dict[str, Any]]") -> "dict[str, Any] | None":
    """The part of a virtual node that no raylet has yet, or None. Standard resources are whole numbers.

    A virtual node without resources gets one raylet too.
    """
    in_use = {gpu for part in parts for gpu in part["gpus"]}
    amounts = {}
    for key, amount in node["resources"].items():
        rest = amount - sum(part["resources"].get(key, 0) for part in parts)
        rest = int(rest) if key in _STANDARD else rest
        if rest > 0:
            amounts[key] = rest
    if not amounts and parts:
        return None
    return {**node, "resources": amounts, "gpus": [gpu for gpu in node["gpus"] if gpu not in in_use]}


def clipped(node: "dict[str, Any]", limit: "dict[str, float]") -> "dict[str, Any]":
    """The virtual node with its resources limited to ``limit``; zero amounts are dropped."""
    amounts = {key: min(amount, limit.get(key, 0)) for key, amount in node["resources"].items()}
    return {**node, "resources": {key: amount for key, amount in amounts.items() if amount}}


def exceeds(node: "dict[str, Any]", parts: "list[dict[str, Any]]") -> bool:
    """Whether these raylets together have more of a resource than their virtual node."""
    keys = {key for part in parts for key in part["resources"]}
    return any(
        sum(part["resources"].get(key, 0) for part in parts) > node["resources"].get(key, 0) for key in keys
    )


def held_port(option: int = socket.SO_REUSEPORT, port: int = 0) -> tuple[socket.socket, int]:
    """A port (0: any) reserved while the socket is open, for a server that sets the same option: nobody else gets it.

    Ray's client server sets SO_REUSEPORT, its GCS SO_REUSEADDR.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("", port))
    return held, held.getsockname()[1]


def own_address() -> str:
    """The address of this machine that Ray takes if it is told none: that by which others reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))  # sends nothing
        except OSError:
            return LOOPBACK  # Ray replaces it by what it has chosen
        return str(probe.getsockname()[0])


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
