"""Finds groups of processes (cgroups.py): where they can be made, why not elsewhere, and what was left of them.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import os

MYPY = False
if MYPY or __package__:
    from vctl.runtime.cgroups import (
        ALL_V1,
        CONTROLLERS,
        FILES,
        LEAF,
        PREFIX,
        RUN,
        Files,
        Groups,
        RunGroup,
        quietly,
        text,
        tree,
    )  # fmt: skip
else:
    from cgroups import (
        ALL_V1,
        CONTROLLERS,
        FILES,
        LEAF,
        PREFIX,
        RUN,
        Files,
        Groups,
        RunGroup,
        quietly,
        text,
        tree,
    )  # fmt: skip

if MYPY:
    from collections.abc import Iterable, Iterator

_SYSTEMD = b"/run/systemd/system"
_DELEGATED = ("user.delegate", "trusted.delegate")  # as systemd marks the groups that it delegates


def find(
    home: bytes, proc: bytes = b"/proc/self", files: Files = FILES, versions: tuple[int, ...] = (2, 1)
) -> Groups:
    """The groups of a state directory, for a process that lives where the process ``proc`` does.

    Version 2 where it has every controller that version 1 has; else version 1.
    """
    name = name_of(home)
    mounts = _mounts(files, proc)
    found = [_find_v2(name, mounts, files)] if 2 in versions else []
    if 1 in versions:
        found.append(_find_v1(name, mounts, files))
    best = found[0]
    for other in found[1:]:
        if not set(other.trees) & set(CONTROLLERS) <= set(best.trees):
            best = other
    if best.version == 1 and len(found) > 1:
        for controller, why in found[0].reasons.items():
            best.reasons.setdefault(controller, why)
    return best


def name_of(home: bytes) -> bytes:
    """The name of the group that holds the groups of a state directory; unique on this machine."""
    try:
        status = os.stat(home)
    except OSError:
        return PREFIX + b"gone"
    return b"%b%d.%d" % (PREFIX, status.st_dev, status.st_ino)


# version, controllers, mount point, path of the process's group below it
_Mount = tuple[int, tuple[bytes, ...], bytes, bytes]


def _mounts(files: Files, proc: bytes) -> list[_Mount]:
    """The trees of groups that are mounted, with the group of a process in each."""
    own: dict[tuple[bytes, ...], bytes] = {}
    for line in (text(files, proc + b"/cgroup") or b"").splitlines():
        _, listed, path = line.split(b":", 2)
        own[tuple(listed.split(b",")) if listed else ()] = path
    found: list[_Mount] = []
    for line in (text(files, proc + b"/mountinfo") or b"").splitlines():
        before, _, after = line.partition(b" - ")
        kind, _, options = after.split(b" ", 2)
        if kind not in (b"cgroup", b"cgroup2"):
            continue
        root, point = before.split(b" ")[3:5]
        offered = set(options.rpartition(b" ")[2].split(b","))
        for names, path in own.items():
            is_this = not names if kind == b"cgroup2" else bool(names) and offered >= set(names)
            if is_this and (path + b"/").startswith(root.rstrip(b"/") + b"/"):
                within = path[len(root.rstrip(b"/")) :].rstrip(b"/")
                found.append((2 if kind == b"cgroup2" else 1, names, _unescaped(point), within))
    return found


def _unescaped(path: bytes) -> bytes:
    """A path of mountinfo, where blanks and the like are octal numbers."""
    first, *parts = path.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts)


def _find_v1(name: bytes, mounts: list[_Mount], files: Files) -> Groups:
    groups = Groups(1, files)
    for controller in ALL_V1:
        folder = next(
            (point + own for kind, names, point, own in mounts if kind == 1 and controller in names), None
        )
        if folder is None:
            groups.reasons[controller] = f"cgroup v1 has no tree of {controller.decode()} here"
        elif not files.may_write(folder):
            groups.reasons[controller] = f"{os.fsdecode(folder)} cannot be written"
        else:
            groups.trees[controller], groups.own[controller] = folder + b"/" + name, folder
    return groups


def _find_v2(name: bytes, mounts: list[_Mount], files: Files) -> Groups:
    groups = Groups(2, files)
    mount = next(((point, own) for kind, _, point, own in mounts if kind == 2), None)
    if mount is None:
        groups.reasons = dict.fromkeys(CONTROLLERS, "cgroup v2 is not mounted")
        return groups
    point, within = mount
    groups.point = point
    own = point + within
    why = ""
    for base in dict.fromkeys(
        (point + b"/system.slice/vctl-jobs.service", own, own.rpartition(b"/")[0] or point)
    ):
        if not base.startswith(point) or not files.may_write(base):
            why = why or f"{os.fsdecode(own)} cannot be written: it was not delegated"
            continue
        if not _is_ours(base, point):
            why = f"{os.fsdecode(base)} belongs to systemd, which did not delegate it"
            continue
        groups.trees = {b"": base + b"/" + name}
        groups.own = {b"": own}
        there = (text(files, base + b"/cgroup.controllers") or b"").split()
        for controller in CONTROLLERS:
            if controller not in there:
                groups.reasons[controller] = f"{os.fsdecode(base)} has no controller {controller.decode()}"
            else:
                groups.trees[controller], groups.own[controller] = groups.trees[b""], own
        return groups
    groups.reasons = dict.fromkeys(CONTROLLERS, why)
    return groups


def _is_ours(base: bytes, point: bytes) -> bool:
    """Whether groups may be made here: systemd, if it runs, marks what it has delegated."""
    if not os.path.isdir(_SYSTEMD):
        return True
    while base.startswith(point):
        for mark in _DELEGATED:
            try:
                if os.getxattr(base, mark) == b"1":
                    return True
            except OSError:
                continue
        base = base.rpartition(b"/")[0]
    return False


# ---- what others left ----


def bases(home: bytes, files: Files = FILES) -> list[Groups]:
    """Everything under the name of a state directory, wherever the supervisors lived that made it."""
    name = name_of(home)
    found: list[Groups] = []
    for version, names, point, _ in _mounts(files, b"/proc/self"):
        for folder in _named(files, point, name):
            groups = Groups(version, files)
            groups.trees = dict.fromkeys(names or (b"",), folder)
            found.append(groups)
    return found


def _named(files: Files, top: bytes, name: bytes) -> "Iterator[bytes]":
    for folder in files.below(top):
        if folder.endswith(b"/" + name):
            yield folder
        else:
            yield from _named(files, folder, name)


def left_by(name: bytes, found: "Iterable[Groups]") -> "list[RunGroup]":
    """The groups that the supervisor of a run did not remove."""
    left: list[RunGroup] = []
    for groups in found:
        for base in set(groups.trees.values()):
            for folder in tree(groups.files, base):
                if folder.endswith(b"/" + RUN + name):
                    group = groups.group(name, groups.trees)
                    group.folders = dict.fromkeys(groups.trees, folder)
                    left.append(group)
    return left


def clear(name: bytes, found: "list[Groups]") -> list[int]:
    """Kill what is left in the groups of a run, and remove them; the pids that are still there."""
    left = [pid for group in left_by(name, found) for pid in group.clear()]
    for groups in found:
        groups.sweep()
    return left


def step_out(home: bytes, files: Files = FILES) -> None:
    """Leave the group of a run: a scheduler that a command in it started serves other runs, too."""
    mark = b"/" + name_of(home)
    for version, _, point, own in _mounts(files, b"/proc/self"):
        outside, inside, _ = (own + b"/").partition(mark + b"/")
        if inside:
            leaf = point + outside + b"/" + LEAF
            if version == 1 or not quietly(files.write, leaf + b"/cgroup.procs", b"0"):
                quietly(files.write, point + outside + b"/cgroup.procs", b"0")
