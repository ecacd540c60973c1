"""Where each name of a function leads, read from the source alone: what "go to definition" shows to a reader."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass
class Module:
    """A module: what its names are bound to, and its functions by qualified name."""

    name: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    """Name -> what it means elsewhere: ``vctl.ops.submitting`` or ``vctl.ops.submitting:write``."""
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


class Definitions:
    """All modules of vctl. A target is ``vctl.ops.submitting:write`` or ``vctl.store.store:Store.emit``."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        self._next: dict[str, list[str]] = {}
        self._known_fields: dict[str, dict[str, list[str]]] = {}
        for path in sorted((ROOT / "vctl").rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = Module(name, ast.parse(path.read_text(encoding="utf-8")))
        for module in self.modules.values():
            self._read(module)

    def _read(self, module: Module) -> None:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    module.names[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for one in node.names:
                    inner = f"{node.module}.{one.name}"
                    module.names[one.asname or one.name] = (
                        inner if inner in self.modules else f"{node.module}:{one.name}"
                    )
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                module.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                module.classes[node.name] = node
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        module.functions[f"{node.name}.{method.name}"] = method

    @cached_property
    def methods(self) -> dict[str, list[str]]:
        """The methods of each name."""
        found: dict[str, list[str]] = {}
        for module in self.modules.values():
            for name in module.functions:
                if "." in name:
                    found.setdefault(name.partition(".")[2], []).append(f"{module.name}:{name}")
        return found

    @cached_property
    def registered(self) -> dict[str, list[str]]:
        """A class or function -> the functions that a decorator registers for it: ``@writes(JobStarted)``."""
        found: dict[str, list[str]] = {}
        for module in self.modules.values():
            for name, function in module.functions.items():
                for one in function.decorator_list:
                    if not isinstance(one, ast.Call):
                        continue
                    for target in (one.func, *one.args):
                        for meant in self._meant(module, target):
                            found.setdefault(meant, []).append(f"{module.name}:{name}")
        return found

    def has(self, target: str) -> bool:
        """Whether there is such a function."""
        module, _, name = target.partition(":")
        return module in self.modules and name in self.modules[module].functions

    def _meant(self, module: Module, node: ast.AST) -> list[str]:
        """What an expression of names and dots means: a module, or objects of modules."""
        if isinstance(node, ast.Name):
            if node.id in module.functions or node.id in module.classes:
                return [f"{module.name}:{node.id}"]
            return [self._home(module.names[node.id])] if node.id in module.names else []
        if not isinstance(node, ast.Attribute):
            return []
        found = []
        for owner in self._meant(module, node.value):
            if ":" in owner:
                found.append(f"{owner}.{node.attr}")
            elif owner in self.modules and node.attr in self.modules[owner].names:
                found.append(self._home(self.modules[owner].names[node.attr]))
            elif (
                f"{owner}.{node.attr}" not in self.modules
            ):  # a module that its package does not list is not found
                found.append(self._home(f"{owner}:{node.attr}"))
        return found

    def _home(self, target: str) -> str:
        """The place where an object is defined, for one that other modules import from a third."""
        for _ in range(5):
            name, _, rest = target.partition(":")
            module = self.modules.get(name)
            if module is None or not rest or rest in module.functions or rest in module.classes:
                return target
            if rest not in module.names:
                return target
            target = module.names[rest]
        return target

    def are_between(self, starts: Iterable[str], goal: str) -> int:
        """How many functions a reader opens from the nearest of some functions to another one; raises if none leads."""
        seen = set(starts)
        edge = [one for one in seen if self.has(one)]
        for hops in range(len(self.modules)):
            if goal in seen:
                return hops
            if not (edge := list({two for one in edge for two in self._following(one)} - seen)):
                break
            seen.update(edge)
        raise LookupError(f"nothing leads to {goal}")

    def _following(self, target: str) -> list[str]:
        if (known := self._next.get(target)) is None:
            known = self._next[target] = [
                one for one in dict.fromkeys(self.leads_to(target)) if self.has(one)
            ]
        return known

    def leads_to(self, target: str) -> Iterator[str]:
        """The functions that the names of a function mean, and those that its classes and registrations stand for."""
        name, _, inner = target.partition(":")
        module = self.modules[name]
        function = module.functions[inner]
        own = inner.partition(".")[0] if "." in inner else ""
        local = self._locals(module, own, function)
        written = [function.args, *function.body]  # not its decorators
        for node in (inner for part in written for inner in ast.walk(part)):
            if isinstance(node, ast.Name | ast.Attribute):
                yield from self._stands_for(self._meant(module, node))
            if isinstance(node, ast.Attribute):
                for kind in self._kinds(module, own, local, node.value):
                    yield from self._member(kind, node.attr)
                if len(found := self.methods.get(node.attr, [])) == 1:  # a reader finds it by its name alone
                    yield from found
        yield from self.registered.get(target, ())

    def _member(self, kind: str, name: str) -> Iterator[str]:
        """A method of a class, or of the first class above it that has one."""
        for one in self._line(kind):
            if self.has(f"{one}.{name}"):
                yield f"{one}.{name}"
                return

    def _line(self, kind: str) -> Iterator[str]:
        """A class and those above it."""
        module, _, name = kind.partition(":")
        if module in self.modules and (made := self.modules[module].classes.get(name)) is not None:
            yield kind
            for base in made.bases:
                for above in self._classes(self.modules[module], base):
                    yield from self._line(above)

    def _classes(self, module: Module, annotation: ast.AST | None) -> list[str]:
        """The classes that an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.BinOp):
            return [*self._classes(module, annotation.left), *self._classes(module, annotation.right)]
        if isinstance(annotation, ast.Subscript):
            parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            return [one for part in (annotation.value, *parts) for one in self._classes(module, part)]
        if annotation is None:
            return []
        return [one for one in self._meant(module, annotation) if self._is_class(one)]

    def _is_class(self, target: str) -> bool:
        module, _, name = target.partition(":")
        return module in self.modules and name in self.modules[module].classes

    def _locals(self, module: Module, own: str, function: ast.AST) -> dict[str, list[str]]:
        """The classes of the parameters and variables of a function, as far as it says so."""
        found: dict[str, list[str]] = (
            {"self": [f"{module.name}:{own}"], "cls": [f"{module.name}:{own}"]} if own else {}
        )
        for node in ast.walk(function):
            if isinstance(node, ast.arg) and node.annotation is not None:
                found.setdefault(node.arg, []).extend(self._classes(module, node.annotation))
        for node in ast.walk(function):
            pairs: list[tuple[ast.AST, ast.AST]] = []
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.NamedExpr):
                pairs = [(node.target, node.value)]
            elif isinstance(node, ast.With):
                pairs = [
                    (one.optional_vars, one.context_expr)
                    for one in node.items
                    if one.optional_vars is not None
                ]
            elif isinstance(node, ast.For | ast.comprehension):
                pairs = [(node.target, node.iter)]
            for target, value in pairs:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).extend(self._kinds(module, own, found, value))
        return found

    def _kinds(
        self, module: Module, own: str, local: dict[str, list[str]], node: ast.AST | None
    ) -> list[str]:
        """The classes whose objects an expression may be, or may contain."""
        match node:
            case ast.Name(id=name):
                return local.get(name, [])
            case ast.Call(func=function):
                return self._made_by(module, own, local, function)
            case ast.Attribute(value=value, attr=name):
                owners = self._kinds(module, own, local, value)
                return [kind for owner in owners for kind in self._fields(owner).get(name, [])]
            case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item) | ast.Subscript(value=item):
                return self._kinds(module, own, local, item)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
                return [kind for one in parts for kind in self._kinds(module, own, local, one)]
            case ast.IfExp(body=body, orelse=other):
                return [kind for one in (body, other) for kind in self._kinds(module, own, local, one)]
        return []

    def _made_by(self, module: Module, own: str, local: dict[str, list[str]], function: ast.AST) -> list[str]:
        """The classes of what a call returns."""
        found: list[str] = []
        called = self._meant(module, function)
        if isinstance(function, ast.Attribute):
            owners = self._kinds(module, own, local, function.value)
            if function.attr in ("values", "items", "get", "pop"):
                found += owners
            called += (one for kind in owners for one in self._member(kind, function.attr))
        for one in called:
            name, _, inner = one.partition(":")
            if self._is_class(one):
                found.append(one)
            elif self.has(one):
                found += self._classes(self.modules[name], self.modules[name].functions[inner].returns)
        return found

    def _fields(self, kind: str) -> dict[str, list[str]]:
        """The classes of the fields and properties of a class."""
        if (known := self._known_fields.get(kind)) is not None:
            return known
        found = self._known_fields[kind] = {}
        for one in self._line(kind):
            module = self.modules[one.partition(":")[0]]
            name = one.partition(":")[2]
            for node in module.classes[name].body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.setdefault(node.target.id, []).extend(self._classes(module, node.annotation))
                if not isinstance(node, ast.FunctionDef):
                    continue
                found.setdefault(node.name, []).extend(self._classes(module, node.returns))
                local = self._locals(module, name, node)
                for inner in ast.walk(node):
                    for part, value, annotation in _assigned(inner):
                        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                            kinds = self._classes(module, annotation)
                            kinds += self._kinds(module, name, local, value)
                            found.setdefault(part.attr, []).extend(kinds)
        return found

    def _stands_for(self, meant: Iterable[str]) -> Iterator[str]:
        for one in meant:
            yield one
            yield from self.registered.get(one, ())
            name, _, inner = one.partition(":")
            if inner in getattr(self.modules.get(name), "classes", ()):
                yield from (f"{one}.{method}" for method in DISPATCHED)


Assigned = tuple[ast.AST, ast.AST | None, ast.AST | None]


def _assigned(node: ast.AST) -> Iterator[Assigned]:
    """The targets of an assignment with their values and annotations: ``a, b = c, d`` is two."""
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value, node.annotation
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value = node.value  # type: ignore[attr-defined]  # of an assignment
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from ((one, other, None) for one, other in zip(target.elts, value.elts, strict=False))
        else:
            yield target, value, None


DISPATCHED = ("__init__", "apply", "__call__", "__enter__")
"""Methods that are called for an object wherever it is handed."""
