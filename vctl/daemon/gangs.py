"""``--per-node``, one command in every virtual node as a gang: the environment and host files of members."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL, SIMULATED
from vctl.store.store import Store

FOLDER, _SPARES = "gangs", ".spare"
_MOST_SPARES = 128
_free: dict[str, list[str]] = {}
"""The directory of the host files -> host files of ended gangs, which can be written anew."""
HERE = "127.0.0.1"


# ---- the environment of a member ----


def environment(store: Store, ledger: Ledger, run: Run, port: int) -> Mapping[str, str]:
    """Rank, world size and master address of a member, by the names that torchrun and others use."""
    vnodes = ledger.ranked(run.cluster_id)
    node_ids = list(dict.fromkeys(vnode.node_id for vnode in vnodes))
    rank = [vnode.vnode_id for vnode in vnodes].index(run.vnode_id)
    beside = [index for index, vnode in enumerate(vnodes) if vnode.node_id == run.node_id]
    path = f"{store.job_files}/{FOLDER}/{run.job_id}.{run.attempt}"
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
    """The address of a node for the members of a gang: local and simulated nodes are on this machine."""
    node = ledger.nodes.get(node_id)
    return node.hostname if node is not None and node.source not in (LOCAL, SIMULATED) else HERE


def write_host_files(path: str, addresses: Sequence[str]) -> None:
    """Write ``.hosts``, with ``ADDRESS slots=N`` for mpirun, then ``.nodes``, with one address per member."""
    slots = {address: addresses.count(address) for address in dict.fromkeys(addresses)}
    _write(f"{path}.hosts", "".join(f"{address} slots={count}\n" for address, count in slots.items()))
    _write(f"{path}.nodes", "".join(f"{address}\n" for address in addresses))


def _write(path: str, text: str) -> None:
    data, above, fresh = text.encode(), os.path.dirname(path), f"{path}.{os.getpid()}"
    spares = _spares(above)
    staged = spares.pop() if spares else fresh
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(staged, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(above, mode=0o700, exist_ok=True)
        fd = os.open(staged := fresh, flags, 0o666)
    try:
        os.write(fd, data)
        os.ftruncate(fd, len(data))
        os.fchmod(fd, 0o644)  # its job may be another user's
    finally:
        os.close(fd)
    os.rename(staged, path)


def forget(home: Path, run: Run) -> None:
    """Move the host files of an ended attempt to the spare files, to be written anew. New files are slow: for
    each one, ext4 without a journal checks the inodes of all recently removed files."""
    above, name = f"{home}/{FOLDER}", f"{run.job_id}.{run.attempt}"
    if not os.path.exists(f"{above}/{name}.hosts"):  # nearly no job is a gang
        return
    spares = _spares(above)
    for suffix in (".nodes", ".hosts"):
        path, spare = f"{above}/{name}{suffix}", f"{above}{_SPARES}/{name}{suffix}"
        with suppress(OSError):
            info = os.lstat(path)
            if len(spares) < _MOST_SPARES and info.st_nlink == 1 and stat.S_ISREG(info.st_mode):
                with suppress(FileNotFoundError):
                    os.rename(path, spare)
                    spares.append(spare)
                    continue
            os.unlink(path)


def _spares(above: str) -> list[str]:
    """The spare files; those that became spare last are at the end."""
    if (spares := _free.get(above)) is None:
        names: list[str] = []
        with suppress(OSError):
            os.makedirs(above + _SPARES, mode=0o700, exist_ok=True)
            names = os.listdir(above + _SPARES)
        spares = _free[above] = [f"{above}{_SPARES}/{name}" for name in names]
    return spares


def tidy(home: Path, runs: Iterable[Run]) -> None:
    """Remove the host files of attempts without runs: a scheduler died after it had recorded their end."""
    live = {f"{run.job_id}.{run.attempt}" for run in runs}
    with suppress(OSError):
        for name in os.listdir(home / FOLDER):
            if ".".join(name.split(".")[:2]) not in live:
                os.unlink(home / FOLDER / name)
