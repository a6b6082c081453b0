"""A folder of Hugging Face's `kernels`: a layer that `kernelize` puts into models, built on TVM-FFI libraries.

The folder imports torch and tvm_ffi, and nothing of normgen. It has its libraries built, which takes a C++ compiler and
the headers of apache-tvm-ffi at the export.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from normgen.engines.source import ExportSource, require_one_arch
from normgen.engines.tvm_ffi import LibraryFunction, described, of_machine_code, template
from normgen.errors import CompileError, NoCompilerError, NothingValidError, UsageError, needed
from normgen.export.header import Halves
from normgen.export.proof import require_all
from normgen.files.shipped import VERSION
from normgen.problem.question import Direction

# In this order: with the roundings of transformers' RMSNorm, else rounded at the end alone.
SPECS = ("vllm_ir_rmsnorm", "rmsnorm")
NAME = "normgen-rmsnorm"
_VARIANTS = {"torch-cuda": "cuda", "torch-cpu": "cpu"}


@dataclass(frozen=True, kw_only=True)
class LibraryPair:
    """The libraries of both directions, of one dtype."""

    forward: Halves
    backward: Halves

    @property
    def dtype(self) -> str:
        return self.forward.group.problem.tensor("x").dtype.torch

    @property
    def functions(self) -> tuple[LibraryFunction, LibraryFunction]:
        return described(self.forward, file_name=""), described(self.backward, file_name="")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What the folder holds: pairs of one spec, of several dtypes."""

    spec: str
    pairs: tuple[LibraryPair, ...]

    @property
    def arch(self) -> int:
        return self.pairs[0].forward.group.arch

    @cached_property
    def text(self) -> str:
        """The module. Its operators are named after its own text, so that two folders meet in one process."""
        text = self._rendered(namespace="@namespace@")
        return text.replace("@namespace@", f"normgen_{hashlib.sha256(text.encode()).hexdigest()[:12]}")

    def _rendered(self, *, namespace: str) -> str:
        forward, backward = self.pairs[0].functions
        pairs = [
            {"dtype": p.dtype, "forward": p.functions[0].name, "backward": p.functions[1].name} for p in self.pairs
        ]
        return template("hub_init.py.j2").render(
            spec=self.spec,
            version=f"normgen {VERSION}",
            formula=next(f.text for f in forward.problem.spec.formulas if f.name == "y"),
            archs=f"sm_{self.arch}",
            capabilities=[(self.arch // 10, self.arch % 10)],
            dtypes=", ".join(pair.dtype for pair in self.pairs),
            pairs=pairs,
            rounds=self.spec == SPECS[0],
            namespace=namespace,
            forward_call=", ".join(_arguments(forward)),
            backward_call=", ".join(_arguments(backward)),
        )

    def metadata(self, backend: str) -> dict[str, Any]:
        """What `kernels` reads of a variant."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return {
            "name": NAME,
            "id": f"_{NAME.replace('-', '_')}_{backend}_{digest[:12]}",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": ["tvm-ffi"],
            "backend": {"type": backend},
        }


def _arguments(function: LibraryFunction) -> list[str]:
    return [*(t.name for t in function.tensors), *(name for name, _ in function.scalars)]


def layer_of(halves: Sequence[Halves]) -> Layer | None:
    """The layer of the first spec that has both directions of a dtype whose weight is stored alike.

    Raises UsageError where these are of several GPU architectures, or take other arguments in another dtype.
    """
    for spec in SPECS:
        found: dict[str, list[Halves]] = {}
        for one in halves:
            problem = one.group.problem
            if problem.spec.name != spec or problem.in_place or problem.accumulate or problem.layout:
                continue
            if problem.gradients not in (None, (), ("x", "weight")) or "weight" not in problem.present:
                continue
            if problem.tensor("weight").dtype is problem.tensor("x").dtype:
                found.setdefault(problem.tensor("x").dtype.name, []).append(one)
        directions = {dtype: {one.group.problem.direction: one for one in some} for dtype, some in found.items()}
        paired = {dtype: both for dtype, both in directions.items() if len(both) == len(Direction)}
        if paired:
            ones = chain.from_iterable(found[dtype] for dtype in paired)
            require_one_arch(ones, "the libraries of a layer are of one GPU architecture")
            pairs = [LibraryPair(forward=b[Direction.FORWARD], backward=b[Direction.BACKWARD]) for b in paired.values()]
            _require_alike(pairs)
            return Layer(spec=spec, pairs=tuple(pairs))
    return None


def _require_alike(pairs: Sequence[LibraryPair]) -> None:
    """The module calls the libraries of all dtypes in one line: they take the same arguments. Raises UsageError."""
    for of_direction in zip(*(pair.functions for pair in pairs), strict=True):
        if any(_arguments(function) != _arguments(of_direction[0]) for function in of_direction):
            rule = "the libraries of a layer take the same arguments in every dtype"
            hint = "export records with the statistic in every dtype, or without it in every dtype"
            raise UsageError(rule, received="; ".join(f.signature for f in of_direction), hint=hint)


def write_hub(source: ExportSource, folder: Path) -> Iterator[Path]:
    """Write the folder of a layer "RMSNorm", with its libraries built.

    Errors: NothingValidError without records of both directions; UsageError for records of several GPU architectures,
    where apache-tvm-ffi is not installed, and for a folder that is none of normgen's; NoCompilerError, CompileError;
    VerificationError at the end, for records that do not leave.
    """
    found = source.records()
    layer = layer_of(source.halves(found))
    if layer is None:
        rule = "a layer needs records of both directions of one spec, in one dtype"
        raise NothingValidError(
            rule, received="none", hint=f"`normgen tune` {' or '.join(SPECS)}, forward and backward"
        )
    if (folder / "build").exists() and not (source.replace or _is_ours(folder)):
        hint = "--replace writes into it; or choose another folder"
        raise UsageError("a folder of kernels that normgen has not written stays", received=str(folder), hint=hint)
    with tempfile.TemporaryDirectory() as made, needed("the folder must be writable", hint="choose another one"):
        libraries = [_built(one, Path(made)) for pair in layer.pairs for one in (pair.forward, pair.backward)]
        for variant, backend in _VARIANTS.items():
            place = folder / "build" / variant
            place.mkdir(parents=True, exist_ok=True)
            for library in libraries if backend == "cuda" else ():
                shutil.copy(library, place)
            (place / "__init__.py").write_text(layer.text, encoding="utf-8")
            (place / "metadata.json").write_text(json.dumps(layer.metadata(backend), indent=1) + "\n", encoding="utf-8")
            yield place
    require_all(found.refused)


def _is_ours(folder: Path) -> bool:
    try:
        found = [json.loads(file.read_text()) for file in (folder / "build").glob("*/metadata.json")]
    except (OSError, ValueError):
        return False
    return bool(found) and all(isinstance(one, dict) and one.get("name") == NAME for one in found)


def _built(one: Halves, folder: Path) -> Path:
    """The library of a header. Raises as `write_hub`."""
    package = importlib.util.find_spec("tvm_ffi")
    if package is None or package.origin is None:
        rule = "a layer's libraries are built against the headers of apache-tvm-ffi"
        raise UsageError(rule, received="it is not installed", hint="pip install apache-tvm-ffi")
    compiler = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if compiler is None:
        raise NoCompilerError("a layer's libraries are built by a C++ compiler", received="none on the path")
    place, (name, text) = Path(package.origin).parent, of_machine_code(one)
    source, library = folder / name, folder / f"{one.group.name}.so"
    source.write_text(text, encoding="utf-8")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-I", place / "include"]
    command = [compiler, *flags, source, "-L", place / "lib", "-ltvm_ffi", "-ldl", "-o", library]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        received = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise CompileError("an exported library compiles", log=done.stderr, received=received)
    return library
