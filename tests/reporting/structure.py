"""``python -m tests.reporting.structure``: the figures of the source, held to the limits that pyproject.toml names.

Lengths are in lines; a function's is that of its body without its docstring. Migrations are left out: they are history.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median
from typing import Any, Final

PACKAGES: Final[Mapping[str, str]] = {
    "core": "core/cachefleet_core",
    "runtime": "runtime/cachefleet_runtime",
    "control plane": "controlplane/cachefleet_controlplane",
    "agent": "worker/cachefleet_worker/agent",
    "plugin": "worker/cachefleet_worker/plugin",
    "operator": "operator/cachefleet_operator",
    "local": "local/cachefleet_local",
}
_SIGN: Final = "__init__.py"
_BROAD: Final = frozenset({"Exception", "BaseException"})
_OURS: Final = "cachefleet_"
_OF_API: Final = "Schema"
"""Base of classes whose names are those of the admin API's documents."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of the source."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def imports(self) -> int:
        """Modules of ours that it imports from."""
        return len({name for name in _imported(self) if name.startswith(_OURS)})

    @property
    def classes(self) -> list[str]:
        """Names of its public classes, but for those that the admin API has named."""
        found = [node for node in self.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        return [node.name for node in found if _OF_API not in {name for base in node.bases for name in _names(base)}]

    def public(self) -> Iterator[Function | ast.ClassDef]:
        """Functions, methods and classes of the module that others may name."""
        return _public(self.tree)

    def broad_excepts(self) -> Iterator[ast.ExceptHandler]:
        """Handlers of everything that end there, and do not raise it again."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ExceptHandler) and _names(node.type) & _BROAD and not _raises(node):
                yield node

    def has_reason(self, handler: ast.ExceptHandler) -> bool:
        """Whether a comment says why, beside the ``except`` or as the first line under it."""
        return any("#" in line for line in self.text.splitlines()[handler.lineno - 1 : handler.lineno + 1])


@dataclass(frozen=True)
class Package:
    """The modules of one package, or of all of them."""

    name: str
    modules: Sequence[Module]

    @cached_property
    def function_lengths(self) -> list[int]:
        return sorted(_length(function) for module in self.modules for function in module.functions)

    @cached_property
    def module_lengths(self) -> list[int]:
        return sorted(module.lines for module in self.modules if module.path.name != _SIGN)

    @property
    def most_imports(self) -> int:
        """Modules of ours that one module imports from, at most."""
        return max(module.imports for module in self.modules if module.path.name != _SIGN)

    @property
    def most_parameters(self) -> int:
        """Parameters of one function, at most."""
        return max(_parameters(function) for module in self.modules for function in module.functions)

    @property
    def fullest_folder(self) -> tuple[int, str]:
        """Files, door sign aside, and where."""
        counted = Counter(str(module.folder) for module in self.modules if module.path.name != _SIGN)
        return max((count, folder) for folder, count in counted.items())

    @property
    def documented(self) -> float:
        """Part of what is public that has a docstring."""
        told = [ast.get_docstring(node) is not None for module in self.modules for node in module.public()]
        return sum(told) / max(1, len(told))

    @property
    def broad(self) -> list[tuple[Module, ast.ExceptHandler]]:
        return [(module, handler) for module in self.modules for handler in module.broad_excepts()]


@dataclass
class Findings:
    """What crosses a limit, one line each."""

    limits: Mapping[str, Any]
    lines: list[str] = field(default_factory=list)

    def most(self, name: str, value: float, what: str) -> None:
        """``value`` may be as large as the limit ``name``."""
        if value > self.limits[name]:
            self.lines.append(f"{what}: {value:g}, at most {self.limits[name]} ({name})")


def read_package(name: str, folder: Path) -> Package:
    """All modules below a folder."""
    files = sorted(path for path in folder.rglob("*.py") if "migrations" not in path.parts)
    return Package(name, [Module(path, path.read_text()) for path in files])


def findings(packages: Sequence[Package], limits: Mapping[str, Any]) -> list[str]:
    """Every limit that is crossed, by the whole source or by one place in it."""
    whole = Package("all", [module for package in packages for module in package.modules])
    found = Findings(limits)
    found.most("function_median", median(whole.function_lengths), "median of functions")
    found.most("function_p90", _p90(whole.function_lengths), "nine of ten functions")
    found.most("broad_excepts", len(whole.broad), "broad excepts")
    least, most = limits["module_median"]
    if not least <= median(whole.module_lengths) <= most:
        found.lines.append(f"median of modules: {median(whole.module_lengths):g}, from {least} to {most}")
    if whole.documented < limits["documented"]:
        found.lines.append(f"public docstrings: {whole.documented:.1%}, at least {limits['documented']:.0%}")
    for module in whole.modules:
        _judge(module, found)
    for package in packages:
        count, folder = package.fullest_folder
        found.most("folder_files", count, f"files in {folder}")
        found.lines += [f"{package.name} has several files called {name}" for name in _repeated(package)]
        found.lines += [f"{package.name} has several classes called {name}" for name in _named_again(package)]
        found.lines += _cycle(package)
        found.lines += _unlisted(package)
    return found.lines


def _judge(module: Module, found: Findings) -> None:
    found.most("module_longest", module.lines, str(module.path))
    if not _is_sign(module):
        found.most("module_imports", module.imports, f"modules of ours that {module.path} imports from")
    for function in module.functions:
        where = f"{module.path}:{function.lineno} {function.name}"
        found.most("parameters", _parameters(function), f"parameters of {where}")
        found.most("function_longest", _length(function), where)
    for handler in module.broad_excepts():
        if not module.has_reason(handler):
            found.lines.append(f"{module.path}:{handler.lineno}: a broad except without its reason")


def _repeated(package: Package) -> list[str]:
    counted = Counter(module.path.name for module in package.modules)
    return sorted(name for name, count in counted.items() if count > 1 and not name.startswith("__"))


def _named_again(package: Package) -> list[str]:
    counted = Counter(name for module in package.modules for name in module.classes)
    return sorted(name for name, count in counted.items() if count > 1)


def _parameters(function: Function) -> int:
    """How many there are, but for ``self`` and ``cls``."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _unlisted(package: Package) -> Iterator[str]:
    """A line for each file that its folder's ``__init__.py`` has no line for."""
    signs = {module.folder: ast.get_docstring(module.tree) or "" for module in package.modules if _is_sign(module)}
    for module in package.modules:
        listed = {line.split(maxsplit=1)[0] for line in signs.get(module.folder, "").splitlines() if line}
        if not _is_sign(module) and module.path.stem not in listed:
            yield f"{module.folder / _SIGN} has no line for {module.path.stem}"


def _is_sign(module: Module) -> bool:
    return module.path.name == _SIGN


def _cycle(package: Package) -> list[str]:
    """A line for the first cycle of imports between folders; files beside folders count as folders of their own."""
    names = {_dotted(module.path): module for module in package.modules}
    crowded = {folder.parent for folder in {module.folder for module in package.modules}}
    rooms = {name: name if module.folder in crowded else _dotted(module.folder) for name, module in names.items()}
    imports: dict[str, set[str]] = defaultdict(set)
    for name, module in names.items():
        imports[rooms[name]] |= {rooms[target] for target in _imports(module) if target in rooms} - {rooms[name]}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return [f"imports go round: {' -> '.join(error.args[1])}"]
    return []


def _imported(module: Module) -> Iterator[str]:
    """The modules, or packages, that it imports names from."""
    return (node.module for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.module)


def _imports(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:])


def _public(node: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from _public(child)


def _names(kind: ast.expr | None) -> set[str]:
    return {"BaseException"} if kind is None else {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def _length(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _p90(lengths: Sequence[int]) -> int:
    return lengths[int(0.9 * len(lengths))]


_COLUMNS: Final = (
    "modules  lines  median  most  imports  functions  median  p90  most  parameters  files/folder  broad  documented"
)


def table(packages: Sequence[Package]) -> str:
    """The figures, a row for each package and one for all."""
    rows = [f"{'':14}{_COLUMNS}"]
    for each in [*packages, Package("all", [module for package in packages for module in package.modules])]:
        modules, functions = each.module_lengths, each.function_lengths
        rows.append(
            f"{each.name:14}{len(modules):7} {sum(modules):6} {median(modules):7g} {modules[-1]:5}"
            f" {each.most_imports:8} {len(functions):10} {median(functions):7g} {_p90(functions):4} {functions[-1]:5}"
            f" {each.most_parameters:11} {each.fullest_folder[0]:13}"
            f" {len(each.broad):6} {each.documented:11.1%}"
        )
    return "\n".join(rows)


def main() -> int:
    """Print the figures; 1 where a limit is crossed."""
    limits = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["cachefleet"]["structure"]
    packages = [read_package(name, Path(folder)) for name, folder in PACKAGES.items()]
    found = findings(packages, limits)
    sys.stdout.write("\n".join([table(packages), *found, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
