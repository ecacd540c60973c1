"""``--per-node``: the command once in every virtual node, as one gang; what its members are told about each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL, SIMULATED
from vctl.engine.rules.starts import vnodes_of
from vctl.store.store import Store

FOLDER = "gangs"
HERE = "127.0.0.1"


def rank_of(ledger: Ledger, cluster_id: str, vnode_id: str) -> int:
    """The place of a virtual node in its gang."""
    return [vnode.vnode_id for vnode in vnodes_of(ledger, cluster_id)].index(vnode_id)


# ---- what a member is told ----


def environment(store: Store, ledger: Ledger, run: Run, port: int) -> Mapping[str, str]:
    """Rank, world and meeting point, by the names that torchrun and others use."""
    vnodes = vnodes_of(ledger, run.cluster_id)
    node_ids = list(dict.fromkeys(vnode.node_id for vnode in vnodes))
    rank = rank_of(ledger, run.cluster_id, run.vnode_id)
    beside = [index for index, vnode in enumerate(vnodes) if vnode.node_id == run.node_id]
    hosts = write_host_files(
        store.home, f"{run.job_id}.{run.attempt}", [_address(ledger, v.node_id) for v in vnodes]
    )
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(beside.index(rank)),
        "WORLD_SIZE": str(len(vnodes)),
        "LOCAL_WORLD_SIZE": str(len(beside)),
        "NODE_RANK": str(node_ids.index(run.node_id)),
        "MASTER_ADDR": _address(ledger, vnodes[0].node_id),
        "MASTER_PORT": str(port),
        "VCTL_HOSTFILE": str(hosts),
        "VCTL_NODEFILE": str(hosts.with_suffix(".nodes")),
    }


def _address(ledger: Ledger, node_id: str) -> str:
    """How members reach a node: simulated ones are on this machine."""
    node = ledger.nodes.get(node_id)
    return node.hostname if node is not None and node.source not in (LOCAL, SIMULATED) else HERE


def write_host_files(home: Path, name: str, addresses: list[str]) -> Path:
    """``ADDRESS slots=N`` as mpirun reads it, and beside it one address per member; the path of the first."""
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    slots = {address: addresses.count(address) for address in dict.fromkeys(addresses)}
    texts = {
        ".hosts": "".join(f"{address} slots={count}\n" for address, count in slots.items()),
        ".nodes": "".join(f"{address}\n" for address in addresses),
    }
    for suffix, text in texts.items():
        path, staged = folder / f"{name}{suffix}", folder / f".{name}{suffix}.{os.getpid()}"
        staged.write_text(text)
        staged.rename(path)
    return folder / f"{name}.hosts"


def forget(home: Path, run: Run) -> None:
    """Remove the host files of an attempt that is over."""
    name = f"{home}/{FOLDER}/{run.job_id}.{run.attempt}"
    if os.path.exists(f"{name}.hosts"):  # nearly no job is a gang
        for suffix in (".nodes", ".hosts"):
            Path(name + suffix).unlink(missing_ok=True)
