"""The command line. Everything heavy is imported inside the commands: `normgen --help` answers at once."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import normgen
from normgen.cli_report import report
from normgen.errors import NormgenError, NothingValidError, UsageError, VerificationError

if TYPE_CHECKING:
    from normgen.device import Device
    from normgen.problem import Problem
    from normgen.schedule.schedule import Schedule

INTERRUPTED = 130
Command = TypeVar("Command", bound=Callable[..., Any])

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


def problem_options(command: Command) -> Command:
    """The options that name a problem."""
    options = (
        click.option("--op", default="layernorm", show_default=True, help="A built-in spec, or a TOML file."),
        click.option("--shape", required=True, help="[.., cols], for example 8x1024x768."),
        click.option("--dtype", default="f32", show_default=True, help="f32, f16 or bf16: of the first input."),
        click.option("--dtypes", default="", help="Where others differ: weight=f32,bias=f32."),
        click.option("--direction", type=click.Choice(["forward", "backward"]), default="forward", show_default=True),
        click.option("--without", default="", help="Optional tensors that are absent: bias,mean."),
        click.option("--pitch", type=int, help="Elements from row start to row start (default: cols)."),
        click.option("--align", type=int, default=16, show_default=True, help="Bytes that divide base pointers."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def target_option(command: Command) -> Command:
    help_text = "GPU to compile for when none is used: h200, h100, a100, b200, l4, t4."
    return click.option("--target", default="h200", show_default=True, help=help_text)(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@cli.command()
@problem_options
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else predict).")
@click.option("--cache", type=click.Choice(["cold", "hot"]), default="cold", show_default=True)
@click.option("--trials", type=int, help="Candidates at most.")
@click.option("--budget", default="60s", show_default=True, help="Time in all: 60s, 2m.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the header.")
@click.option("--storage", help="Database for the study, for optuna-dashboard: sqlite:///studies.db.")
def tune(
    as_json: bool,
    device: str | None,
    budget: str,
    target: str,
    output: Path | None,
    storage: str | None,
    **options: Any,
) -> None:
    """Find the fastest kernel for a shape: measured on a GPU, predicted without one.

    --json prints {problem, rows, cols, device, measured, best, default, finalists, counts, phases_s, paths,
    adopted, interrupted, notes}; best and default are records.
    """
    from normgen.console import Terminal, result_text
    from normgen.tuning.tuner import tune as run

    search = {name: options[name] for name in ("cache", "trials", "seed")}
    with Terminal() as progress:
        result = run(
            options["op"],
            **problem_arguments(options),
            **search,
            device=parse_device(device),
            target=target,
            budget_s=parse_seconds(budget),
            output=output,
            storage=storage,
            progress=progress,
        )
    show(result.as_dict() if as_json else result_text(result))
    if result.interrupted:
        sys.exit(INTERRUPTED)


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
def export(files: tuple[Path, ...], output: Path, force: bool) -> None:
    """Write the headers of all records under OUTPUT/records.

    Records in FILES (a run's winner.jsonl) are taken in first, each where it is better than the one shipped.
    """
    from normgen.device import Device
    from normgen.export import export_record
    from normgen.tuning.store import adopt, read

    for file in files:
        for record in read_whole(file):
            taken = adopt(record, output / "records", Device(**dict(record.device)), force=force)
            click.echo(f"{'taken' if taken else 'the shipped one is better'}: {record.problem.op} {record.schedule}")
    records = [r for path in sorted((output / "records").glob("*.jsonl")) for r in read(path).records]
    if not records:
        raise NothingValidError("there is no record to export", received=str(output / "records"))
    for path in dict.fromkeys(export_record(record, output) for record in records):
        click.echo(str(path))


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """What works here: driver, GPU, NVRTC, C++ compiler, cache; and what to do about what does not."""
    from normgen.doctor import diagnose

    report = diagnose()
    show(report.as_dict() if as_json else str(report))


cli.add_command(report)


def show(what: dict[str, Any] | str) -> None:
    """A text as it is, an object as JSON, on stdout."""
    click.echo(what if isinstance(what, str) else json.dumps(what, indent=2, ensure_ascii=False))


def problem_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of make_problem and tune from the command line's."""
    plain = {name: options[name] for name in ("shape", "dtype", "direction", "pitch", "align")}
    return plain | {"dtypes": parse_pairs(options["dtypes"]), "without": parse_names(options["without"])}


def read_problem(options: dict[str, Any]) -> Problem:
    from normgen.program.source import problem_for
    from normgen.spec_reader import load

    return problem_for(load(options["op"]), **problem_arguments(options))


def read_schedule(problem: Problem, device: Device, knobs: str) -> Schedule:
    """The default schedule with the given knobs changed. Raises UsageError with the reason if it is not legal."""
    from normgen.schedule.legality import refusal
    from normgen.schedule.schedule import schedule_from
    from normgen.tuning import parts

    default = parts.default_schedule(problem, device)
    given = {name: int(value) if value.isdecimal() else value for name, value in parse_pairs(knobs).items()}
    schedule = schedule_from(default.as_dict() | given)
    reason = refusal(problem, schedule, device)
    if reason is not None:
        raise UsageError(reason, received=str(schedule), hint="`normgen space --why` lists every rule")
    return schedule


def read_whole(file: Path) -> Sequence[Any]:
    """The records of a file; a damaged line is an error here, not something to set aside."""
    from normgen.tuning.store import read

    reading = read(file)
    if reading.damaged:
        raise UsageError("every line of a record file must be a record", received=str(reading.damaged[0]))
    return reading.records


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", text) if name)


def parse_pairs(text: str) -> dict[str, str]:
    """`a=1 b=2` or `a=1,b=2`."""
    pairs: dict[str, str] = {}
    for part in parse_names(text):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise UsageError("expected name=value", received=part)
        pairs[name] = value
    return pairs


def parse_seconds(text: str) -> float:
    """`60s`, `2m`, `1.5` (seconds)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    if found is None:
        raise UsageError("a time is a number with s, m or h", received=text, hint="for example 60s or 2m")
    return float(found[1]) * {None: 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def parse_device(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


if __name__ == "__main__":
    main()
