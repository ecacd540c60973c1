"""``vctl daemon --install-service`` and what a command line of a shared service refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.cli.service_units import ANCHOR, SERVICE, Installation, ServiceWords, units_of
from vctl.errors import VctlError

pytestmark = spec("19.service")
WORDS = ServiceWords("/var/lib/vctl", "/run/vctl/vctl.sock", "root-of-nobody")
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may install a service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    odd = ServiceWords('/srv/a "b" 100% $HOME', "/run/vctl/vctl.sock", "vctl")
    for words in (WORDS, odd):
        for name, text in units_of(words).items():
            (tmp_path / name).write_text(text)
        files = [str(tmp_path / name) for name in (SERVICE, ANCHOR)]
        done = subprocess.run(
            ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
        )
        said = [
            line for line in done.stderr.splitlines() if "DelegateSubgroup" not in line
        ]  # before systemd 254
        assert (done.returncode, said) == (0, [])


class Machine:
    """A machine with systemd, on paper."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder, list[Sequence[str]]()

    def installation(self, words: ServiceWords = WORDS) -> Installation:
        return Installation(words, folder=self.folder, execute=self.ran.append, has_systemd=True)


@is_root
def test_an_installation_is_done_once(tmp_path: Path) -> None:
    """The second one changes nothing; one with another socket starts the service again, and never the anchor."""
    machine = Machine(tmp_path)
    machine.installation().install()
    assert sorted(os.listdir(tmp_path)) == [ANCHOR, SERVICE]
    assert [words[:2] for words in machine.ran] == [
        ("useradd", "--system"), ("systemctl", "daemon-reload"), ("systemctl", "enable"), ("systemctl", "restart"),
    ]  # fmt: skip
    machine.ran.clear()
    machine.installation().install()
    assert ("systemctl", "restart", SERVICE) not in machine.ran
    machine.ran.clear()
    machine.installation(ServiceWords(WORDS.home, "/run/other.sock", WORDS.account)).install()
    assert ("systemctl", "restart", SERVICE) in machine.ran
    assert not any(words[1] == "restart" and ANCHOR in words for words in machine.ran)


@is_root
def test_an_uninstallation_leaves_the_state(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.installation().install()
    machine.ran.clear()
    removal = machine.installation()
    removal.uninstall()
    assert os.listdir(tmp_path) == []
    assert machine.ran == [("systemctl", "disable", "--now", SERVICE, ANCHOR), ("systemctl", "daemon-reload")]
    assert "kept the account" in removal.done[-1]
    again = machine.installation()
    again.uninstall()
    assert again.done == ["no service is installed"]


@is_root
def test_without_systemd_it_says_how_to_run_the_service(tmp_path: Path) -> None:
    with pytest.raises(VctlError) as refused:
        Installation(WORDS, folder=tmp_path, has_systemd=False).install()
    assert "setsid -f vctl daemon --shared --home /var/lib/vctl" in refused.value.fix
    assert os.listdir(tmp_path) == []


REFUSED = {
    "two modes": (["--shared", "--stop"], "--stop and --shared exclude each other"),
    "an account without a service": (
        ["--account", "vctl"],
        "--account: it means something only with --shared",
    ),
    "a socket without a service": (["--socket", "/run/x"], "--socket: it means something only with --shared"),
    "a dry run of nothing": (["--dry-run"], "--dry-run: it means something only with --install-service"),
    "an account that is not there": (["--shared", "--account", "nobody-has-it"], "there is no account"),
    "root as the account": (["--shared", "--account", "root"], "rights of root"),
}


@is_root
@pytest.mark.on_the_machine
@pytest.mark.parametrize(("words", "problem"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused(cli: Cli, words: list[str], problem: str) -> None:
    assert problem in cli("daemon", *words).err
