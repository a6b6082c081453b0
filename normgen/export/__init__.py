"""Headers from records: `generated/<op>_<fwd|bwd>_<dtype>_<sm>.cu`, a pure function of specs and records.

All tuned shapes of one operation, direction, set of dtypes and arch stand in one header; see groups.py for what
goes together, device_part.py and host_part.py for the two halves, banner.py for the evidence at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from normgen.errors import needed
from normgen.export.compiled import check_compiles
from normgen.export.groups import groups_of
from normgen.export.header import header_text
from normgen.files.private import try_writing, write_output
from normgen.records.record import Record
from normgen.records.winners import read_whole
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec

__all__ = ["Header", "differences", "export_folder", "export_record", "folder_records", "headers_of", "require_folder"]


@dataclass(frozen=True, kw_only=True)
class Header:
    """One exported file."""

    file_name: str
    text: str
    arch: int
    kernels: tuple[str, ...]  # the instances of its kernels, as C++ names them

    def write(self, folder: Path) -> Path:
        """Write the file at once, after its device part has compiled. Raises CompileError."""
        check_compiles(self.text, name=self.file_name, arch=self.arch, instances=self.kernels)
        path = folder / self.file_name
        write_output(path, self.text)
        return path


def headers_of(
    records: Iterable[Record], *, spec: Spec | None = None, spec_folders: Sequence[str | Path] = ()
) -> tuple[Header, ...]:
    """The headers that hold all these records, by file name.

    spec          the spec of records of its name; others are those that the records hold, else they are looked up in
                  `spec_folders`, then among the built-in ones

    Errors: UsageError for a record of another text of its spec, or of no usable kernel.
    """
    known: dict[str, Spec] = {spec.name: spec} if spec else {}

    def spec_of(record: Record) -> Spec:
        op = record.problem.op
        if op not in known:
            known[op] = parse(record.spec, file=f"{op} of a record") if record.spec else load(op, spec_folders)
        return known[op]

    found = []
    for group in groups_of(records, spec_of):
        text, kernels = header_text(group)
        found.append(Header(file_name=group.file_name, text=text, arch=group.arch, kernels=kernels))
    return tuple(found)


def export_record(record: Record, folder: Path, *, spec: Spec | None = None) -> Path:
    """Write the header of one record; other shapes that `folder/records` holds for the same header stay in it.

    Errors: UsageError as `headers_of`.
    """
    (header,) = headers_of([record], spec=spec)
    slot = (*record.problem.slot(), record.cache)
    others = [
        r
        for r in folder_records(folder)
        if r.problem.spec_sha256 == record.problem.spec_sha256 and (*r.problem.slot(), r.cache) != slot
    ]
    if others:
        header = next(h for h in headers_of([record, *others], spec=spec) if h.file_name == header.file_name)
    return header.write(folder)


def require_folder(folder: Path) -> None:
    """Raises FileError, or UsageError for damaged records in it, where no header could be written into a folder."""
    with needed("the folder of the header must be writable", hint="choose another one with --output"):
        try_writing(folder)
    folder_records(folder)


def folder_records(folder: Path) -> list[Record]:
    """The records under `folder`/records, file by file. Raises UsageError for a line that is no record."""
    return [record for path in sorted((folder / "records").glob("*.jsonl")) for record in read_whole(path)]


def export_folder(folder: Path, *, spec_folders: Sequence[str | Path] = ()) -> list[Path]:
    """Write the headers of all records under `folder`/records into `folder`."""
    return [header.write(folder) for header in headers_of(folder_records(folder), spec_folders=spec_folders)]


def differences(folder: Path, *, spec_folders: Sequence[str | Path] = ()) -> list[str]:
    """How the headers in `folder` differ from what its records say: one line a file; empty when they agree."""
    wanted = {h.file_name: h.text for h in headers_of(folder_records(folder), spec_folders=spec_folders)}
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.cu"))}
    lines = [f"{name}: missing" for name in wanted if name not in found]
    lines += [f"{name}: differs" for name, text in wanted.items() if found.get(name, text.encode()) != text.encode()]
    return sorted(lines + [f"{name}: no record asks for it" for name in found if name not in wanted])
