"""What ``vctl doctor`` notes about the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.ops import health

pytestmark = spec("16.local")


@pytest.mark.parametrize("is_writable", [True, False])
def test_limits_that_are_not_enforced_are_never_said_to_be(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    """Spec 16: doctor says which limits are in force, also where a cgroup could be used."""
    controllers = tmp_path / "cgroup.controllers"
    if is_writable:
        controllers.touch()
    monkeypatch.setattr(health, "CGROUP", controllers)
    (note,) = [one for one in health.doctor(ground.store)["notes"] if "cgroup" in one]
    assert note.endswith(": CPU limits are by affinity, memory limits are not enforced")


@spec("17.durable")
def test_a_full_disk_is_noted(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_files=9, f_favail=9))
    assert any("is full" in note for note in health.doctor(ground.store)["notes"])
