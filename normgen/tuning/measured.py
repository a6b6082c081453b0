"""Tuning on a GPU: the campaign with the real bench, compiler and cost model."""

from __future__ import annotations

from normgen.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.tuning import parts
from normgen.tuning.builder import Builder
from normgen.tuning.campaign import Campaign, finalist_records
from normgen.tuning.measure import Policy
from normgen.tuning.records import Record
from normgen.tuning.run import Run
from normgen.tuning.search import Search
from normgen.tuning.store import lookup
from normgen.tuning.study import StudyCopy


def measure_on_gpu(run: Run, index: int) -> tuple[tuple[Record, ...], bool]:
    """Search and confirm on GPU `index`: the finalists' records, the winner first, and whether Ctrl-C ended it.

    Raises NothingValidError when no candidate was usable.
    """
    from normgen.cuda.cache import CubinCache
    from normgen.cuda.pool import CompilePool
    from normgen.tuning.gpu_bench import GpuBench

    arch = run.device.arch
    with CompilePool(cache=CubinCache()) as pool:
        run.progress.phase("enumerate")
        with run.clock.phase("enumerate"):
            copy = study_copy(run)
            search, default, incumbent = prepare(run, copy=copy)
        run.progress.phase("prepare data")
        with run.clock.phase("prepare data"):
            bench = GpuBench(run.problem, run.device, index=index, cache=run.cache, seed=run.seed)
        campaign = Campaign(
            run,
            search=search,
            builder=Builder(run.problem, emit=parts.emit, submit=lambda module: pool.submit(module, arch)),
            bench=bench,
            default=default,
            policy=Policy(),
        )
        campaign.incumbent = incumbent
        run.progress.phase("search")
        finish = campaign.finish()
        if copy is not None and copy.lost:
            run.note(f"the study in the storage is not complete: {copy.lost}")
    return finalist_records(campaign, finish), finish.interrupted


def study_copy(run: Run) -> StudyCopy | None:
    """A study of its own for this run, in the storage it was given; named as the run's folder."""
    if run.storage is None:
        return None
    copy = StudyCopy(run.storage, run.folder.name)
    copy.describe(problem=str(run.problem), device=run.device.name, cache=run.cache.value, command=run.command)
    return copy


def prepare(run: Run, *, copy: StudyCopy | None = None) -> tuple[Search, Schedule, Schedule | None]:
    """The search over the legal set ordered by the cost model, the default, and the incumbent if there is one."""
    default = parts.default_schedule(run.problem, run.device)
    legal = parts.with_default(parts.legal_space(run.problem, run.device).legal, default)
    found = lookup(run.problem, run.device, cache=run.cache)
    known = [found.record.schedule] if found.record else []
    predicted = [parts.predicted_us(run.problem, s, run.device) for s in legal]
    search = Search(
        legal,
        predicted=predicted,
        seeds=(default, *known),
        seed=run.seed,
        study_name=study_name(run.problem),
        copy=copy,
    )
    incumbent = known[0] if found.record and found.exact and found.record.measured else None
    return search, default, incumbent


def study_name(problem: Problem) -> str:
    return f"{problem.name} {problem.rows}x{problem.cols}"
