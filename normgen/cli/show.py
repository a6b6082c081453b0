"""Commands that show what a problem turns into, and whether a kernel is right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from normgen.choice.first import default_schedule
from normgen.cli.options import (
    CommandGroup,
    json_option,
    parse_device,
    problem_options,
    schedule_option,
    seed_option,
    show,
    target_option,
)
from normgen.cli.problems import read_problem, read_scalars
from normgen.cuda.driver import find_gpu
from normgen.device import target as named_target
from normgen.errors import NormgenError, VerificationError
from normgen.ladder.kernels import own_text
from normgen.ladder.points import read_schedule
from normgen.measure.check import check_on_gpu
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit, emit_alone, programs_of
from normgen.problem.problem import Problem
from normgen.problem.question import Asked
from normgen.program.classes import class_of_formulas
from normgen.program.lower import lower
from normgen.program.source import problem_for, written_program
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import list_presets, list_specs, load
from normgen.spec.spec import READ, Spec


@click.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """The built-in specs, and what each computes; then the presets, which have the bits of one library."""
    specs = {name: load(path) for name, path in (list_specs() | list_presets()).items()}
    if as_json:
        show({name: {"summary": spec.summary, "file": spec.file} for name, spec in specs.items()})
        return
    width = max(map(len, specs), default=0)
    for name, spec in specs.items():
        click.echo(f"{name.ljust(width)}  {spec.summary}")


@click.group("spec", cls=CommandGroup)
def spec_group() -> None:
    """Work on spec files."""


@spec_group.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def spec_check(file: Path, as_json: bool) -> None:
    """Read FILE strictly and print the program it says, and the gradients of its backward pass.

    What is read and has no gradient is listed with the reason.
    --json prints {file, name, sha256, program, backward, no_gradient: {tensor: reason}}.
    """
    spec = load(file)
    present = frozenset(t.name for t in spec.tensors)
    program = lower(spec, present=present)
    class_of_formulas(spec, program, present)
    backward = _backward(spec)
    no_gradient = {t.name: t.why_no_gradient for t in spec.tensors if t.role in READ and not t.has_gradient}
    if as_json:
        found = {"file": str(file), "name": spec.name, "sha256": spec.sha256}
        show({**found, "program": str(program), "backward": backward, "no_gradient": no_gradient})
    else:
        none = "".join(f"\nno d{name}: {why}" for name, why in no_gradient.items())
        click.echo(f"{file}: ok\n\n{program}\n\nbackward: {backward}{none}")


def _backward(spec: Spec) -> str:
    """The gradients that the backward pass writes, or why there is none.

    Of products of matrices each gradient is a problem of its own.
    """
    if spec.has_inner:
        return "\n".join(_gradient(spec, t.name) for t in spec.tensors if t.role in READ and t.has_gradient)
    try:
        problem = problem_for(spec, shape=(2, spec.least_cols), dtype=spec.inputs[0].dtypes[0], direction="backward")
    except NormgenError as error:
        return f"none: {error}"
    return ", ".join(problem.results)


def _gradient(spec: Spec, name: str) -> str:
    """That of one tensor of a product, or why no kernel gives it."""
    asked: Asked = {"dtype": spec.inputs[0].dtypes[0], "direction": "backward", "inner": 2, "gradients": [name]}
    try:
        problem = problem_for(spec, shape=(2, 2), **asked)
        class_of_formulas(spec, written_program(problem), frozenset(t.name for t in spec.tensors))
    except NormgenError as error:
        return f"no d{name}: {error}"
    return ", ".join(problem.results)


@click.command("show")
@problem_options
@target_option
@json_option
@click.option("--ir", "what", flag_value="ir", help="The RowProgram after each pass.")
@click.option("--cuda", "what", flag_value="cuda", default="cuda", help="The whole emitted CUDA text (default).")
@click.option("--kernel", "what", flag_value="kernel", help="The kernels alone, without the device library's helpers.")
@click.option("--template", "what", flag_value="template", help="The kernels as in headers: templates of a Config.")
@schedule_option
@click.option("--print-schedule", "what", flag_value="schedule", help="The schedule with every knob.")
def show_command(target: str, what: str, as_json: bool, knobs: str, **options: Any) -> None:
    """What a problem turns into: program, CUDA text or schedule.

    In the CUDA text the sizes of the schedule are written out. Headers have one text for the sizes of many shapes:
    --template prints that.

    --json prints {problem, device, schedule} and what was asked for: cuda, kernel, template (texts) or ir: [{pass,
    program}].
    """
    problem, facts = read_problem(options), named_target(target)
    schedule = read_schedule(problem, facts, knobs)
    if as_json:
        found = {"problem": str(problem), "device": facts.name, "schedule": schedule.as_dict()}
        show(found | ({what: _shown(problem, schedule, what)} if what != "schedule" else {}))
    elif what == "ir":
        before = ""
        for name, program in programs_of(problem, schedule):
            text = str(program)
            click.echo(f"// {name}: unchanged\n" if text == before else f"// {name}\n{text}\n")
            before = text
    elif what == "schedule":
        for name, value in schedule.as_dict().items():
            click.echo(f"{name} = {value}")
    else:
        click.echo(_shown(problem, schedule, what))


def _shown(problem: Problem, schedule: Schedule, what: str) -> Any:
    if what == "ir":
        return [{"pass": name, "program": str(program)} for name, program in programs_of(problem, schedule)]
    if what == "template":
        return own_text(emit(problem, schedule))
    module = emit_alone(problem, schedule)
    return own_text(module) if what == "kernel" else module.source


@click.command("space")
@problem_options
@target_option
@json_option
@click.option("--why", is_flag=True, help="Every reason that excluded combinations of knobs, and how many.")
def space_command(target: str, as_json: bool, why: bool, **options: Any) -> None:
    """How many schedules are legal for a problem, and why the others are not.

    --json prints {problem, legal, refused, default, refusals: [{reason, count, example}]}.
    """
    problem, facts = read_problem(options), named_target(target)
    found = space(problem, facts)
    refused = sum(r.count for r in found.refusals)
    default = default_schedule(problem, facts)
    if as_json:
        refusals = [{"reason": r.reason, "count": r.count, "example": str(r.example)} for r in found.refusals]
        counts = {"problem": str(problem), "legal": len(found.legal), "refused": refused}
        show({**counts, "default": default.as_dict(), "refusals": refusals})
        return
    click.echo(f"{problem} on {facts.name}: {len(found.legal)} legal schedules, {refused} other combinations refused")
    click.echo(f"default: {default}")
    if why:
        for refusal in found.refusals:
            click.echo(f"{refusal.count:>9}  {refusal.reason}\n           for example: {refusal.example}")


@click.command()
@problem_options
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else cpu).")
@schedule_option
@seed_option
@click.option("--set", "scalars", multiple=True, metavar="NAME=VALUE", help="Check at a value of a scalar, too.")
def verify(
    target: str,
    as_json: bool,
    device: str | None,
    knobs: str,
    seed: int,
    scalars: tuple[str, ...],
    **options: Any,
) -> None:
    """Check a kernel against the float64 reference on adversarial rows; exit 4 if it misses its bounds.

    --json prints {problem, schedule, device, ok, summary, verified}: verified as in a record, null of a wrong kernel.
    """
    problem = read_problem(options)
    values = read_scalars(problem.spec, scalars)
    gpu = find_gpu(parse_device(device))
    facts = gpu[1] if gpu else named_target(target)
    schedule = read_schedule(problem, facts, knobs)
    module = emit(problem, schedule)
    if gpu:
        checked = check_on_gpu(problem, module, facts, index=gpu[0], seed=seed, scalars=values)
    else:
        checked = check_on_cpu(problem, module, seed=seed, scalars=values)
    ok, summary = checked.ok, checked.summary
    where = facts.name if gpu else "CPU executor"
    if as_json:
        verified = checked.verified.as_dict() if checked.verified else None
        found = {"problem": str(problem), "schedule": str(schedule), "device": where, "ok": ok, "summary": summary}
        show({**found, "verified": verified})
    else:
        click.echo(f"{problem}, {schedule}, on the {where}\n{summary}")
    if not ok:
        sys.exit(VerificationError.exit_code)
