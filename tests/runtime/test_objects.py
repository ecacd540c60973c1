"""Files of objects: measured, sealed, brought to other nodes and removed without ever following a link."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.runtime import objects, trees
from vctl.runtime.objects import Unusable

pytestmark = spec("10.objects", "17.private")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return made(tmp_path, "n1")


def made(home: Path, node_id: str) -> Path:
    found = objects.folder_path(home, 7, 2, node_id)
    objects.make(found)
    return found


def tree(place: Path, name: str) -> Path:
    """1 + 2 bytes in files, a link out of the tree, and a link in it to a directory."""
    top = place / name
    (top / "inner").mkdir(parents=True)
    (top / "a").write_text("a")
    (top / "inner" / "b").write_text("bb")
    (top / "out").symlink_to("/etc/passwd")
    (top / "up").symlink_to("/etc")
    return top


def test_only_the_owner_may_look_into_them(tmp_path: Path, place: Path) -> None:
    assert place == tmp_path / "objects" / "7.2.n1"
    for folder in (place, place.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_sizes(place: Path) -> None:
    (place / "file").write_bytes(b"x" * 1000)
    (place / "empty").touch()
    tree(place, "tree")
    assert [objects.size_of(place, name) for name in ("file", "empty", "tree")] == [1000, 0, 3]


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "there is no x"),
    "a link to a file": (lambda path: path.symlink_to("/etc/passwd"), "a symbolic link"),
    "a link to a directory": (lambda path: path.symlink_to("/etc"), "a symbolic link"),
    "a pipe": (os.mkfifo, "a special file"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_what_is_no_object(place: Path, tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(place / "x")
    other = made(tmp_path, "n2")
    for act in (objects.size_of, objects.seal, lambda p, n: objects.bring(p, other, n)):
        with pytest.raises(Unusable, match=words):
            act(place, "x")
    assert not objects.is_there(place, "x")
    assert list(other.iterdir()) == []


def test_a_directory_that_became_a_link_is_not_entered(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("secret")
    place.rmdir()
    place.symlink_to(elsewhere)
    with pytest.raises(Unusable):
        objects.size_of(place, "x")
    objects.make(place)  # what stands in the way is removed, not what it points to
    assert not place.is_symlink()
    assert list(place.iterdir()) == []
    assert (elsewhere / "x").read_text() == "secret"


def test_sealed_files_cannot_be_written(place: Path) -> None:
    (place / "file").write_text("x")
    top = tree(place, "tree")
    for name in ("file", "tree"):
        objects.seal(place, name)
    assert [path.stat().st_mode & 0o222 for path in (place / "file", top / "a", top / "inner" / "b")] == [
        0,
        0,
        0,
    ]
    assert Path("/etc/passwd").stat().st_mode & 0o200  # a link was not followed


def test_a_file_with_another_name_elsewhere_is_left_as_it_is(place: Path, tmp_path: Path) -> None:
    mine = tmp_path / "data"
    mine.write_text("x")
    (place / "file").hardlink_to(mine)
    objects.seal(place, "file")
    assert mine.stat().st_mode & 0o200


def test_what_is_brought_is_the_same(place: Path, tmp_path: Path) -> None:
    (place / "file").write_text("x")
    tree(place, "tree")
    other = made(tmp_path, "n2")
    for name in ("file", "tree"):
        objects.bring(place, other, name)
    assert (other / "file").samefile(place / "file")  # no bytes are copied where links will do
    assert (other / "tree" / "inner" / "b").read_text() == "bb"
    assert os.readlink(other / "tree" / "out") == "/etc/passwd"
    assert os.readlink(other / "tree" / "up") == "/etc"
    assert [one for one in os.listdir(other) if one.startswith(".incoming")] == []


def test_it_takes_the_place_of_what_is_no_object(place: Path, tmp_path: Path) -> None:
    """A file that the job wrote there by itself is not what another node has under that name."""
    (place / "x").write_text("right")
    other = made(tmp_path, "n2")
    (other / "x").write_text("wrong")
    objects.bring(place, other, "x")
    assert (other / "x").read_text() == "right"


def test_it_is_brought_once(place: Path, tmp_path: Path) -> None:
    """Somebody may be reading what is there."""
    top = tree(place, "tree")
    other = made(tmp_path, "n2")
    objects.bring(place, other, "tree")
    inode = (other / "tree").stat().st_ino
    objects.bring(place, other, "tree")
    assert (other / "tree").stat().st_ino == inode
    objects.clear(other, "tree")
    (top / "late").write_text("x")
    objects.bring(place, other, "tree")
    assert (other / "tree" / "late").exists()


def test_without_links_it_is_copied(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links here")

    (place / "file").write_bytes(b"x" * 3_000_000)
    other = made(tmp_path, "n2")
    monkeypatch.setattr(os, "link", no_links)
    objects.bring(place, other, "file")
    assert (other / "file").read_bytes() == b"x" * 3_000_000
    assert not (other / "file").samefile(place / "file")


def test_removing_follows_no_link(tmp_path: Path, place: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "x").touch()
    (place / "to-a-directory").symlink_to(precious)
    (tree(place, "tree") / "deep").symlink_to(precious)
    objects.clear(place, "to-a-directory")
    objects.remove(tmp_path, 7, 2, "n1")
    assert list((tmp_path / "objects").iterdir()) == []
    other = objects.folder_path(tmp_path, 8, 1, "n1")
    other.symlink_to(precious)
    objects.remove(tmp_path, 8, 1, "n1")
    assert not other.is_symlink()
    assert (precious / "x").exists()


def test_removing_what_was_made_read_only(place: Path, tmp_path: Path) -> None:
    top = tree(place, "tree")
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o500)
    (top / "inner" / "away").symlink_to(precious)
    for folder in (top / "inner", top, place):
        folder.chmod(0o500)
    objects.remove(tmp_path, 7, 2, "n1")
    assert not place.exists()
    assert precious.stat().st_mode & 0o777 == 0o500


def nest(folder: Path, depth: int) -> None:
    """Directories within each other, deeper than a path can say."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_directories_nested_deeper_than_any_stack(place: Path, tmp_path: Path) -> None:
    (place / "deep").mkdir()
    nest(place / "deep", 1100)
    (place / "fair").mkdir()
    nest(place / "fair", trees.MAX_DEPTH - 1)
    other = made(tmp_path, "n2")
    assert objects.size_of(place, "fair") == 0
    objects.bring(place, other, "fair")
    for act in (objects.size_of, objects.seal, lambda p, n: objects.bring(p, other, n)):
        with pytest.raises(Unusable, match="more than 100 directories"):
            act(place, "deep")
    assert sorted(os.listdir(other)) == [".brought-fair", "fair"]
    objects.remove(tmp_path, 7, 2, "n1")
    assert not place.exists()


def test_a_full_place_is_removed_with_few_open_files(place: Path, tmp_path: Path) -> None:
    for number in range(300):
        (place / f"d{number}" / "inner").mkdir(parents=True)
        (place / f"d{number}" / "inner" / "f").touch()
    nest(place / "d7", 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
    try:
        objects.remove(tmp_path, 7, 2, "n1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not place.exists()


def test_what_claims_more_bytes_than_can_be_added_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_SIZE", 10)
    (place / "tree").mkdir()
    for name in ("a", "b"):
        (place / "tree" / name).write_text("sixsix")
    with pytest.raises(Unusable, match="claims 12 bytes"):
        objects.size_of(place, "tree")


def test_a_place_that_was_shut_is_opened_again(place: Path) -> None:
    place.chmod(0)
    objects.make(place)
    assert place.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A home of a user whom modes bind: root reads everything, so root is somebody else meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        if is_root := os.geteuid() == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)


def test_what_cannot_be_read_is_no_object(somebody: Path) -> None:
    place = made(somebody, "n1")
    (place / "x" / "shut").mkdir(parents=True)
    for folder in (place / "x" / "shut", place / "x", place):
        folder.chmod(0)
        for act in (objects.size_of, objects.seal):
            with pytest.raises(Unusable, match="Permission denied"):
                act(place, "x")
        folder.chmod(0o700)


def test_one_node_of_several(tmp_path: Path, place: Path) -> None:
    other = made(tmp_path, "n2")
    objects.remove(tmp_path, 7, 2, "n1")
    assert (place.exists(), other.exists()) == (False, True)
    objects.remove(tmp_path, 7, 2, "n1")  # again: nothing happens


def test_which_folders_there_are(tmp_path: Path) -> None:
    assert list(objects.folders(tmp_path)) == []
    for job_id, attempt in ((7, 1), (12, 3)):
        objects.make(objects.folder_path(tmp_path, job_id, attempt, "n1"))
    (tmp_path / "objects" / "somebody's").touch()
    assert sorted(objects.folders(tmp_path)) == [(7, 1, "n1"), (12, 3, "n1")]


def test_an_empty_directory_is_used_again_and_no_other(tmp_path: Path) -> None:
    def folder(job_id: int) -> Path:
        return objects.folder_path(tmp_path, job_id, 1, "n")

    for job_id in (1, 2, 3, 4):
        objects.make(folder(job_id))
    (folder(2) / "left").write_text("mine")
    folder(3).chmod(0o755)
    first = folder(1).stat().st_ino
    for job_id in (1, 2, 3):
        objects.let_go(tmp_path, job_id, 1, "n")
    assert list(objects.folders(tmp_path)) == [(4, 1, "n")]
    for job_id in (5, 6):
        objects.make(folder(job_id))
        assert (os.listdir(folder(job_id)), folder(job_id).stat().st_mode & 0o777) == ([], 0o700)
    assert folder(5).stat().st_ino == first
    (folder(5) / "kept").write_text("x")
    objects.make(folder(5))
    assert os.listdir(folder(5)) == ["kept"], "made again: what is there stays"
    objects.tidy(tmp_path)
    assert sorted(os.listdir(tmp_path / "objects")) == ["4.1.n", "5.1.n", "6.1.n"]


def test_a_directory_in_which_something_appears_late_is_given_to_nobody(tmp_path: Path) -> None:
    for job_id in (1, 2):
        objects.make(objects.folder_path(tmp_path, job_id, 1, "n"))
        objects.let_go(tmp_path, job_id, 1, "n")
    objects.tidy(tmp_path)
    (objects.folder_path(tmp_path, 2, 1, "n") / "late").touch()
    objects.make(objects.folder_path(tmp_path, 3, 1, "n"))
    assert list(objects.folder_path(tmp_path, 3, 1, "n").iterdir()) == []
    objects.tidy(tmp_path)
    assert os.listdir(tmp_path / "objects") == ["3.1.n"]


@pytest.mark.parametrize("left", [(), ("file",)])
def test_a_directory_that_was_let_go_and_is_made_again_is_nobody_elses(
    tmp_path: Path, place: Path, left: tuple[str, ...]
) -> None:
    for name in left:
        (place / name).touch()
    objects.let_go(tmp_path, 7, 2, "n1")
    if left:
        objects.make(objects.folder_path(tmp_path, 8, 1, "n1"))  # has passed it over
    objects.make(place)
    objects.make(objects.folder_path(tmp_path, 9, 1, "n1"))
    objects.tidy(tmp_path)
    assert place.is_dir()
    assert os.listdir(place) == list(left)


def test_as_many_directories_are_kept_as_were_in_use(tmp_path: Path) -> None:
    """spec 18: on 64 slots a job makes no directory either; a scheduler that comes later finds those kept."""

    def folder(job_id: int) -> Path:
        return objects.folder_path(tmp_path, job_id, 1, "n")

    for job_id in range(64):
        objects.make(folder(job_id))
    made = {folder(job_id).stat().st_ino for job_id in range(64)}
    for job_id in range(64):
        objects.let_go(tmp_path, job_id, 1, "n")
    objects._known.clear()  # as another process knows it
    for one in objects.folders(tmp_path):
        objects.let_go(tmp_path, *one)
    objects.tidy(tmp_path)
    for job_id in range(100, 164):
        objects.make(folder(job_id))
    assert {folder(job_id).stat().st_ino for job_id in range(100, 164)} == made


def test_few_directories_are_kept_that_nobody_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_MAX_SPARES", 2)
    for job_id in range(5):
        objects.make(objects.folder_path(tmp_path, job_id, 1, "n"))
    for job_id in range(5):
        objects.let_go(tmp_path, job_id, 1, "n")
    objects.tidy(tmp_path)
    assert sorted(os.listdir(tmp_path / "objects")) == ["3.1.n", "4.1.n"]
