"""The command line. Everything heavy is imported inside the commands: `normgen --help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import normgen
from normgen.cli_bench import bench
from normgen.cli_options import (
    json_option,
    parse_device,
    problem_options,
    read_problem,
    read_schedule,
    read_whole,
    show,
    target_option,
)
from normgen.cli_report import report
from normgen.cli_state import STATE_COMMANDS
from normgen.cli_study import STUDY_COMMANDS
from normgen.cli_tune import tune
from normgen.errors import NormgenError, NothingValidError, UsageError, VerificationError

INTERRUPTED = 130
RE_EXPORT = "`normgen export` writes them again"

EXIT_CODES = """\
\b
Exit codes: 0 ok, 2 usage, 3 nothing valid found, 4 verification failed,
5 slower than before, 6 no usable GPU, 130 interrupted."""


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(normgen.__version__, prog_name="normgen")
def cli() -> None:
    """Writes, proves and tunes CUDA kernels for row-wise operations from a formula."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    # For a search's small matrices BLAS threads only wait for each other: a replay on two busy cores took 6 x as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = cli.main(args=None if arguments is None else list(arguments), prog_name="normgen", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except NormgenError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


@cli.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """The built-in specs, and what each computes."""
    from normgen.spec_reader import list_specs, load

    specs = {name: load(path) for name, path in list_specs().items()}
    if as_json:
        show({name: {"summary": spec.summary, "file": spec.file} for name, spec in specs.items()})
        return
    width = max(map(len, specs), default=0)
    for name, spec in specs.items():
        click.echo(f"{name.ljust(width)}  {spec.summary}")


@cli.group("spec")
def spec_group() -> None:
    """Work on spec files."""


@spec_group.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def spec_check(file: Path) -> None:
    """Read FILE strictly and print the program it says."""
    from normgen.program.lower import lower
    from normgen.spec_reader import load

    spec = load(file)
    program = lower(spec, present=frozenset(t.name for t in spec.tensors))
    click.echo(f"{file}: ok\n\n{program}")


@cli.command("show")
@problem_options
@target_option
@click.option("--ir", "what", flag_value="ir", help="The RowProgram after each pass.")
@click.option("--cuda", "what", flag_value="cuda", default="cuda", help="The emitted CUDA text (default).")
@click.option("--schedule", "knobs", default="", help="Knobs that differ from the default: 'vector=4 load=streaming'.")
@click.option("--print-schedule", "what", flag_value="schedule", help="The schedule with every knob.")
def show_command(target: str, what: str, knobs: str, **options: Any) -> None:
    """What a problem turns into: program, CUDA text or schedule."""
    from normgen.tuning import parts

    problem, facts = read_problem(options), parts.target_device(target)
    schedule = read_schedule(problem, facts, knobs)
    if what == "ir":
        from normgen.codegen.emit import passes_of

        for name, program in passes_of(problem, schedule):
            click.echo(f"// {name}\n{program}\n")
    elif what == "schedule":
        for name, value in schedule.as_dict().items():
            click.echo(f"{name} = {value}")
    else:
        click.echo(parts.emit(problem, schedule).source)


@cli.command()
@problem_options
@target_option
@json_option
@click.option("--why", is_flag=True, help="Every reason that refused points, and how many.")
def space(target: str, as_json: bool, why: bool, **options: Any) -> None:
    """How many schedules are legal for a problem, and why the others are not.

    --json prints {problem, legal, refused, default, refusals: [{reason, count, example}]}.
    """
    from normgen.tuning import parts

    problem, facts = read_problem(options), parts.target_device(target)
    found = parts.legal_space(problem, facts)
    refused = sum(r.count for r in found.refusals)
    default = parts.default_schedule(problem, facts)
    if as_json:
        refusals = [{"reason": r.reason, "count": r.count, "example": str(r.example)} for r in found.refusals]
        counts = {"problem": str(problem), "legal": len(found.legal), "refused": refused}
        show({**counts, "default": default.as_dict(), "refusals": refusals})
        return
    click.echo(f"{problem} on {facts.name}: {len(found.legal)} legal schedules, {refused} points refused")
    click.echo(f"default: {default}")
    if why:
        for refusal in found.refusals:
            click.echo(f"{refusal.count:>9}  {refusal.reason}\n           for example: {refusal.example}")


@cli.command()
@problem_options
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else cpu).")
@click.option("--schedule", "knobs", default="", help="Knobs that differ from the default: 'variance=welford'.")
@click.option("--seed", type=int, default=0, show_default=True)
def verify(target: str, as_json: bool, device: str | None, knobs: str, seed: int, **options: Any) -> None:
    """Check a kernel against the float64 reference on adversarial rows; exit 4 if it misses its bounds.

    --json prints {problem, schedule, device, ok, summary}.
    """
    from normgen.tuning import parts

    problem = read_problem(options)
    gpu = parts.find_gpu(parse_device(device))
    facts = gpu[1] if gpu else parts.target_device(target)
    schedule = read_schedule(problem, facts, knobs)
    module = parts.emit(problem, schedule)
    if gpu:
        from normgen.tuning.gpu_check import check_on_gpu

        verdict = check_on_gpu(problem, module, facts, index=gpu[0], seed=seed)
        ok, summary = verdict.ok, verdict.summary()
    else:
        from normgen.tuning.cpu_check import check_on_cpu

        checked = check_on_cpu(problem, module, seed=seed)
        ok, summary = checked.ok, checked.summary
    where = facts.name if gpu else "CPU executor"
    if as_json:
        show({"problem": str(problem), "schedule": str(schedule), "device": where, "ok": ok, "summary": summary})
    else:
        click.echo(f"{problem}, {schedule}, on the {where}\n{summary}")
    if not ok:
        sys.exit(VerificationError.exit_code)


@cli.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("generated"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace shipped records even by slower ones.")
@click.option("--check", is_flag=True, help="Write nothing; exit 2 if a header is not what the records say.")
@click.option("--specs", multiple=True, type=click.Path(exists=True, file_okay=False), help="More folders of specs.")
@click.option("--format", "form", type=click.Choice(["headers", "t4"]), default="headers", show_default=True)
def export(files: tuple[Path, ...], output: Path, force: bool, check: bool, specs: tuple[str, ...], form: str) -> None:
    """Write the headers of all records under OUTPUT/records.

    Records in FILES (a run's winner.jsonl) are taken in first, each where it is better than the one shipped.
    With --format t4 the records of FILES (a run's candidates.jsonl) are printed in Kernel Tuner's results format.
    """
    if form == "t4":
        from normgen.tuning.t4 import t4_results

        if not files:
            raise UsageError("--format t4 needs files of records", hint="for example a run's candidates.jsonl")
        show(t4_results(record for file in files for record in read_whole(file)))
        return
    from normgen import export as headers
    from normgen.device import device_from
    from normgen.tuning.store import adopt

    if check and files:
        raise UsageError("--check writes nothing, so it takes no records in", received=str(files[0]))
    for file in files:
        for record in read_whole(file):
            taken = adopt(record, output / "records", device_from(record.device), force=force)
            click.echo(f"{'taken' if taken else 'the shipped one is better'}: {record.problem.op} {record.schedule}")
    if check:
        differences = headers.differences(output, spec_folders=specs)
        if differences:
            raise UsageError("headers must be what their records say", received="; ".join(differences), hint=RE_EXPORT)
        return
    if not headers.folder_records(output):
        raise NothingValidError("there is no record to export", received=str(output / "records"))
    for path in headers.export_folder(output, spec_folders=specs):
        click.echo(str(path))


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """What works here: driver, GPU, NVRTC, C++ compiler, cache; and what to do about what does not."""
    from normgen.doctor import diagnose

    report = diagnose()
    show(report.as_dict() if as_json else str(report))


for command in (tune, report, *STUDY_COMMANDS, bench, *STATE_COMMANDS):
    cli.add_command(command)

if __name__ == "__main__":
    main()
