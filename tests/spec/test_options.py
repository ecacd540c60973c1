"""Small values of options."""

from __future__ import annotations

import signal
from datetime import datetime

import pytest

from tests.specification import spec
from vctl.errors import BadSpec
from vctl.spec import options as o

pytestmark = spec("13.errors", "13.settings")


def test_environment():
    assert o.parse_env(["A=1", "B=", "C=x=y", "A=2"]) == {"A": "2", "B": "", "C": "x=y"}
    assert o.parse_env(["PATH"], inherited={"PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("item", ["", "=1", "A", "A B=1", "A=\0", "A\n=1", " A=1"])
def test_bad_environment(item):
    with pytest.raises(BadSpec, match=r"^--env: ") as caught:
        o.parse_env([item], inherited={})
    assert caught.value.fix


def test_env_file(tmp_path):
    path = tmp_path / "env"
    path.write_text(
        '# comment\n\nA=1\nexport B = two words  # why\nC=\'$x #\'\nD="a\\n\\"b\\"" # c\nE=\nF=a#b\r\nG=#\n'
    )
    assert o.read_env_file(str(path)) == {
        "A": "1",
        "B": "two words",
        "C": "$x #",
        "D": 'a\n"b"',
        "E": "",
        "F": "a#b",
        "G": "",
    }


@pytest.mark.parametrize("line", ["A", "=1", "A='x", 'A="x" y', "A B=1"])
def test_bad_env_lines_name_the_line(line):
    with pytest.raises(BadSpec, match=r"^\.env:2: ") as caught:
        o.parse_env_file(f"X=1\n{line}\n", ".env")
    assert caught.value.fix


def test_bad_env_files(tmp_path):
    (tmp_path / "bin").write_bytes(b"A=\xff")
    for name, problem in (("none", "No such file"), ("bin", "UTF-8")):
        with pytest.raises(BadSpec, match=problem):
            o.read_env_file(str(tmp_path / name))


def test_pairs_and_labels():
    assert o.parse_pairs(["team=a b", "x=1=2"], "--metadata") == {"team": "a b", "x": "1=2"}
    assert o.parse_label_pairs(["zone=a", "x.io/y="]) == {"zone": "a", "x.io/y": ""}
    for bad in ("a", "=1", "a\n=1"):
        with pytest.raises(BadSpec, match=r"^--metadata: "):
            o.parse_pairs([bad], "--metadata")
    with pytest.raises(BadSpec) as caught:
        o.parse_label_pairs(["zone=a b"])
    assert caught.value.details == {"path": "--label.zone"}


@pytest.mark.parametrize(
    ("text", "name", "before"),
    [("USR1@60", "USR1", 60), ("SIGUSR1@1m", "USR1", 60), ("term", "TERM", 60), ("10@5", "USR1", 5)],
)
def test_warning_signals(text, name, before):
    number = int(getattr(signal, f"SIG{name}"))
    assert o.parse_warning_signal(text) == o.WarningSignal(name, number, before)


@pytest.mark.parametrize("text", ["", "@60", "USR9@60", "USR1@", "USR1@x", "KILL@5", "999@5", "USR1@-1"])
def test_bad_warning_signals(text):
    with pytest.raises(BadSpec, match=r"^--signal: ") as caught:
        o.parse_warning_signal(text)
    assert caught.value.fix


def test_dependencies():
    assert o.parse_dependency("ok:a") == o.parse_dependency("a") == o.Dependency("ok", "a")
    assert o.parse_dependency("notok:last") == o.Dependency("notok", "last")
    for bad in ("", "ok:", "okay:a", "ok:a b", ":a"):
        with pytest.raises(BadSpec, match=r"^--after: "):
            o.parse_dependency(bad)


def test_arrays():
    for text, indices, shown, at_once in (
        ("0-99%8", range(100), "0-99", 8),
        ("3", [3], "3", None),
        ("0-9:3", range(0, 10, 3), "0-9:3", None),
        ("1,5,7-9%4", [1, 5, 7, 8, 9], "1,5,7-9", 4),
        ("7-9, 1,5", [1, 5, 7, 8, 9], "1,5,7-9", None),
        ("0-8:2,1-9:2", range(10), "0-9", None),
        ("0-4:2,10-14:2", [0, 2, 4, 10, 12, 14], "0-4:2,10-14:2", None),
    ):
        found = o.parse_array(text)
        assert list(found.indices) == list(indices), text
        assert (str(found.indices), len(found.indices), found.at_once) == (shown, len(indices), at_once)
        assert found.indices.last == max(indices)
        assert o.parse_array(shown).indices == found.indices, "a rerun reads it again"
        assert [n for n in range(120) if n in found.indices] == list(indices)
    for bad in (
        "", "a", "5-1", "0-9%0", "0-9:0", "-1", "0-999999999", "1-2-3", "0-9%", "1,,2", "1,", ",1", "1-5,3", "4,4",
        "1,2%3%4", "0-999999,1000000",
    ):  # fmt: skip
        with pytest.raises(BadSpec, match=r"^--array: ") as caught:
            o.parse_array(bad)
        assert caught.value.fix


def test_begin():
    assert o.parse_begin("now+1h", 1000) == o.parse_begin("1h", 1000) == o.parse_begin("+60m", 1000) == 4600
    assert o.parse_begin("now", 1000) == 1000
    assert o.parse_begin("now+1-00:00:00", 1000) == 87_400
    assert o.parse_begin("2030-01-31T08:00:00+00:00", 0) == 1_896_076_800
    assert o.parse_begin("2030-01-31T08:00:00Z", 0) == 1_896_076_800
    assert o.parse_begin("2030-01-31 08:00", 0) == datetime(2030, 1, 31, 8).timestamp()  # noqa: DTZ001 - local
    for bad in ("", "tomorrow", "2030-13-01", "now-1h", "25:00", "25:00:00", "16:0", "now+", "2030-02-30"):
        with pytest.raises(BadSpec, match=r"^--begin: "):
            o.parse_begin(bad, 0)


def at(*moment: int) -> float:
    return datetime(*moment).timestamp()  # type: ignore[arg-type]  # noqa: DTZ001 - local


@pytest.mark.parametrize("second", [0, 30])
def test_a_time_of_day_is_the_next_one_for_a_begin_and_the_last_one_for_a_since(second: int) -> None:
    """Spec 8, begin time: as in at and sbatch. With a sign or days it stays a duration."""
    now = at(2030, 1, 31, 12, 0, second)
    assert o.parse_begin("16:00", now) == at(2030, 1, 31, 16)
    assert o.parse_begin("9:30:15", now) == at(2030, 2, 1, 9, 30, 15)
    assert o.parse_since("16:00:00", now) == at(2030, 1, 30, 16)
    assert o.parse_since("09:30", now) == at(2030, 1, 31, 9, 30)
    assert o.parse_begin("+16:00:00", now) == o.parse_begin("now+16:00:00", now) == now + 16 * 3600
    assert o.parse_begin("1-00:00:00", now) == now + 86_400
    assert (o.parse_since("now", now), o.parse_since("1h ago", now)) == (now, now - 3600)
    for read in (o.parse_begin, o.parse_since):
        with pytest.raises(BadSpec, match='"24:30" is not a time of day') as reported:
            read("24:30", now)
        assert "16:00" in reported.value.fix


def test_a_word_for_a_time_is_told_what_a_time_is() -> None:
    """Spec 13: not of a duration alone."""
    for read in (o.parse_begin, o.parse_since):
        with pytest.raises(BadSpec) as reported:
            read("yesterday", 0)
        assert (reported.value.problem.partition(": ")[2], reported.value.fix[-16:]) == (
            '"yesterday" is not a time',
            "2030-01-31T08:00",
        )
