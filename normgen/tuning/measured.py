"""Tuning on a GPU: the campaign with the real bench, compiler and cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from normgen.device import Device
from normgen.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.tuning import parts
from normgen.tuning.builder import Builder
from normgen.tuning.campaign import Campaign, finalist_records
from normgen.tuning.measure import Policy
from normgen.tuning.memory import Memory
from normgen.tuning.records import Cache, ProblemKey, Record
from normgen.tuning.results import Environment, Results, canonical, results_path, to_stderr
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
    results = results_here(run.problem, run.device, run.cache, run.versions, policy=policy, report=run.note)
    return Memory(own=run.recorded, results=results, reuse=run.reuse)


def results_here(
    problem: Problem,
    device: Device,
    cache: Cache,
    versions: Mapping[str, str],
    *,
    policy: Policy | None = None,
    report: Callable[[str], None] = to_stderr,
) -> Results:
    """The kept results of a problem, as a run with these versions and this policy would use them."""
    here = Environment(
        spec=problem.spec.sha256,
        gpu=device.name,
        generator=versions.get("generator", ""),
        nvrtc=versions.get("nvrtc", ""),
        cache=cache.value,
        policy=canonical((policy or Policy()).as_dict()),
    )
    return Results(results_path(ProblemKey.of(problem), device), here, report=report)


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
