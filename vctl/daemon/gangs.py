"""``--per-node``: the command once in every virtual node, as one gang; what its members are told about each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL, SIMULATED
from vctl.engine.rules.starts import vnodes_of
from vctl.store.store import Store

FOLDER = "gangs"
HERE = "127.0.0.1"


# ---- what a member is told ----


def environment(store: Store, ledger: Ledger, run: Run, port: int) -> Mapping[str, str]:
    """Rank, world and meeting point, by the names that torchrun and others use."""
    vnodes = vnodes_of(ledger, run.cluster_id)
    node_ids = list(dict.fromkeys(vnode.node_id for vnode in vnodes))
    rank = [vnode.vnode_id for vnode in vnodes].index(run.vnode_id)
    beside = [index for index, vnode in enumerate(vnodes) if vnode.node_id == run.node_id]
    path = f"{store.home}/{FOLDER}/{run.job_id}.{run.attempt}"
    if not run.rank or not os.path.exists(f"{path}.nodes"):
        write_host_files(path, [_address(ledger, vnode.node_id) for vnode in vnodes])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(beside.index(rank)),
        "WORLD_SIZE": str(len(vnodes)),
        "LOCAL_WORLD_SIZE": str(len(beside)),
        "NODE_RANK": str(node_ids.index(run.node_id)),
        "MASTER_ADDR": _address(ledger, vnodes[0].node_id),
        "MASTER_PORT": str(port),
        "VCTL_HOSTFILE": f"{path}.hosts",
        "VCTL_NODEFILE": f"{path}.nodes",
    }


def _address(ledger: Ledger, node_id: str) -> str:
    """How members reach a node: simulated ones are on this machine."""
    node = ledger.nodes.get(node_id)
    return node.hostname if node is not None and node.source not in (LOCAL, SIMULATED) else HERE


def write_host_files(path: str, addresses: Sequence[str]) -> None:
    """``.hosts``, ``ADDRESS slots=N`` as mpirun reads it, and after it ``.nodes``, one address per member."""
    slots = {address: addresses.count(address) for address in dict.fromkeys(addresses)}
    _write(f"{path}.hosts", "".join(f"{address} slots={count}\n" for address, count in slots.items()))
    _write(f"{path}.nodes", "".join(f"{address}\n" for address in addresses))


def _write(path: str, text: str) -> None:
    staged = f"{path}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(staged, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(staged, flags, 0o666)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(staged, path)


def forget(home: Path, run: Run) -> None:
    """Remove the host files of an attempt that is over."""
    name = f"{home}/{FOLDER}/{run.job_id}.{run.attempt}"
    if os.path.exists(f"{name}.hosts"):  # nearly no job is a gang
        for suffix in (".nodes", ".hosts"):
            with suppress(FileNotFoundError):
                os.unlink(name + suffix)
