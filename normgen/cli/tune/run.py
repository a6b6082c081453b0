"""What the command that tunes does: one problem, a few row counts, or a suite over several GPUs and hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgen.cli.options import parse_names, parse_seconds, parse_whole, show
from normgen.cli.text.result import Terminal, result_text
from normgen.cli.text.suite import SuiteTerminal, suite_text
from normgen.cuda.driver import device_facts, devices
from normgen.device import target
from normgen.engines.vllm_sizes import ROWS, calls_of, read_config, suite_of
from normgen.errors import (
    FileError,
    NoDeviceError,
    NormgenError,
    NothingValidError,
    UsageError,
    VerificationError,
    needed,
    refusal_of,
)
from normgen.files.private import try_writing
from normgen.studies.trial_files import read_trials
from normgen.suites.bands import parse_rows
from normgen.suites.rows import tune_rows as tune_bands
from normgen.suites.suite import Suite, load_suite
from normgen.trials.kept import NAME, Folder, push
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune

if TYPE_CHECKING:
    from normgen.suites.crew import HostPlan

INTERRUPTED = 130


def tune_one(as_json: bool, op: str, arguments: dict[str, Any], *, push_to: Path | None = None) -> int:
    """Tune one problem, by the arguments of `tune`, and push its trials; the exit code."""
    if push_to is not None:
        _require(push_to)
    with Terminal() as progress:
        result = tune(op, **arguments, progress=progress)
        if push_to is not None:
            _push(result, push_to, progress)
    show(result if as_json else result_text(result, progress.said))
    if result.interrupted:
        return INTERRUPTED
    if result.header_path:
        return 0
    return FileError.exit_code if result.record.verified else VerificationError.exit_code


def _require(folder: Path) -> None:
    """Raises FileError where no trials could be written into a folder."""
    with needed("the folder that trials are pushed into must be writable", hint="choose another one with --push"):
        try_writing(folder)


def _push(result: Result, folder: Path, progress: Terminal) -> None:
    """Copy the trials of a run into a shared folder. A search has ended: what cannot be written is said."""
    if not result.measured:
        progress.note("nothing was measured without a GPU: no trials were pushed")
        return
    try:
        push(Folder(folder), read_trials(result.candidates_path.with_name(NAME)))
    except (OSError, NormgenError) as error:
        progress.note(f"not pushed: {refusal_of(error) if isinstance(error, OSError) else error}")


def tune_rows(as_json: bool, op: str, rows: str, arguments: dict[str, Any], *, push_to: Path | None = None) -> int:
    """Tune the row counts that serve `rows`, and push their trials; the exit code."""
    if push_to is not None:
        _require(push_to)
    with Terminal() as progress:

        def note(result: Result) -> None:
            progress.note(f"{result.problem.rows} rows: {result.record.schedule}")
            if push_to is not None:
                _push(result, push_to, progress)

        result = tune_bands(op, rows=rows, on_band=note, progress=progress, **arguments)
    show(result if as_json else str(result))
    return INTERRUPTED if result.interrupted else 0


def tune_suite(as_json: bool, suite: str | None, options: dict[str, Any]) -> int:
    """Tune every problem of a suite, or of what an engine asks for a model; the exit code."""
    from normgen.suites.crew import tune_suite as tune_all

    plan = _plan(load_suite(suite) if suite is not None else _of_engine(options), options)
    with SuiteTerminal([label for label, _ in plan.tasks]) as progress:
        result = tune_all(plan, progress)
    show(result if as_json else suite_text(result))
    if result.interrupted:
        return INTERRUPTED
    return NothingValidError.exit_code if result.failed else 0


def _of_engine(options: dict[str, Any]) -> Suite:
    """The problems of what vLLM calls for a model."""
    rows = parse_rows(options["rows"]) if options["rows"] else ROWS
    return suite_of(calls_of(read_config(options["model"]), tp=options["tp"]), rows=rows)


def _plan(suite: Suite, options: dict[str, Any]) -> HostPlan:
    from normgen.suites.crew import HostPlan, suite_id, tasks_of

    suite = suite.only(options["only"]) if options["only"] else suite
    found = _devices(options["device"], options["gpus"])
    device = found[0][1] if found else target(options["target"])
    tasks = tasks_of(
        suite.entries, trials=options["trials"], budget_s=parse_seconds(options["budget"]), seed=options["seed"]
    )
    return HostPlan(
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
