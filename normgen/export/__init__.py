"""Headers from records: `generated/<op>_<fwd|bwd>_<dtype>_<sm>.cu`, a pure function of specs and records.

All tuned shapes of one operation, direction, set of dtypes and arch stand in one header; see proof.py for which records
leave, groups.py for what goes together, beside.py for what stands in the folder already, device_part.py and
host_part.py for the two halves, banner.py for the evidence at the top, arch_set.py for the file that picks a header by
the device, shared_library.py for device functions that several headers include, declarations.py for callers in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normgen.device import Device
from normgen.errors import NormgenError, UsageError, needed
from normgen.export.arch_set import set_text
from normgen.export.banner import untuned
from normgen.export.beside import others_beside, remove, require_one, require_own, require_written
from normgen.export.compiled import check_compiles
from normgen.export.declarations import BINDINGS
from normgen.export.groups import groups_of, has_header, header_name, leaving_problem, with_header
from normgen.export.header import Halves, binding_guard, guard_of, halves, header_text, library_text, set_guard
from normgen.export.proof import RefusedRecord, SpecOf, is_fit, require_all, sorted_out
from normgen.export.shared_library import FILE_NAME, SharedLibrary, shared_library
from normgen.files.names import escaped
from normgen.files.private import to_stderr, try_writing, write_atomically
from normgen.files.shipped import shipped
from normgen.problem.problem import Problem
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.winners import exchange, kept_of, lookup, shipped_folder
from normgen.spec.reader import is_built_in, load, parse
from normgen.spec.spec import Spec

__all__ = [
    "PLAIN",
    "ExportPlan",
    "Header",
    "HeaderForm",
    "Ships",
    "differences",
    "export_folder",
    "export_record",
    "folder_records",
    "headers_of",
    "planned",
    "require_folder",
    "require_room",
    "require_same",
    "ships",
    "specs_of",
]


@dataclass(frozen=True, kw_only=True)
class HeaderForm:
    """How headers are written.

    archs           of a set: a header for each of them, tuned or not, and one that picks among them by the device at
                    run time; none: one header for each arch that has records, each by itself
    suffix          of their names: cu, or cuh for a build that compiles every .cu by itself
    shared_library  the device functions stand in one file beside the headers; else in each
    binding         (header, whether it is one of a set) -> file name and text of what binds it to an engine, beside it;
                    of a set it binds the file that picks
    library         (all headers, whether they are sets) -> file name and text of one that binds all to an engine
    declarations    beside each header, or file that picks, declarations in plain C++ and the unit that defines them
    """

    archs: tuple[int, ...] = ()
    suffix: str = "cu"
    shared_library: bool = False
    binding: Callable[[Halves, bool], tuple[str, str]] | None = None
    library: Callable[[Sequence[Halves], bool], tuple[str, str]] | None = None
    declarations: bool = False

    @property
    def bindings(self) -> dict[str, Callable[[Halves, bool], tuple[str, str]]]:
        """What stands beside a header, by the word of its include guard."""
        engine = {"FFI": self.binding} if self.binding else {}
        return {**engine, **(BINDINGS if self.declarations else {})}

    @property
    def patterns(self) -> tuple[str, ...]:
        """Files of a folder that an export of this form writes, or would have written from other records."""
        beside: tuple[str, ...] = ("*.h", "*_unit.cu") if self.declarations else ()
        beside += ("*_ffi.cu",) if self.binding else ()
        beside += ("*_torch.cu",) if self.library else ()
        return (f"*.{self.suffix}", FILE_NAME, *beside)


PLAIN = HeaderForm()


@dataclass(frozen=True, kw_only=True)
class Header:
    """One exported file.

    arch      it must compile for that sm_NN
    kernels   the instances of its kernels, as C++ names them
    includes  the texts of the files beside it that it includes
    note      what its reader must know beforehand
    guard, spec  its include guard, and the spec that it is made from; none of the shared device functions
    """

    file_name: str
    text: str
    arch: int
    kernels: tuple[str, ...]
    includes: Mapping[str, str] = field(default_factory=dict, hash=False)
    note: str = ""
    guard: str = ""
    spec: Spec | None = None

    def check(self) -> None:
        """Compile the device part. Raises CompileError."""
        check_compiles(self.text, name=self.file_name, arch=self.arch, instances=self.kernels, includes=self.includes)

    def write(self, folder: Path) -> Path:
        """Write the file at once, after its device part has compiled. Raises CompileError."""
        self.check()
        return self.keep(folder)

    def keep(self, folder: Path) -> Path:
        """Write the file, checked or not. A link of its name goes: what it names was not asked for."""
        path = folder / self.file_name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.text)
        return path


def headers_of(
    records: Iterable[Record],
    *,
    spec: Spec | None = None,
    spec_folders: Sequence[str | Path] = (),
    form: HeaderForm = PLAIN,
) -> tuple[Header, ...]:
    """The headers that hold all these records, by file name; what a header includes comes before it.

    spec          the spec of records of its name; others are those that the records hold, else they are looked up in
                  `spec_folders`, then among the built-in ones

    Errors: UsageError for a record of another text of its spec, or of no usable kernel, and for two specs of one name;
    VerificationError for a kernel that was not compared with the reference as it is emitted today.
    """
    groups = groups_of(records, specs_of(spec_folders, spec), form.archs, suffix=form.suffix)
    worked_out = [halves(group) for group in groups]
    files = {file.name: file for one in worked_out for file in one.device.library}
    shared = shared_library(files.values()) if form.shared_library and worked_out else None
    found = [_library(shared, arch=min(one.group.arch for one in worked_out))] if shared else []
    beside = {header.file_name: header.text for header in found}
    made = [_header(one, shared, beside) for one in worked_out]
    sets = _sets(worked_out, made, beside) if form.archs else []
    bindings = [h for kind, one in form.bindings.items() for h in _bindings(worked_out, kind, one, bool(form.archs))]
    libraries = [_bound(worked_out, *form.library(worked_out, bool(form.archs)))] if form.library else []
    return (*found, *made, *sets, *bindings, *libraries)


def specs_of(spec_folders: Sequence[str | Path] = (), spec: Spec | None = None) -> SpecOf:
    """Each record's spec: `spec` where it has its name, else what the record holds, else what is looked up."""
    known: dict[tuple[str, str], Spec] = {}

    def spec_of(record: Record) -> Spec:
        op, text = record.problem.op, record.spec
        if spec and spec.name == op and (not text or spec.sha256 == record.problem.spec_sha256):
            return spec
        if (op, text) not in known:
            known[op, text] = parse(text, file=f"{op} of a record") if text else load(op, spec_folders)
        return known[op, text]

    return spec_of


def _library(shared: SharedLibrary, *, arch: int) -> Header:
    return Header(file_name=FILE_NAME, text=library_text(shared), arch=arch, kernels=())


def _bound(worked_out: Sequence[Halves], file_name: str, text: str) -> Header:
    return Header(file_name=file_name, text=text, arch=min(one.group.arch for one in worked_out), kernels=())


def _header(one: Halves, shared: SharedLibrary | None, beside: Mapping[str, str]) -> Header:
    group = one.group
    note = "" if group.entries else untuned(group)
    text = header_text(one, shared)
    return Header(
        file_name=group.file_name,
        text=text,
        arch=group.arch,
        kernels=one.instances,
        includes=beside,
        note=note,
        guard=guard_of(group.name, group.arch),
        spec=group.problem.spec,
    )


def _bindings(
    worked_out: Sequence[Halves], kind: str, binding: Callable[[Halves, bool], tuple[str, str]], is_set: bool
) -> list[Header]:
    """What binds each header to its callers, or each file that picks among them."""
    bound = {one.group.name: one for one in reversed(worked_out)}.values() if is_set else worked_out
    made = []
    for one in bound:
        file_name, text = binding(one, is_set)
        guard = set_guard(one.group) if is_set else guard_of(one.group.name, one.group.arch)
        found = Header(
            file_name=file_name,
            text=text,
            arch=one.group.arch,
            kernels=(),
            guard=binding_guard(guard, kind),
            spec=one.group.problem.spec,
        )
        made.append(found)
    return made


def _sets(worked_out: Sequence[Halves], made: Sequence[Header], beside: Mapping[str, str]) -> list[Header]:
    """The files that pick among the headers of one name."""
    sets: dict[str, list[Halves]] = {}
    for one in worked_out:
        sets.setdefault(one.group.name, []).append(one)
    texts = {header.file_name: header.text for header in made}
    return [
        Header(
            file_name=members[0].group.set_name,
            text=set_text(members),
            arch=members[0].group.arch,
            kernels=(),
            includes={**beside, **{one.group.file_name: texts[one.group.file_name] for one in members}},
            guard=set_guard(members[0].group),
            spec=members[0].group.problem.spec,
        )
        for name, members in sets.items()
    ]


def export_record(record: Record, folder: Path, *, spec: Spec | None = None, replace: bool = False) -> Path:
    """Write the header of one record; other shapes that `folder/records` holds for the same header stay in it.

    One of them that does not leave is named on stderr, and left out.

    replace  the headers of another spec of this name give way, and a file with the name of the header

    Errors: UsageError as `headers_of`, and where the folder has such headers or such a file; VerificationError as
    `headers_of`.
    """
    (header,) = headers_of([record], spec=spec)
    slot = (*record.problem.slot(), record.place)
    spec_of = specs_of(spec=spec)
    there = sorted_out(
        (
            r
            for r in folder_records(folder)
            if r.problem.spec_sha256 == record.problem.spec_sha256
            and (*r.problem.slot(), r.place) != slot
            and has_header(r, spec_of(r))
        ),
        spec_of,
    )
    for one in there.refused:
        to_stderr(escaped(str(one)))
    gone = _giving_way([header], folder, replace=replace)
    if others := there.records:
        header = next(h for h in headers_of([record, *others], spec=spec) if h.file_name == header.file_name)
    header.check()
    return _put([header], folder, gone)[0]


def require_folder(folder: Path) -> None:
    """Raises FileError, or UsageError as `folder_records`, where no header could be written into a folder."""
    with needed("the folder of the header must be writable", hint="choose another one with --output"):
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)
    folder_records(folder)


@dataclass(frozen=True, kw_only=True)
class Ships:
    """A measured record that comes with normgen: the folder of its file, and the header that has its kernel, if any."""

    record: Record
    records: Path
    header: Path | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"record": self.record.as_dict(), "header": str(self.header) if self.header else None}


def ships(problem: Problem, device: Device) -> Ships | None:
    """The measured record of this very problem and GPU model that comes with normgen; None where there is none."""
    found = lookup(problem, device, folders=[shipped_folder()])
    if found.record is None or not (found.exact and found.record.measured):
        return None
    name = header_name(problem_of(found.record.problem, problem.spec))
    header = shipped("generated") / f"{name}_sm{device.arch}.cu"
    return Ships(record=found.record, records=shipped_folder(), header=header if header.is_file() else None)


def require_room(problem: Problem, arch: int, folder: Path) -> None:
    """As `require_folder`, and UsageError where the folder has a header of another spec of that name.

    Or a file of the header's name that is none of normgen's.
    """
    require_folder(folder)
    require_own({guard_of(header_name(problem), arch)}, problem.spec, folder)
    require_written([folder / f"{header_name(problem)}_sm{arch}.cu"], replace=False)


def _giving_way(
    headers: Sequence[Header], folder: Path, *, replace: bool, before: Mapping[str, set[str]] | None = None
) -> list[Path]:
    """The headers of other specs that would stand beside these, or in their place.

    before  op -> digests of texts of its spec, which was another one then

    Raises UsageError where there are some, or other files of these names, and nothing may be replaced.
    """
    require_written([folder / header.file_name for header in headers], replace=replace)
    gone: list[Path] = []
    for op, spec in {header.spec.name: header.spec for header in headers if header.spec}.items():
        guards = {header.guard for header in headers if header.spec and header.spec.name == op}
        older = (before or {}).get(op, set()) if is_built_in(spec) else set()
        if not replace:
            require_own(guards, spec, folder, before=older)
        gone += [path for path, _ in others_beside(guards, spec, folder, before=older)]
    return gone


def _put(headers: Sequence[Header], folder: Path, gone: Sequence[Path]) -> list[Path]:
    """Write headers, checked before, in the place of those of other specs."""
    remove(gone, but=[folder / header.file_name for header in headers])
    return [header.keep(folder) for header in headers]


def folder_records(folder: Path) -> list[Record]:
    """The records under `folder`/records, file by file. Raises UsageError for a file without a record."""
    return [record for path in sorted((folder / "records").glob("*.jsonl")) for record in kept_of(path)]


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """An export that nothing refuses: all that is left is to write it.

    pairs    records of the folder, each beside what takes its place
    headers  which have compiled
    gone     headers of other specs of these names, which give way
    """

    folder: Path
    pairs: Sequence[tuple[Record, Record]]
    headers: Sequence[Header]
    gone: Sequence[Path]

    def write(self) -> list[Path]:
        """Exchange the records, and write the headers."""
        with needed("the records must be writable", hint="choose another --output"):
            exchange(self.folder / "records", self.pairs)
        return _put(self.headers, self.folder, self.gone)


def planned(
    folder: Path,
    records: Iterable[Record],
    *,
    there: Iterable[Record] = (),
    spec_folders: Sequence[str | Path] = (),
    form: HeaderForm = PLAIN,
    replace: bool = False,
    refuse: Callable[[RefusedRecord], None] | None = None,
) -> ExportPlan:
    """What `export_folder` would write into a folder that had these records; nothing is written yet.

    there    the records that it has, where these are others

    Errors: as `export_folder`.
    """
    spec_of = specs_of(spec_folders)
    found = sorted_out(records, spec_of)
    if refuse is None:
        require_all(found.refused)
    else:
        for one in found.refused:
            refuse(one)
    require_one(found.records, f"under {folder / 'records'}")
    headers = headers_of(with_header(found.records, spec_of), spec_folders=spec_folders, form=form)
    before: dict[str, set[str]] = {}
    for old in (*there, *(old for old, _ in found.pairs)):
        if not old.spec:
            before.setdefault(old.problem.op, set()).add(old.problem.spec_sha256)
    gone = _giving_way(headers, folder, replace=replace, before=before)
    for header in headers:
        header.check()
        if header.note:
            to_stderr(f"{header.file_name}: {header.note}")
    return ExportPlan(folder=folder, pairs=found.pairs, headers=headers, gone=gone)


def export_folder(
    folder: Path,
    *,
    spec_folders: Sequence[str | Path] = (),
    form: HeaderForm = PLAIN,
    replace: bool = False,
    refuse: Callable[[RefusedRecord], None] | None = None,
) -> list[Path]:
    """Write the headers of all records under `folder`/records into `folder`, once all of them have compiled.

    A kernel of an older text is proven again on the CPU executor, and its record says so from then on. A header of a
    set whose arch has no record is told of on stderr.

    replace  headers of other specs of these names give way, and other files with the names of these headers
    refuse   is told of each record that does not leave: it stays where it is, and the others leave without it

    Errors: as `headers_of`; UsageError for records, or a header in the folder, of another spec of a name, and for a
    file there that is none of normgen's; CompileError. Without `refuse`, VerificationError for a record that does not
    leave. Nothing is written then.
    """
    records = folder_records(folder)
    return planned(folder, records, spec_folders=spec_folders, form=form, replace=replace, refuse=refuse).write()


def differences(folder: Path, *, spec_folders: Sequence[str | Path] = (), form: HeaderForm = PLAIN) -> list[str]:
    """How the headers in `folder` differ from what its records say: one line a file; empty when they agree.

    Where a record does not leave as it stands, a line for each of these.
    """
    records, spec_of = folder_records(folder), specs_of(spec_folders)
    if doubted := list(_doubted(records, spec_of)):
        return [str(one) for one in doubted]
    kept = [record for record in records if has_header(record, spec_of(record))]
    headers = headers_of(kept, spec_folders=spec_folders, form=form)
    wanted = {header.file_name: header.text for header in headers}
    paths = sorted({path for pattern in form.patterns for path in folder.glob(pattern)})
    found = {path.name: path.read_bytes() for path in paths}
    lines = [f"{name}: missing" for name in wanted if name not in found]
    lines += [f"{name}: differs" for name, text in wanted.items() if found.get(name, text.encode()) != text.encode()]
    return sorted(lines + [f"{name}: no record asks for it" for name in found if name not in wanted])


def require_same(folder: Path, *, spec_folders: Sequence[str | Path] = (), form: HeaderForm = PLAIN) -> None:
    """Raises UsageError that names all `differences`, and what mends them."""
    if lines := differences(folder, spec_folders=spec_folders, form=form):
        spec_of = specs_of(spec_folders)
        doubted = _doubted(folder_records(folder), spec_of)
        is_mended = all(is_fit(one.record, spec_of) for one in doubted)
        hint = "`normgen export` writes them again" if is_mended else "tune again what is refused, or take its line out"
        raise UsageError("headers must be what their records say", received="; ".join(lines), hint=hint)


def _doubted(records: Iterable[Record], spec_of: SpecOf) -> Iterator[RefusedRecord]:
    """The records that do not leave as they stand."""
    for record in records:
        try:
            leaving_problem(record, spec_of(record))
        except NormgenError as error:
            yield RefusedRecord.of(record, error)
