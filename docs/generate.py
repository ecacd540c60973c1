"""Write the pages of docs/ that follow from the code: states.md, modules.md, specification.md and cli.md.

python docs/generate.py           writes them
python docs/generate.py --check   says which are out of date, exit code 1 when any is
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from vctl.engine.lifecycle import GONE, LIFECYCLES, Lifecycle

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "vctl"
TESTS = DOCS.parent / "tests"
NOTE = "<!-- Written by docs/generate.py; do not edit. -->"


def main(arguments: list[str]) -> int:
    stale = [name for name, page in PAGES.items() if not is_current(name, page())]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/{name} is out of date: run python docs/generate.py", file=sys.stderr)
        return bool(stale)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def is_current(name: str, text: str) -> bool:
    path = DOCS / name
    return path.exists() and path.read_text(encoding="utf-8") == text


def states() -> str:
    """The page of lifecycles."""
    parts = [NOTE, INTRODUCTION]
    for one in LIFECYCLES:
        parts += [f"## {one.name.capitalize()}", drawing(one)]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# Lifecycles

`vctl/engine/lifecycle.py` has these tables, and they are executed: an object moves only as they say. A job's states
are those of Ray's job API; why it is in its state is its reason ([queues](queues.md#reasons)). ENDING is RUNNING
to users: the entrypoint has ended, and what it started still ends. `gone`: the row is deleted."""


def drawing(lifecycle: Lifecycle) -> str:
    """The moves of a lifecycle as a table to read and a diagram."""
    moves = [
        (before, move, after)
        for move, (sources, targets) in lifecycle.moves.items()
        for before in sources
        for after in targets or (before,)
    ]
    rows = [f"| {before} | {move} | {after} |" for before, move, after in moves]
    arrows = [f"    [*] --> {first}" for first in lifecycle.begins]
    arrows += [
        f"    {before} --> {'[*]' if after == GONE else after}: {move}" for before, move, after in moves
    ]
    diagram = ["```mermaid", "stateDiagram-v2", *arrows, "```"]
    return "\n".join(["| in state | on move | becomes |", "| --- | --- | --- |", *rows, "", *diagram])


def modules() -> str:
    """The page that says, in each module's own first sentence, what it is for."""
    packages: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        packages.setdefault(path.parent.relative_to(PACKAGE.parent).as_posix(), []).append(path)
    parts = [
        NOTE,
        "# Modules",
        "",
        "What each module is for, in its own words. How they fit together: [architecture](architecture.md).",
    ]
    for package, paths in packages.items():
        said = [(path, purpose(path)) for path in paths]
        rows = [f"| [`{path.name}`](../{package}/{path.name}) | {words} |" for path, words in said if words]
        if rows:
            parts += ["", f"## {package}", "", "| module | purpose |", "| --- | --- |", *rows]
    return "\n".join(parts) + "\n"


def purpose(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line; empty for an empty module."""
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(words.split("\n\n")[0].split()).replace("|", "\\|")


def specification() -> str:
    """The page that says which tests hold up which section of the specification."""
    held: dict[str, dict[str, str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS).as_posix()
        for section in sections_of(ast.parse(path.read_text(encoding="utf-8"))):
            held.setdefault(section, {})[name] = f"[`{name}`](../tests/{name})"
    words = sections()
    unknown = sorted(held.keys() - words.keys())
    if unknown:
        raise SystemExit(f"not in tests/specification.py: {', '.join(unknown)}")
    rows = [
        f"| `{one}` | {text} | {', '.join(held.get(one, {}).values()) or '**none**'} |"
        for one, text in words.items()
    ]
    without = ", ".join(f"`{one}`" for one in words if one not in held) or "none"
    return (
        f"""{NOTE}
# Which tests hold up which section

Tests name sections of the specification: `@spec("7.delete")` at a test, `pytestmark = spec("7.delete")` for a module.
Sections without a test: {without}.

| section | rule | tests |
| --- | --- | --- |
"""
        + "\n".join(rows)
        + "\n"
    )


def sections() -> dict[str, str]:
    """The sections of tests/specification.py and their rules."""
    tree = ast.parse((TESTS / "specification.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECTIONS":
            return dict(ast.literal_eval(node.value))
    raise SystemExit("tests/specification.py has no SECTIONS")


def sections_of(tree: ast.AST) -> set[str]:
    """The sections that a module of tests names."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) in {"spec", "specification.spec"}]
    return {
        argument.value
        for mark in marks
        for argument in mark.args
        if isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and re.match(r"\d+\.", argument.value)
    }


def command_line() -> str:
    """The page of all commands."""
    from reference import reference

    return reference()


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": command_line,
    "states.md": states,
    "modules.md": modules,
    "specification.md": specification,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
