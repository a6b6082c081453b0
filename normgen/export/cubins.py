"""A folder of cubins: machine code beside its records, which a handle loads without a compiler.

manifest.json: {"schema": 1, "kernels": [{file, sha256, digest, arch, nvrtc, record}]}
  file    beside the manifest; sha256 is that of its bytes
  digest  of the module that it was compiled from (`Module.digest`): a handle takes it for that text alone
  record  as in a file of records
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin
from normgen.errors import UsageError
from normgen.export.groups import leaving_problem
from normgen.files.decoded import parse_json
from normgen.files.private import write_atomically
from normgen.pipeline import emit
from normgen.problem.words import file_stem
from normgen.records.record import Record, from_dict
from normgen.spec.spec import Spec

MANIFEST = "manifest.json"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Cubins:
    """What a folder holds: its records, and where the machine code of each module is, by digest and arch."""

    folder: Path
    records: tuple[Record, ...]
    entries: dict[tuple[str, int], dict[str, Any]]

    def find(self, module: Module, arch: int) -> Cubin:
        """The machine code of a module. Raises UsageError where the folder has none, or a damaged file."""
        entry = self.entries.get((module.digest, arch))
        if entry is None:
            rule = "the folder of cubins must hold the kernel that is asked for"
            hint = "`normgen export --cubin` writes those of records; a shape, dtype or GPU of none has no kernel there"
            raise UsageError(
                rule, received=f"none of {module.kernels[0].name} for sm_{arch} in {self.folder}", hint=hint
            )
        path = self.folder / entry["file"]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError("a cubin of the manifest can be read", received=f"{path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise UsageError("a cubin has the bytes that its manifest says", received=str(path))
        major, _, minor = entry["nvrtc"].partition(".")
        version = int(major), int(minor)
        return Cubin(data=data, arch=arch, resources={}, log="", seconds=0.0, nvrtc_version=version, key=module.digest)


def write_cubins(records: Iterable[Record], spec_of: Callable[[Record], Spec], folder: Path) -> list[Path]:
    """Compile the kernels of records for the GPUs they are of, and write them with their manifest.

    Raises UsageError as `leaving_problem`, CompileError; OSError where the folder takes no file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for record in records:
        problem = leaving_problem(record, spec_of(record))
        module, arch = emit(problem, record.schedule), int(record.device["arch"])
        cubin = compile_module(module, arch)
        file = f"{file_stem(problem)}_{module.digest[:12]}_sm{arch}.cubin"
        write_atomically(folder / file, cubin.data)
        entries.append(
            {
                "file": file,
                "sha256": hashlib.sha256(cubin.data).hexdigest(),
                "digest": module.digest,
                "arch": arch,
                "nvrtc": ".".join(map(str, cubin.nvrtc_version)),
                "record": record.as_dict(),
            }
        )
    text = json.dumps({"schema": _SCHEMA, "kernels": entries}, ensure_ascii=False, indent=1) + "\n"
    write_atomically(folder / MANIFEST, text)
    return [folder / MANIFEST, *(folder / entry["file"] for entry in entries)]


def read_cubins(folder: Path) -> Cubins:
    """What a folder holds. Raises UsageError where it has no manifest, or one that says anything else."""
    path = folder / MANIFEST
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if found["schema"] != _SCHEMA:
            raise ValueError(f"schema {found['schema']}")
        entries = {(str(entry["digest"]), int(entry["arch"])): _checked(entry) for entry in found["kernels"]}
        records = tuple(from_dict(entry["record"]) for entry in found["kernels"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        rule = "a folder of cubins has a manifest that `normgen export --cubin` wrote"
        raise UsageError(rule, received=f"{path}: {error}") from error
    return Cubins(folder=folder, records=records, entries=entries)


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for a file that is not beside the manifest, or a release that is none."""
    if Path(entry["file"]).name != entry["file"] or not isinstance(entry["sha256"], str):
        raise ValueError(f"no file beside it: {entry['file']!r}")
    major, _, minor = entry["nvrtc"].partition(".")
    int(major), int(minor)
    return entry
