"""The command that tunes: one problem, or a suite over several GPUs and hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from normgen.cli.options import (
    json_option,
    parse_device,
    parse_names,
    parse_seconds,
    parse_whole,
    place_options,
    problem_arguments,
    problem_options_or_suite,
    seed_option,
    show,
    target_option,
)
from normgen.cli.text.result import Terminal, result_text
from normgen.cli.text.suite import SuiteTerminal, suite_text
from normgen.cuda.driver import device_facts, devices
from normgen.device import target
from normgen.errors import FileError, NoDeviceError, NothingValidError, UsageError
from normgen.suites.rows import tune_rows
from normgen.suites.suite import load_suite
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune as run

if TYPE_CHECKING:
    from normgen.suites.crew import Plan

INTERRUPTED = 130
MOST_JOBS = 1024


@click.command()
@problem_options_or_suite
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else predict).")
@place_options
@click.option("--trials", type=int, help="Candidates at most.")
@click.option("--budget", default="60s", show_default=True, help="Time in all: 60s, 2m; with --suite for each problem.")
@seed_option
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the header.")
@click.option("--resume", is_flag=True, help="Go on with the last run, or suite, that asked the same and was killed.")
@click.option("--reuse/--no-reuse", default=True, help="Take over times other runs measured under the same conditions.")
@click.option("--rows", help="1..16384: tune a few row counts that serve all of these; the shape is *x4096.")
@click.option("--suite", help="Tune every problem of a suite: a built-in one, or a TOML file.")
@click.option("--only", help="Entries of the suite whose label contains this: 'rmsnorm*bf16'.")
@click.option("--gpus", help="GPUs that work on the suite, one worker each: all, or 0,1 (default: all).")
@click.option("--jobs", type=click.IntRange(1, MOST_JOBS), default=1, show_default=True, help="Workers without a GPU.")
@click.option(
    "--storage",
    help="Database for the study, sqlite:///studies.db; hosts share a suite through postgresql://user@host/name.",
)
@click.option("--restart", is_flag=True, help="With --storage: forget what it has of this suite.")
@click.option("--stale-after", default="15s", show_default=True, help="A worker silent for so long counts as dead.")
def tune(as_json: bool, suite: str | None, **options: Any) -> None:
    """Find the fastest kernel for a shape, or for each of a suite: measured on a GPU, predicted without one.

    \b
    --json prints {problem, rows, cols, device, measured, best, default, finalists, counts, phases_s, paths,
    adopted, interrupted, notes}; best and default are records. With --suite: {suite, device, workers, wall_s,
    interrupted, jobs: [{label, status, attempts, reason, best}]}. With --rows: {bands, paths, interrupted}, bands as
    for one problem each.
    """
    if (suite is None) == (options["shape"] is None):
        raise UsageError("give --shape for one problem, or --suite", hint="for example --shape 8x1024x768")
    code = _tune_one(as_json, options) if suite is None else _tune_suite(as_json, suite, options)
    if code:
        sys.exit(code)


def _tune_one(as_json: bool, options: dict[str, Any]) -> int:
    for name in ("only", "gpus", "restart"):
        if options[name]:
            raise UsageError(f"--{name} belongs to --suite", received=str(options[name]))
    search = {
        name: options[name]
        for name in ("setting", "context", "trials", "seed", "target", "output", "resume", "reuse", "storage")
    }
    arguments = {**problem_arguments(options), **search}
    terms: dict[str, Any] = {"device": parse_device(options["device"]), "budget_s": parse_seconds(options["budget"])}
    if options["rows"] is not None:
        return _tune_rows(as_json, options, {**arguments, **terms})
    with Terminal() as progress:
        result = run(options["op"], **arguments, **terms, progress=progress)
    show(result.as_dict() if as_json else result_text(result, progress.said))
    if result.interrupted:
        return INTERRUPTED
    return 0 if result.header_path else FileError.exit_code


def _tune_rows(as_json: bool, options: dict[str, Any], arguments: dict[str, Any]) -> int:
    with Terminal() as progress:

        def note(result: Result) -> None:
            progress.note(f"{result.problem.rows} rows: {result.record.schedule}")

        result = tune_rows(options["op"], rows=options["rows"], on_band=note, progress=progress, **arguments)
    show(result.as_dict() if as_json else str(result))
    return INTERRUPTED if result.interrupted else 0


def _tune_suite(as_json: bool, suite: str, options: dict[str, Any]) -> int:
    from normgen.suites.crew import tune_suite

    plan = _plan(suite, options)
    with SuiteTerminal([label for label, _ in plan.tasks]) as progress:
        result = tune_suite(plan, progress)
    show(result.as_dict() if as_json else suite_text(result))
    if result.interrupted:
        return INTERRUPTED
    return NothingValidError.exit_code if result.failed else 0


def _plan(name: str, options: dict[str, Any]) -> Plan:
    from normgen.suites.crew import Plan, suite_id, tasks_of

    suite = load_suite(name)
    suite = suite.only(options["only"]) if options["only"] else suite
    found = _devices(options["device"], options["gpus"])
    device = found[0][1] if found else target(options["target"])
    tasks = tasks_of(
        suite.entries, trials=options["trials"], budget_s=parse_seconds(options["budget"]), seed=options["seed"]
    )
    return Plan(
        suite=suite_id(suite.name, tasks, device, measured=bool(found)),
        tasks=tasks,
        device=device,
        devices=[index for index, _ in found] or ["cpu"] * options["jobs"],
        target=options["target"],
        storage=options["storage"],
        resume=options["resume"],
        restart=options["restart"],
        reuse=options["reuse"],
        stale_s=parse_seconds(options["stale_after"]),
    )


def _devices(device: str | None, gpus: str | None) -> list[tuple[int, Any]]:
    """(index, facts) of the GPUs to use; none: predict. Raises NoDeviceError when one that is asked for is absent."""
    if device == "cpu":
        return []
    if device is not None and gpus is not None:
        raise UsageError("--device and --gpus both name GPUs", received=f"{device} and {gpus}")
    wanted = gpus if gpus is not None else device
    try:
        here = list(range(len(devices())))
    except NoDeviceError:
        here = []
    if wanted is None or wanted == "all":
        if not here and wanted == "all":
            raise NoDeviceError("--gpus all needs at least one GPU", hint="--device cpu predicts without one")
        chosen = here
    else:
        chosen = [number for name in parse_names(wanted) if isinstance(number := parse_whole(name), int)]
        if len(chosen) != len(parse_names(wanted)):
            raise UsageError("GPUs are all, or numbers", received=wanted, hint="for example --gpus 0,1")
        if absent := sorted(set(chosen) - set(here)):
            raise NoDeviceError("a GPU that was asked for is not there", received=", ".join(map(str, absent)))
    facts = [(index, device_facts(index)) for index in chosen]
    if len({found.name for _, found in facts}) > 1:
        models = ", ".join(sorted({found.name for _, found in facts}))
        raise UsageError("a suite is tuned on one GPU model at a time", received=models, hint="choose with --gpus")
    return facts
