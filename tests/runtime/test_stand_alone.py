"""Scripts of processes that outlive the scheduler start without the package: they load single modules beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import vctl
from tests.specification import spec

pytestmark = spec("16.local")

ROOT = Path(vctl.__file__).parent
FOLDERS = (ROOT / "runtime", ROOT / "privileged", ROOT / "ray" / "private")


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """The modules that are loaded without the package: all but those in the first branch of ``if MYPY``."""
    for one in body:
        if isinstance(one, ast.If):
            guards = "MYPY" in ast.unparse(one.test) or "TYPE_CHECKING" in ast.unparse(one.test)
            yield from imported([*([] if guards else one.body), *one.orelse])
        elif isinstance(one, ast.Import):
            yield from (name.name for name in one.names)
        elif isinstance(one, ast.ImportFrom):
            yield one.module or ""


def beside(name: str) -> Path | None:
    """The file of a module that a script finds in the folders that it searches."""
    return next((path for folder in FOLDERS if (path := folder / f"{name}.py").exists()), None)


def scripts() -> list[Path]:
    """Those that can be loaded without the package."""
    return sorted(
        path for folder in FOLDERS for path in folder.glob("*.py") if "__package__" in path.read_text()
    )


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.stem)
def test_what_a_script_loads_imports_nothing_of_the_package(script: Path) -> None:
    left, seen = [script], set[Path]()
    while left:
        path = left.pop()
        seen.add(path)
        names = list(imported(ast.parse(path.read_text()).body))
        assert not [name for name in names if name.split(".")[0] == "vctl"], path
        left += [found for name in names if (found := beside(name)) is not None and found not in seen]


def test_the_scripts_are_found() -> None:
    assert {"launcher", "supervisor", "ray_join"} <= {path.stem for path in scripts()}
