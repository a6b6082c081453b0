"""What an export for an engine is made from, and how its files are written: all of them or none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from normgen import export as headers
from normgen.engines.tvm_ffi import of_machine_code
from normgen.errors import NothingValidError, UsageError, needed
from normgen.export.beside import require_written
from normgen.export.groups import groups_of, with_header
from normgen.export.header import Halves, halves
from normgen.export.proof import SortedOut, require_all, sorted_out
from normgen.files.private import to_stderr, write_atomically
from normgen.records.record import Record
from normgen.records.winners import kept_of, ways_to_records
from normgen.spec.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """The records of an export: those of `files`, else those under `output`/records."""

    files: tuple[Path, ...]
    output: Path
    specs: tuple[str, ...]
    replace: bool

    @cached_property
    def spec_of(self) -> Callable[[Record], Spec]:
        return headers.specs_of(self.specs)

    def records(self) -> SortedOut:
        """Those that leave, and those that do not. Raises NothingValidError where there are none."""
        if self.files:
            records = [record for file in self.files for record in kept_of(file)]
        else:
            records = headers.folder_records(self.output)
        if not records:
            received = ", ".join(map(str, self.files or (self.output / "records",)))
            raise NothingValidError("there is no record to export", received=received, hint=ways_to_records())
        return sorted_out(records, self.spec_of)

    def halves(self, found: SortedOut) -> list[Halves]:
        """Of the headers of these records."""
        return [halves(group) for group in groups_of(with_header(found.records, self.spec_of), self.spec_of)]


def write_libraries(source: ExportSource, folder: Path) -> Iterator[Path]:
    """A TVM-FFI library for each header of the records, with their machine code; the files written.

    Raises CompileError, NoDeviceError; UsageError for another's file of that name; VerificationError at the end, for
    records that do not leave.
    """
    found = source.records()
    texts = dict(of_machine_code(one) for one in source.halves(found))
    require_written([folder / name for name in texts], replace=source.replace)
    yield from written(folder, texts)
    require_all(found.refused)


def require_one_arch(ones: Iterable[Halves], rule: str) -> None:
    """Raise UsageError, with the rule, where headers are of several GPU architectures."""
    archs = sorted({one.group.arch for one in ones})
    if len(archs) > 1:
        hint = "export the records of one GPU"
        raise UsageError(rule, received=", ".join(f"sm_{arch}" for arch in archs), hint=hint)


def say_missing(client: str, module: str) -> None:
    """Say on stderr that the package which takes an export's files is not installed here, if it is not."""
    if importlib.util.find_spec(module) is None:
        to_stderr(f"{client} is not installed here: what uses these files needs it (pip install {client})")


def written(folder: Path, texts: Mapping[str, str]) -> Iterator[Path]:
    """Write files, whose names may have folders. Raises FileError."""
    with needed("the folder of an export must be writable", hint="choose another one"):
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            yield path
