"""The rules of docs/architecture.md that a machine can check."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vctl"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] in ("core", "scheduler", "engine")]
VALUES = PACKAGE / "core/values.py"
LONGEST_MODULE = 600
TOP_LEVEL = {"pyproject.toml", "vctl", "tests", "completions", "docs", "README.md"}
MADE_BY_TOOLS = {"build", "dist", "vctl.egg-info", "__pycache__"}

TWICE = {
    "Local": "the place of a Python client is the local backend, with its waiting",
    "Remote": "the place of a Python client is the remote backend, with its waiting",
    "Task": "the value, and the handle of the Python API that stands for it",
    "Tasks": "all of them in the state, and in the Python API: the same tasks",
    "VirtualCluster": "the same cluster in the Python API and in the documents of ant-ray",
}
"""Names of two public classes, and why they mean the same thing to their reader."""

SQL = re.compile(
    r"\s*(SELECT|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|CREATE (TABLE|INDEX|VIEW)|PRAGMA)\b"
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
INPUT_AND_OUTPUT = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}


def in_package(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def nodes_of(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text_of(path)))


def tracked() -> list[Path]:
    """Files under version control (or all that no tool made, where there is no git), present ones only."""
    names: list[str] = []
    if shutil.which("git") and (ROOT / ".git").exists():
        asked = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
        listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
        names = listed.stdout.split("\0")[:-1]
    if not names:
        skipped = MADE_BY_TOOLS | {".git", ".venv"}
        names = [
            str(path.relative_to(ROOT))
            for top in ROOT.iterdir()
            if top.name not in skipped and not top.name.endswith("_cache")
            for path in ([top] if top.is_file() else top.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


def test_imports_point_downward():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_are_short():
    """One that is longer is split by concept."""
    lengths = {in_package(path): text_of(path).count("\n") for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_modules_start_with_what_they_are_responsible_for():
    silent = [path for path in MODULES if (text := text_of(path)) and not ast.get_docstring(ast.parse(text))]
    assert [in_package(path) for path in silent] == []


def test_every_package_will_be_installed():
    folders = {path.parent for path in MODULES}
    assert [in_package(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_nothing_is_left_to_do():
    written = [path for path in tracked() if path.suffix in (".py", ".md", ".toml", "")]
    left = [
        in_package(path) for path in written if path != Path(__file__) and UNFINISHED.search(text_of(path))
    ]
    assert left == []


def test_only_the_store_speaks_sql():
    found = []
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] == "store":
            continue
        for node in nodes_of(path):
            match node:
                case ast.Call(func=ast.Attribute(attr="execute" | "executemany" | "executescript")):
                    found.append(f"{in_package(path)}:{node.lineno} executes")
                case ast.Constant(value=str(text)) if SQL.match(text):
                    found.append(f"{in_package(path)}:{node.lineno} {text[:40]!r}")
    assert found == []


def test_core_scheduler_and_engine_do_no_input_or_output():
    called = {
        (in_package(path), node.func.id)
        for path in PURE
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    forbidden = {(path, name) for path, name in called if name in INPUT_AND_OUTPUT}
    assert forbidden == {(in_package(VALUES), "exec")}  # as dataclasses make their methods


def test_values_are_copied_by_the_module_that_makes_them():
    """At run time they are no dataclasses, though the type checker, which is told so, would take it."""
    imports = [
        (path, node) for path in MODULES for node in nodes_of(path) if isinstance(node, ast.ImportFrom)
    ]
    found = {
        in_package(path)
        for path, node in imports
        if node.module == "dataclasses" and not {one.name for one in node.names} <= {"dataclass", "field"}
    }
    assert found == {in_package(VALUES), "vctl/simulate/metrics.py"}  # whose figures are dataclasses


def test_the_top_level_holds_what_it_should():
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL


def test_no_file_names_a_package_registry_or_pins_a_resolution():
    hosts = re.compile(r"py[p]i\.(org|python)|python[h]osted\.org|index-url")  # brackets: not one itself
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml", "requirements.txt"}
    files = [path for path in tracked() if path != Path(__file__)]
    assert [in_package(path) for path in files if hosts.search(text_of(path))] == []
    assert [in_package(path) for path in files if path.name in locks] == []


def test_every_test_names_a_section_of_the_specification() -> None:
    """The rules of this page are the only ones that no section of the specification asks for."""
    silent = []
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        marked = any(
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "pytestmark"
            and "spec(" in ast.unparse(node.value)
            for node in ast.parse(text_of(path)).body
        )
        if not marked and path != Path(__file__):
            silent.append(in_package(path))
    assert silent == []


def imports_of(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules that a module imports anywhere: also inside functions, for types alone, and as ``ops.jobs``.

    A package that only lists its modules (``vctl.modules_of``) is what is used of it.
    """
    found = set()
    for node in nodes_of(path):
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case ast.ImportFrom(module=str(module), names=names):
                inside = {f"{module}.{one.name}" for one in names}
                found |= inside if inside <= modules.keys() else inside | {module}
            case ast.Attribute(value=ast.Name(id=package), attr=name) if package in LISTS:
                found.add(f"vctl.{package}.{name}")
    return {one for one in found if one in modules and one.removeprefix("vctl.") not in ("vctl", *LISTS)}


LISTS = ("cli", "engine", "operations", "ops", "spec")


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules of which each imports each, directly or not."""
    reached = {name: set(found) for name, found in imports.items()}
    pending = list(imports)
    users: dict[str, set[str]] = {}
    for name, found in imports.items():
        for one in found:
            users.setdefault(one, set()).add(name)
    while pending:
        name = pending.pop()
        for user in users.get(name, ()):
            if not reached[name] <= reached[user]:
                reached[user] |= reached[name]
                pending.append(user)
    found = {frozenset(one for one in reached[name] if name in reached[one]) for name in imports}
    return sorted((set(one) for one in found if len(one) > 1), key=min)


def test_there_is_no_import_circle():
    """Imports for types alone and imports inside functions count, too: these only point downward."""
    names = {str(path.relative_to(ROOT).with_suffix("")).replace("/", "."): path for path in MODULES}
    modules = {name.removesuffix(".__init__"): path for name, path in names.items()}
    found = circles({name: imports_of(path, modules) - {name} for name, path in modules.items()})
    assert [sorted(one) for one in found] == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d2"}, "d2": {"d"}}) == [
        {"b", "c"},
        {"d", "d2"},
    ]


def test_a_class_name_means_one_thing():
    """Whoever reads a name should not have to look which one it is. Private classes are read in their module alone."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(text_of(path)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(in_package(path))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE} == {}
