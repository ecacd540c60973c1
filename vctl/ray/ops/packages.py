"""Archives that clients upload for jobs (a working directory, Python modules): stored, unpacked for a job, removed.

An archive is kept for a day after its last use; the unpacked files of a job are kept for a day after its end.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from vctl.core.values import value
from vctl.errors import BadSpec, NotFound
from vctl.store import jobs as table
from vctl.store.store import Store

PROTOCOL = "gcs"
"""The name of the store in the URIs of Ray's clients."""
MAX_BYTES = 512 << 20
MAX_UNPACKED, MAX_FILES = 4 << 30, 50_000
MAX_CONTENTS = 16 << 20
"""The most bytes of the table of contents of a zip archive: 300 for each file."""
WHEEL = ".whl"
KEEP_S = 24 * 3600.0
YOUNG_S = 3600.0
"""Seconds for which the files of a job are kept in any case: a submit may still be unpacking them."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,180}\.(?:zip|whl|tar\.gz|tgz|tar\.xz)\Z")
_BLOCK = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError, NotImplementedError,
    ValueError,
)  # fmt: skip
"""The exceptions of archive readers for damaged, encrypted and unknown archives."""


@value(frozen=True, slots=True)
class JobFiles:
    """The unpacked files of one job."""

    root: Path
    working_dir: Path | None
    modules: tuple[Path, ...]
    wheels: tuple[Path, ...] = ()
    """Not unpacked: a private Ray installs them."""


def stored(home: Path, name: str, uid: int | None) -> Path:
    """The path of an archive, which may not exist. Raises BadSpec for an invalid name.

    ``uid``: the user of a shared service. Each has a store of his own: a client chooses the names, and who stored
    something else under the name of another's archive would run it as him.
    """
    if not _NAME.match(name):
        raise BadSpec(
            f"{name[:200]!r} is not the name of a package",
            fix="send an archive: .zip, .whl, .tar.gz, .tgz or .tar.xz",
        )
    folder = home / "packages"
    return (folder if uid is None else folder / str(uid)) / name


def exists(home: Path, name: str, uid: int | None) -> bool:
    """Whether an archive exists; this also counts as a use, which keeps the archive for another day."""
    try:
        os.utime(stored(home, name, uid))
    except FileNotFoundError:
        return False
    return True


class Upload:
    """An archive that is being uploaded."""

    def __init__(self, file: IO[bytes], coming: Path, path: Path) -> None:
        self._file, self._coming, self._path = file, coming, path
        self._size = 0

    def write(self, block: bytes) -> None:
        """Write the next bytes. Raises BadSpec when the archive is too large."""
        self._size += len(block)
        if self._size > MAX_BYTES:
            raise BadSpec(
                f"the package is larger than {MAX_BYTES >> 20} MiB",
                fix="leave large files out (.gitignore, .rayignore, or excludes), and read them from where they are",
            )
        self._file.write(block)

    def finish(self) -> None:
        """Store the archive durably. Raises BadSpec if it is not of the kind that its name says."""
        self._file.flush()
        os.fsync(self._file.fileno())
        with _refusing_damage(self._path.name), _opened(self._coming, self._path.name) as archive:
            _Budget().check(archive)
            self._coming.rename(self._path)


@contextmanager
def upload(home: Path, name: str, uid: int | None) -> Iterator[Upload]:
    """Receive an archive. ``finish`` stores it; without ``finish`` nothing of it is kept."""
    path = stored(home, name, uid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    coming = path.with_name(f".{name}.{secrets.token_hex(4)}")
    fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            yield Upload(file, coming, path)
    finally:
        coming.unlink(missing_ok=True)


@contextmanager
def unpacked(
    home: Path,
    job: str,
    uid: int | None,
    working_dir: str | None,
    modules: Sequence[str],
    wheels: Sequence[str] = (),
) -> Iterator[JobFiles]:
    """Unpack archives for a job into a directory of its own, which is removed if the block ends with an error."""
    root = home / "job-files" / f"{job}.{secrets.token_hex(4)}"
    _make(root)
    try:
        budget = _Budget()
        yield JobFiles(
            root,
            None
            if working_dir is None
            else _unpack(stored(home, working_dir, uid), root / "working_dir", budget),
            tuple(
                _unpack(stored(home, name, uid), root / f"py_modules_{number}", budget)
                for number, name in enumerate(modules)
            ),
            tuple(_copied(stored(home, name, uid), root / name) for name in wheels),
        )
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def sweep(store: Store) -> None:
    """Remove archives that were unused for a day, and the files of jobs that ended a day ago or were deleted."""
    now = time.time()
    folder = store.home / "packages"
    with suppress(FileNotFoundError):
        for part in (folder, *(path for path in folder.iterdir() if path.is_dir())):  # of users
            for path in _older(part, now - KEEP_S):
                if not path.is_dir():
                    path.unlink(missing_ok=True)
    if old := _older(store.home / "job-files", now - YOUNG_S):
        in_use = table.files_in_use(store, store.clock() - int(KEEP_S * 1e9))
        for path in old:
            if str(path) not in in_use:
                shutil.rmtree(path, ignore_errors=True)


def _older(folder: Path, limit: float) -> list[Path]:
    old = []
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < limit:
                    old.append(path)
    return old


# ---- unpacking ----


class _Entry(NamedTuple):
    name: str
    mode: int
    source: IO[bytes] | None
    """None: a directory."""
    size: int = 0
    """As the archive says."""


class _Budget:
    """The bytes and files that may still be unpacked for one job."""

    def __init__(self) -> None:
        self.size, self.files = MAX_UNPACKED, MAX_FILES

    def take(self, size: int = 0, files: int = 0) -> None:
        self.size -= size
        self.files -= files
        self._refuse(self.size, self.files)

    def check(self, archive: zipfile.ZipFile | tarfile.TarFile) -> None:
        """Refuse an archive by its table of contents, before anything is unpacked; a tar archive has none."""
        if isinstance(archive, zipfile.ZipFile):
            contents = archive.infolist()
            self._refuse(self.size - sum(entry.file_size for entry in contents), self.files - len(contents))

    def check_size(self, size: int) -> None:
        """Refuse an entry by its size, before it is unpacked."""
        self._refuse(self.size - size, self.files)

    @staticmethod
    def _refuse(size: int, files: int) -> None:
        if size < 0 or files < 0:
            raise too_large()


def too_large() -> BadSpec:
    """The error for packages that are too large when unpacked."""
    return BadSpec(
        f"unpacked, the packages of the job are larger than {MAX_UNPACKED >> 30} GiB or {MAX_FILES:,} files",
        fix="leave large files out, and read them from where they are",
    )


def _copied(path: Path, to: Path) -> Path:
    _use(path)
    shutil.copyfile(path, to)
    return to


def _use(path: Path) -> None:
    """Keep an archive for another day. Raises NotFound if there is none."""
    try:
        os.utime(path)
    except FileNotFoundError:
        raise NotFound(
            f"Package {PROTOCOL}://{path.name} does not exist",
            fix=f"upload it to /api/packages/{PROTOCOL}/{path.name}",
        ) from None


def _unpack(path: Path, into: Path, budget: _Budget) -> Path:
    _use(path)
    name = path.name
    into.mkdir(mode=0o700)
    with _refusing_damage(name), _opened(path, name) as archive:
        budget.check(archive)
        for entry in _zipped(archive) if isinstance(archive, zipfile.ZipFile) else _tarred(archive):
            _write(entry, into, budget)
    return into


@contextmanager
def _refusing_damage(name: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise BadSpec(f"package {name} cannot be unpacked: {error}", fix="make and upload it again") from None


class _ZipSource(io.FileIO):
    """The file of a zip archive: a table of contents that would fill the memory is not read."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, as ``zipfile`` reads the whole table at once."""
        if size is not None and size > MAX_CONTENTS:
            raise too_large()
        return super().read(size) or b""


@contextmanager
def _opened(path: Path, name: str) -> Iterator[zipfile.ZipFile | tarfile.TarFile]:
    """Open an archive as the kind that its name says."""
    if not name.endswith((".zip", WHEEL)):
        with tarfile.open(path) as packed:
            yield packed
        return
    with _ZipSource(path) as source, zipfile.ZipFile(source) as archive:
        yield archive


def _zipped(archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        kind = stat.S_IFMT(mode) or (stat.S_IFDIR if info.is_dir() else stat.S_IFREG)
        if kind == stat.S_IFDIR:
            yield _Entry(info.filename, mode, None)
            continue
        if kind != stat.S_IFREG:
            raise ValueError(f"{info.filename!r} is neither a file nor a directory")
        with archive.open(info) as source:
            yield _Entry(info.filename, mode, source, info.file_size)


def _tarred(archive: tarfile.TarFile) -> Iterator[_Entry]:
    for member in archive:
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name!r} is neither a file nor a directory")
        yield _Entry(member.name, member.mode, archive.extractfile(member), member.size)


def _write(entry: _Entry, into: Path, budget: _Budget) -> None:
    """Write one entry below ``into``. It cannot leave that directory, in which there are no links."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
        raise ValueError(f"{entry.name!r} points outside of it")
    budget.take(files=1)
    budget.check_size(entry.size)
    target = into / path
    try:
        if entry.source is None:
            _make(target)
            return
        _make(target.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(target, flags, 0o700 if entry.mode & stat.S_IXUSR else 0o600)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise ValueError(f"it has {entry.name!r} twice") from None
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise
        raise ValueError(f"{entry.name[:100]!r} is not a name of a file here") from None
    with os.fdopen(fd, "wb") as file:
        while block := entry.source.read(_BLOCK):
            budget.take(len(block))
            file.write(block)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700)
