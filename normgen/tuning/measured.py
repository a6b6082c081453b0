"""Tuning on a GPU: the campaign with the real bench, compiler and cost model."""

from __future__ import annotations

from normgen.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.tuning import parts
from normgen.tuning.builder import Builder
from normgen.tuning.campaign import Campaign, finalist_records
from normgen.tuning.measure import Policy
from normgen.tuning.memory import Memory
from normgen.tuning.records import ProblemKey, Record
from normgen.tuning.results import Environment, Results, canonical, results_path
from normgen.tuning.run import Run
from normgen.tuning.search import Search
from normgen.tuning.store import lookup, state_folder
from normgen.tuning.turns import device_name, turn


def measure_on_gpu(run: Run, index: int) -> tuple[tuple[Record, ...], bool]:
    """Search and confirm on GPU `index`: the finalists' records, the winner first, and whether Ctrl-C ended it.

    Raises NothingValidError when no candidate was usable.
    """
    from normgen.cuda.cache import CubinCache
    from normgen.cuda.pool import CompilePool
    from normgen.tuning.gpu_bench import GpuBench

    arch = run.device.arch
    policy = Policy()
    run.memory = memory_of(run, policy)
    with CompilePool(cache=CubinCache()) as pool:
        run.progress.phase("enumerate")
        with run.clock.phase("enumerate"):
            search, default, incumbent = prepare(run)
        run.progress.phase("prepare data")
        with run.clock.phase("prepare data"):
            bench = GpuBench(run.problem, run.device, index=index, cache=run.cache, seed=run.seed)
        campaign = Campaign(
            run,
            search=search,
            builder=Builder(run.problem, emit=parts.emit, submit=lambda module: pool.submit(module, arch)),
            bench=bench,
            default=default,
            policy=policy,
        )
        campaign.turn = lambda: turn(
            device_name(index), state_folder() / "turns", patience_s=lambda: run.clock.left_s, warn=run.note
        )
        campaign.incumbent = incumbent
        run.progress.phase("search")
        finish = campaign.finish()
    return finalist_records(campaign, finish), finish.interrupted


def memory_of(run: Run, policy: Policy) -> Memory:
    """What the run's own file says when it was resumed, and the results of other runs unless they are not wanted."""
    if not run.reuse:
        return Memory(own=run.recorded)
    here = environment_here(run, policy)
    path = results_path(ProblemKey.of(run.problem), run.device)
    return Memory(own=run.recorded, results=Results(path, here, report=run.note))


def environment_here(run: Run, policy: Policy) -> Environment:
    return Environment(
        spec=run.problem.spec.sha256,
        gpu=run.device.name,
        generator=run.versions.get("generator", ""),
        nvrtc=run.versions.get("nvrtc", ""),
        cache=run.cache.value,
        policy=canonical(policy.as_dict()),
    )


def prepare(run: Run) -> tuple[Search, Schedule, Schedule | None]:
    """The search over the legal set ordered by the cost model, the default, and the incumbent if there is one."""
    default = parts.default_schedule(run.problem, run.device)
    legal = parts.with_default(parts.legal_space(run.problem, run.device).legal, default)
    found = lookup(run.problem, run.device, cache=run.cache)
    known = [found.record.schedule] if found.record else []
    predicted = [parts.predicted_us(run.problem, s, run.device) for s in legal]
    search = Search(
        legal, predicted=predicted, seeds=(default, *known), seed=run.seed, study_name=study_name(run.problem)
    )
    incumbent = known[0] if found.record and found.exact and found.record.measured else None
    return search, default, incumbent


def study_name(problem: Problem) -> str:
    return f"{problem.name} {problem.rows}x{problem.cols}"
