"""`tune()`: from a shape to a tuned kernel, its record and its header."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.device import target as named_target
from normgen.errors import UsageError, VerificationError, did_you_mean
from normgen.export import export_record, require_folder, require_room, ships
from normgen.export.groups import NoHeaderError
from normgen.files.private import write_atomically
from normgen.measure.isolation.start import Start, StartedGpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.question import ASKED, Asked, check_kinds
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting, place_named
from normgen.records.questions import tune_command
from normgen.records.record import Record
from normgen.records.winners import adopt, gpu_slug, read, spec_path, state_folder
from normgen.spec.given import Given, spec_of
from normgen.trials.file import write
from normgen.trials.kept import NAME as TRIALS
from normgen.trials.kept import append, joined, of_records
from normgen.trials.versions import environment
from normgen.tuning.compile import text_of
from normgen.tuning.measured import measure_on_gpu
from normgen.tuning.predicted import predict_without_gpu
from normgen.tuning.progress import LARGEST_SEED, LONGEST_BUDGET_S, Progress, Silent
from normgen.tuning.result import Result
from normgen.tuning.run import Clock, Study, TuningRun, open_run
from normgen.tuning.search.names import require_sampler

PROVE = "`normgen export winner.jsonl` compares it and writes one where there is a C++ compiler"
DEFAULT_TRIALS = 64  # docs/search.md: the worst of 50 seeds is within 1 % of the optimum after 50


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """How a kernel is looked for: the arguments of `tune` that do not say which kernel, or where.

    Raises UsageError for a number that is out of range.
    """

    place: Place
    trials: int
    goes_on: bool
    budget_s: float
    seed: int
    progress: Progress
    resume: bool
    reuse: bool
    study: Study | None
    storage: str | None
    sampler: str

    def __post_init__(self) -> None:
        require_sampler(self.sampler)
        if self.trials < 1:
            raise UsageError("a run needs at least one trial", received=str(self.trials))
        if not 0 < self.budget_s <= LONGEST_BUDGET_S:
            rule = f"the budget is a positive number of seconds, {LONGEST_BUDGET_S:.0f} at most"
            raise UsageError(rule, received=f"{self.budget_s:g}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"a seed is a whole number from 0 to {LARGEST_SEED}", received=str(self.seed))


def tune(
    op: Given = "layernorm",
    *,
    shape: str | int | tuple[int, ...],
    device: int | str | None = None,
    target: str = "h200",
    setting: str = Setting.FRESH,
    context: str = Context.BETWEEN,
    trials: int | None = None,
    budget_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
    output: str | Path | None = None,
    replace: bool = False,
    resume: bool = False,
    reuse: bool = True,
    study: Study | None = None,
    storage: str | None = None,
    sampler: str = "normgen",
    start: Start | None = None,
    **question: Unpack[Asked],
) -> Result:
    """Find the fastest kernel of a spec for one shape [.., cols], on a GPU or, without one, by prediction.

    op        a built-in spec's name, the path of a TOML file, its text, the mapping it stands for, or a `Spec`
    device    a GPU's number; "cpu": predict for `target`; None: the first GPU, else predict
    setting   what the kernel finds in L2: "fresh", the main input; "cold", nothing; "hot", everything (`records.place`)
    context   what runs before and behind it: "between" plain kernels, in a "chain", "matmul", or "alone"
    trials    candidates to try; None: up to 64, fewer when none that is left promises more
    budget_s  seconds in all
    output    folder of the header (default: the run's own folder)
    replace   a header there of another spec of this name gives way; else it is an error before the search
    resume    go on with the newest run that asked the same and was killed; nothing it measured is measured again
    reuse     times that other runs measured under the same conditions are taken over; finalists are always re-timed
    study     a study in a shared database that gets every candidate too (`suites.shared_study`)
    storage   URL of a database for the study of a measured search, for optuna-dashboard: sqlite:///file.db
    sampler   what decides which candidate is next: "normgen", or Optuna's "tpe", "gp" (needs torch) or "random"
    start     looks for the device already, and ends with the run: `device` is not looked at
    question  which kernel: dtype="bf16", direction="backward", without, gradients, ...; see `problem.Asked`

    Errors: UsageError, SpecError; FileError where `output` or the state folder cannot be written; NoDeviceError when
    the GPU asked for is not there; NothingValidError when no candidate compiles and is right; VerificationError when a
    derived backward is not the derivative of its formula.
    Ctrl-C ends the search with the best so far (`Result.interrupted`).
    """
    terms = _Terms(
        place=place_named(setting, context),
        trials=DEFAULT_TRIALS if trials is None else trials,
        goes_on=trials is not None,
        budget_s=budget_s,
        seed=seed,
        progress=progress or Silent(),
        resume=resume,
        reuse=reuse,
        study=study,
        storage=storage,
        sampler=sampler,
    )
    folder = None if output is None else Path(output)
    if folder is not None:
        require_folder(folder)
    with start or Start(device) as looking:
        return _tuned(op, shape, _checked(question), terms, looking, target=target, output=folder, replace=replace)


def _checked(question: Asked) -> Asked:
    """The question. Raises UsageError for an argument that `tune` does not have; Python accepts any keyword."""
    for name in question:
        if name not in ASKED:
            raise UsageError("tune has no such argument", received=name, hint=did_you_mean(name, sorted(ASKED)))
    check_kinds(question)
    return question


def _tuned(
    op: Given,
    shape: str | int | tuple[int, ...],
    question: Asked,
    terms: _Terms,
    start: Start,
    *,
    target: str,
    output: Path | None,
    replace: bool,
) -> Result:
    """On a GPU its processes get ready while the spec is read."""
    clock = Clock(terms.budget_s)
    with clock.phase("find the device"):
        gpu = start.found()
        facts = gpu.device if gpu else named_target(target)
    with clock.phase("read the spec"):
        problem = _problem(op, shape, question)
    if output is not None and not replace:
        require_room(problem, facts.arch, output)
    with open_run(
        problem,
        facts,
        command=tune_command(
            spec_path(op, problem.spec),
            problem,
            place=terms.place,
            seed=terms.seed,
            target=None if gpu else gpu_slug(facts),
        ),
        versions=environment(measured=gpu is not None),
        clock=clock,
        measured=gpu is not None,
        **vars(terms),
    ) as run:
        records, interrupted = _finalists(run, gpu)
        return conclude(run, records, interrupted=interrupted, output=output, replace=replace)


def _finalists(run: TuningRun, gpu: StartedGpu | None) -> tuple[tuple[Record, ...], bool]:
    """Measured where there is a GPU, else predicted; and whether Ctrl-C ended it."""
    if gpu is None:
        return predict_without_gpu(run)
    return measure_on_gpu(run, gpu.processes)


def _problem(op: Given, shape: str | int | tuple[int, ...], question: Asked) -> Problem:
    """The problem of a spec. Raises UsageError, also for a shape that leaves nothing to tune.

    A backward that no one wrote by hand is proven here, once for all candidates: VerificationError.
    """
    problem = problem_for(spec_of(op), shape=shape, **question)
    if problem.rows == 0:
        raise UsageError("a shape without rows has nothing to tune", received=str(shape))
    verify.prove_derivative(problem)
    return problem


def conclude(
    run: TuningRun, records: tuple[Record, ...], *, interrupted: bool, output: Path | None, replace: bool = False
) -> Result:
    """Write the winner's record and header, adopt it among the user's winners, and gather the result.

    A search has ended: what the state folder or the folder of the header does not take is said, and all else is kept.
    """
    winner = records[0]
    record_path, header, adopted = None, None, False
    with run.keeping("the record of the winner"):
        write_atomically(run.folder / "winner.jsonl", winner.line())
        record_path = run.folder / "winner.jsonl"
    with run.clock.phase("export"), run.keeping("the header"):
        try:
            header = export_record(winner, output or run.folder, spec=run.problem.spec, replace=replace)
        except VerificationError as error:
            run.note(f"no header: {error.received}; {PROVE}")
        except NoHeaderError as error:
            run.note(f"no header: {error.rule}; {error.hint}")
    text_now = partial(text_of, run.problem, emit=emit)
    with run.keeping("the winner among this user's records"):
        adopted = adopt(winner, state_folder() / "records", run.device, text_now=text_now)
    if run.measured:
        with run.keeping("the trials"):
            found = joined(of_records([*read(run.candidates_path).records, *records], run.folder.name))
            write(run.folder / TRIALS, found)
            append(state_folder() / TRIALS, found.trials)
    run.finish()
    default = default_schedule(run.problem, run.device)
    return Result(
        problem=run.problem,
        device=run.device,
        record=winner,
        default=next((r for r in records if r.schedule == default), None),
        finalists=records,
        counts=dict(sorted(run.counts.items())),
        phases_s=run.clock.shares_s(),
        candidates_path=run.candidates_path,
        record_path=record_path,
        header_path=header,
        ships=None if run.measured else ships(run.problem, run.device),
        adopted=adopted,
        interrupted=interrupted,
        notes=tuple(run.notes),
    )
