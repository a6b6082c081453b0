"""The command that writes headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from normgen import export as headers
from normgen.cli.options import json_option, show
from normgen.device import device_from
from normgen.engines.flashinfer import write_flashinfer
from normgen.engines.hub import write_hub
from normgen.engines.source import ExportSource, say_missing, write_libraries
from normgen.engines.torch_stable import library_of, write_operators
from normgen.engines.tvm_ffi import beside_header
from normgen.errors import NothingValidError, UsageError, needed
from normgen.export.beside import others_of, require_none_of, require_one
from normgen.export.cubins import write_cubins
from normgen.export.proof import RefusedRecord, require_all, sorted_out
from normgen.files.names import NamePart, name_part
from normgen.files.private import try_writing
from normgen.records.record import Record, parse_line
from normgen.records.winners import adopt, adopted, exchange, gpu_slug, kept_of, ways_to_records
from normgen.studies.t4 import t4_results


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("generated"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace shipped records even by slower ones.")
@click.option(
    "--replace", is_flag=True, help="What is of other specs of these names, or has the name of a header, gives way."
)
@click.option("--check", is_flag=True, help="Write nothing; exit 2 if a header is not what the records say.")
@click.option("--specs", multiple=True, type=click.Path(exists=True, file_okay=False), help="More folders of specs.")
@click.option(
    "--arch",
    "archs",
    default="",
    help="Write a set for these GPUs, 'sm80,sm90': one header each, and one that picks by the device at run time.",
)
@click.option(
    "--suffix",
    type=click.Choice(["cu", "cuh"]),
    default="cu",
    show_default=True,
    help="Of headers: cuh where a build compiles every .cu by itself.",
)
@click.option(
    "--declarations",
    is_flag=True,
    help="Beside each header, for callers in .cpp: NAME.h in plain C++, and NAME_unit.cu, which nvcc compiles once.",
)
@click.option("--shared-library", is_flag=True, help="Device functions in one file beside the headers, not in each.")
@click.option(
    "--cubin",
    "cubins",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write machine code and a manifest there instead: `normgen.kernel(..., cubins=DIR)` needs no compiler.",
)
@click.option(
    "--tvm-ffi",
    is_flag=True,
    help="Write a TVM-FFI library beside each header, <header>_ffi.cu; with --cubin only libraries that need no nvcc.",
)
@click.option(
    "--torch-stable",
    is_flag=True,
    help="Write LibTorch's operators over the headers, normgen_torch.cu, for C++ without Python; with --cubin no nvcc.",
)
@click.option(
    "--flashinfer",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write FlashInfer's definitions and solutions there, for its Trace Apply and for flashinfer-bench.",
)
@click.option(
    "--hf-kernels",
    "hub",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a layer for Hugging Face's kernels there: RMSNorm, forward and backward, with its libraries built.",
)
@click.option("--format", "form", type=click.Choice(["headers", "t4"]), default="headers", show_default=True)
@json_option
def export(
    files: tuple[Path, ...],
    output: Path,
    force: bool,
    replace: bool,
    check: bool,
    specs: tuple[str, ...],
    archs: str,
    suffix: str,
    declarations: bool,
    shared_library: bool,
    cubins: Path | None,
    tvm_ffi: bool,
    torch_stable: bool,
    flashinfer: Path | None,
    hub: Path | None,
    form: str,
    as_json: bool,
) -> None:
    """Write the headers of all records under OUTPUT/records.

    Records in FILES (a run's winner.jsonl) are taken in first, each where it is better than the one shipped.
    Each record is held against today's code: its schedule must be legal, its errors within their bounds, and its
    kernel the text that was compared with the reference; one of an older text is proven again on the CPU executor,
    which takes seconds. Those that fail are named at the end, exit 4; all others are exported.
    With --arch, a GPU that has no record gets the general kernels, and a line on stderr says so.
    With --cubin DIR the kernels of the records, of FILES alone where some are given, are compiled into that folder.
    With --tvm-ffi each header has a file beside it that makes it a library for every framework that hands over DLPack
    tensors. With --tvm-ffi --cubin DIR that folder gets <header>_ffi.cc, which hold machine code: they need no nvcc.
    With --torch-stable one file, normgen_torch.cu, registers the operators of all forward headers in LibTorch, by its
    stable ABI; with --torch-stable --cubin DIR that folder gets normgen_torch.cc, which holds machine code.
    With --flashinfer DIR the records of FILES, else of OUTPUT/records, that are operations of FlashInfer's go there.
    With --hf-kernels DIR a layer "RMSNorm" is made of records of rmsnorm in both directions, for transformers' models.
    With --format t4 the records of FILES (a run's candidates.jsonl) are printed in Kernel Tuner's results format.
    --json prints {taken: [{op, schedule, is_taken}], written: [files], refused: [{op, direction, rows, cols, why}]}.
    """
    if form == "t4":
        if not files:
            raise UsageError("--format t4 needs files of records", hint="for example a run's candidates.jsonl")
        show(t4_results(record for file in files for record in kept_of(file)))
        return

    how = headers.HeaderForm(
        archs=read_archs(archs),
        suffix=suffix,
        shared_library=shared_library,
        binding=beside_header if tvm_ffi else None,
        library=library_of if torch_stable else None,
        declarations=declarations,
    )
    source = ExportSource(files=files, output=output, specs=specs, replace=replace)
    if tvm_ffi:
        say_missing("apache-tvm-ffi", "tvm_ffi")
    if torch_stable:
        say_missing("torch", "torch")
    if not check:
        place = flashinfer or hub or cubins or output
        with needed("the folder that files go to must be writable", hint="choose another one"):
            try_writing(place)  # before all records are proven again
    if flashinfer is not None:
        say_missing("flashinfer-python", "flashinfer")
        _echo(write_flashinfer(source, flashinfer))
        return
    if hub is not None:
        say_missing("kernels", "kernels")
        _echo(write_hub(source, hub))
        return
    if cubins is not None and (tvm_ffi or torch_stable):
        if archs:
            rule = "machine code is of the GPUs that its records are of"
            raise UsageError(rule, received=f"--arch {archs}", hint="leave --cubin out: nvcc compiles for all of them")
        if tvm_ffi:
            _echo(write_libraries(source, cubins))
        if torch_stable:
            _echo(write_operators(source, cubins))
        return
    if cubins is not None:
        _export_cubins(source, cubins)
        return
    if check and files:
        raise UsageError("--check writes nothing, so it takes no records in", received=str(files[0]))
    refused: list[RefusedRecord] = []
    if check:
        headers.require_same(output, spec_folders=specs, form=how)
        if as_json:
            show({"taken": [], "written": [], "refused": []})
        return
    given = sorted_out((record for file in files for record in kept_of(file)), headers.specs_of(specs))
    refused += given.refused
    taking = _Taking.of(given.records, output / "records", files=files, force=force, replace=replace)
    plan = headers.planned(
        output,
        taking.records,
        there=taking.there,
        spec_folders=specs,
        form=how,
        replace=replace,
        refuse=refused.append,
    )
    if not plan.headers and not refused:
        of = f" of {archs}" if archs else ""
        received = ", ".join(map(str, files or (output / "records",)))
        raise NothingValidError(f"there is no record{of} to export", received=received, hint=ways_to_records())
    taken = taking.write(as_json=as_json)
    written = [str(path) for path in plan.write()]
    if as_json:
        show({"taken": taken, "written": written, "refused": [_plain(one) for one in refused]})
    elif written:
        show("\n".join(written))
    require_all(refused)


@dataclass(frozen=True, kw_only=True)
class _Taking:
    """Records that are taken into a folder of them, and what that makes of it, before it is done.

    given    which may leave; each is taken where it is better than what is there
    there    of the folder before
    others   of these, those of other specs of the names, which give way
    records  of the folder afterwards
    """

    folder: Path
    given: Sequence[Record]
    there: Sequence[Record]
    others: Sequence[Record]
    records: Sequence[Record]
    force: bool

    @staticmethod
    def of(given: Iterable[Record], folder: Path, *, files: Sequence[Path], force: bool, replace: bool) -> _Taking:
        """Raises UsageError for two specs of one name: among the given ones, or here and there and not to `replace`."""
        records = [parse_line(record.line()) for record in given]  # as they will stand there
        require_one(records, f"in {', '.join(map(str, files))}")
        shelves = {path.stem: list(kept_of(path)) for path in sorted(folder.glob("*.jsonl"))}
        there = [record for shelf in shelves.values() for record in shelf]
        others = others_of(records, there)
        if others and not replace:
            require_none_of(others, records, files=files, folder=folder)
        shelves = {slug: [record for record in shelf if record not in others] for slug, shelf in shelves.items()}
        for record in records:
            slug = gpu_slug(device_from(record.device))
            shelves[slug] = adopted(shelves.get(slug, ()), record, force=force) or shelves.get(slug, [])
        after = [record for slug in sorted(shelves) for record in shelves[slug]]
        return _Taking(folder=folder, given=records, there=there, others=others, records=after, force=force)

    def write(self, *, as_json: bool) -> list[dict[str, Any]]:
        """Take them in; what became of each."""
        taken = []
        with needed("the folder of the records must be writable", hint="choose another --output"):
            exchange(self.folder, ((other, None) for other in self.others))
            for record in self.given:
                op, schedule = record.problem.op, record.schedule
                is_taken = adopt(record, self.folder, device_from(record.device), force=self.force)
                taken.append({"op": op, "schedule": schedule.as_dict(), "is_taken": is_taken})
                if not as_json:
                    click.echo(f"{'taken' if is_taken else 'the shipped one is better'}: {op} {schedule}")
        return taken


def _plain(one: RefusedRecord) -> dict[str, Any]:
    key = one.record.problem
    return {"op": key.op, "direction": key.direction, "rows": key.rows, "cols": key.cols, "why": one.why}


def _echo(paths: Iterable[Path]) -> None:
    for path in paths:
        click.echo(str(path))


def _export_cubins(source: ExportSource, folder: Path) -> None:
    found = source.records()
    with needed("the folder of cubins must be writable", hint="choose another one"):
        for path in write_cubins(found.records, source.spec_of, folder) if found.records else ():
            click.echo(str(path))
    require_all(found.refused)


def read_archs(text: str) -> tuple[int, ...]:
    """The archs of `sm80,sm90`, ascending; none of an empty text. Raises UsageError for what is no arch."""
    words = [word.strip() for word in text.split(",")] if text else []
    numbers = [word.removeprefix("sm").removeprefix("_") for word in words]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise UsageError("--arch is a list of archs", received=text, hint="for example sm80,sm90")
    return tuple(sorted({int(name_part(NamePart.ARCH, int(number))) for number in numbers}))
