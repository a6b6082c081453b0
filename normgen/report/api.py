"""The public names of the packages, with their signatures and docstrings, for docs/api.md.

Everything is read from the source files, so that a package which needs torch or JAX is described without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from normgen.report.techniques import markdown_table
from normgen.spec.reader import load

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = ("normgen", "normgen.torch", "normgen.jax")
Definition = ast.FunctionDef | ast.ClassDef


def api_part(_: Path) -> str:
    """docs/api.md: a section of public names for each package that is installed."""
    return "\n".join(line for name in PACKAGES if _file(name).is_file() for line in _package(name)).rstrip() + "\n"


def public_names(package: str) -> list[str]:
    """What `__all__` lists by name."""
    (listed,) = (value for name, value in _assigned(package) if name == "__all__")
    assert isinstance(listed, ast.List)
    return [str(one.value) for one in listed.elts if isinstance(one, ast.Constant)]


def _package(package: str) -> Iterator[str]:
    tree = _tree(package)
    yield from (f"## {package}", "", *_fenced("text", ast.get_docstring(tree) or ""))
    origins = _origins(package)
    found = [(name, *_definition(origins[name], name)) for name in public_names(package)]
    for name, node, module in sorted(found, key=lambda one: not isinstance(one[1], ast.FunctionDef)):
        if node is not None and not _is_error(node):
            yield from _described(f"{package}.{name}", node, module)
    errors = [(f"`{name}`", _first(node), _exit_code(node)) for name, node, _ in found if node and _is_error(node)]
    if errors:
        yield from (f"### Errors of {package}", "", markdown_table(("error", "when", "exit code"), sorted(errors)))
    yield from _functions_of_specs(package)


def _described(title: str, node: Definition, module: str) -> Iterator[str]:
    yield from (f"### {title}", "")
    if isinstance(node, ast.FunctionDef):
        yield from _fenced("python", _signature(node, module))
    yield from _fenced("text", ast.get_docstring(node) or "")
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        told = isinstance(part, ast.FunctionDef) and (part.name == "__call__" or not part.name.startswith("_"))
        words = ast.get_docstring(part) if isinstance(part, ast.FunctionDef) else None
        if told and words and isinstance(part, ast.FunctionDef):
            yield from _fenced("python", _signature(part, module))
            yield from _fenced("text", words)


def _functions_of_specs(package: str) -> Iterator[str]:
    """The functions that a table of the package makes of specs."""
    for module in dict.fromkeys(_origins(package).values()):
        for name, value in _assigned(module):
            if name != "TABLE" or not isinstance(value, ast.Dict):
                continue
            rows: list[tuple[str, ...]] = []
            for key, row in zip(value.keys, value.values, strict=True):
                assert isinstance(key, ast.Constant)
                assert isinstance(row, ast.Call)
                spec = next(ast.literal_eval(word.value) for word in row.keywords if word.arg == "spec")
                rows.append((f"`{key.value!s}`", f"`{spec}`", load(spec).summary))
            head = ("function", "spec", "what it computes")
            yield from (f"### Functions of {package}", "", markdown_table(head, rows))


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _file(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _assigned(module: str) -> Iterator[tuple[str, ast.expr]]:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield target.id, node.value


def _origins(package: str) -> dict[str, str]:
    """The module that each imported name of a package comes from."""
    imports = (node for node in ast.walk(_tree(package)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def _definition(module: str, name: str) -> tuple[Definition | None, str]:
    """A function or class of that name and its module: this one, or one that it takes the name from."""
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node, module
    origin = _origins(module).get(name)
    return _definition(origin, name) if origin else (None, module)


def _is_error(node: Definition | None) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.endswith("Error")


def _first(node: Definition) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _exit_code(node: Definition) -> str:
    """That of an error class, or of the base that states it."""
    for part in node.body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "exit_code":
            return ast.unparse(part.value)
    base = node.bases[0] if isinstance(node, ast.ClassDef) and node.bases else None
    above = _definition("normgen.errors", ast.unparse(base))[0] if base is not None else None
    return _exit_code(above) if above else ""


def _signature(node: ast.FunctionDef, module: str) -> str:
    """The lines of a definition up to its body, as they stand in the file."""
    lines = _file(module).read_text(encoding="utf-8").splitlines()
    shown = lines[node.lineno - 1 : node.body[0].lineno - 1]
    return "\n".join(line[node.col_offset :] for line in shown).removesuffix(":")


def _fenced(language: str, text: str) -> list[str]:
    return [f"```{language}", text.strip("\n"), "```", ""] if text else []
