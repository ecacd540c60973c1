"""A setting that is given to one command, and that the running scheduler does not have, is said."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("13.settings")


def in_force(place: Place, **env: str) -> dict[str, Any]:
    items = place.run("config", "show", "-o", "json", **env).json["items"]
    return {item["name"]: (item["value"], item["in_force"]) for item in items}


SAID = (
    "Warning: log_max_bytes (VCTL_LOG_MAX_BYTES) is not in force: the running scheduler has 0, the default."
    " Restart it: `vctl daemon --stop`\n"
)


@pytest.mark.parametrize(
    "words",
    [("run", "--", "true"), ("run", "-d", "--", "true"), ("vc", "create", "lab")],
    ids=["waits", "detached", "vc"],
)
def test_a_command_says_what_the_running_scheduler_does_not_have(one: Place, words: tuple[str, ...]) -> None:
    one.daemon()
    assert one.run(*words, VCTL_LOG_MAX_BYTES="1000").err == SAID
    assert one.run("ps", VCTL_LOG_MAX_BYTES="1000").err == ""
    assert one.run("run", "--", "true").err == ""


PROGRAM = """
import vctl
client = vctl.connect()
client.jobs.list()
for _ in range(2):
    client.submit(["true"])  # line 6
"""


def test_a_program_is_warned_once_for_each_line_that_changes_something(one: Place) -> None:
    one.daemon()
    (script := one.folder / "program.py").write_text(PROGRAM)

    def said(*words: str, **env: str) -> tuple[int, str]:
        ran = subprocess.run(
            [sys.executable, *words, str(script)], env=one.environment(env), cwd=one.folder,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        return ran.returncode, ran.stderr

    text = SAID.removeprefix("Warning: ")
    code, warned = said(VCTL_LOG_MAX_BYTES="1000")
    assert (code, warned) == (0, f'{script}:6: UserWarning: {text}  client.submit(["true"])  # line 6\n')
    code, warned = said("-W", "error", VCTL_LOG_MAX_BYTES="1000")
    assert (code, len(one.jobs())) == (1, 2)
    assert warned.endswith(f"UserWarning: {text}")
    assert said() == (0, "")


def test_a_file_counts_as_well(one: Place) -> None:
    one.daemon()
    (one.folder / ".vctl.toml").write_text('reclaim_grace = "7s"\nprovider_timeout = 300\n')
    said = one.run("run", "--", "true").err
    assert said.startswith(f"Warning: reclaim_grace (file {one.folder}/.vctl.toml) is not in force: ")
    assert said.count("\n") == 1  # the other one is the same


def test_a_command_that_starts_the_scheduler_has_its_settings_in_force(one: Place) -> None:
    assert one.run("run", "--", "true", VCTL_LOG_MAX_BYTES="1000").err == ""
    assert one.run("run", "--", "true", VCTL_LOG_MAX_BYTES="1000").err == ""
    assert in_force(one)["log_max_bytes"] == (0, 1000)
    assert "0, the default" not in one.run("run", "--", "true").err


def test_config_show_has_a_column(one: Place) -> None:
    found = in_force(one, VCTL_RECLAIM_GRACE="7")
    assert found["reclaim_grace"] == (7, None)  # no scheduler runs
    assert found["kill_grace"] == (3, 3)  # each command has its own
    one.daemon()
    assert in_force(one, VCTL_RECLAIM_GRACE="7")["reclaim_grace"] == (7, 30)
    header, *rows = one.ok("config", "show").splitlines()
    assert header.split() == ["SETTING", "VALUE", "IN", "FORCE", "VARIABLE"]
    assert ["reclaim_grace", "30", "30", "VCTL_RECLAIM_GRACE"] in [row.split() for row in rows]


def test_config_show_makes_no_state(one: Place, tmp_path: Any) -> None:
    assert one.run("config", "show", VCTL_HOME=str(tmp_path / "none")).code == 0
    assert not (tmp_path / "none").exists()
