"""Tuning on a GPU: the campaign with the real bench, compiler and cost model, each in its own processes.

A run's processes (`measure.isolation.start`) get ready while this one reads the spec and enumerates. The device is
touched by its worker alone; texts are emitted in a thread while the worker measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.cost.model import terms
from normgen.device import Device
from normgen.files.plain import plain
from normgen.files.private import to_stderr
from normgen.measure import judge
from normgen.measure.chains.chain import chain_modules
from normgen.measure.chains.works import roof_modules
from normgen.measure.isolation.start import Processes
from normgen.measure.isolation.turns import TURNS, device_name, turn
from normgen.measure.timing import Policy
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records.memory import KnownAnswers
from normgen.records.place import Place
from normgen.records.record import Record
from normgen.records.results import Environment, KeptResults, canonical, results_path
from normgen.records.winners import lookup
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space, with_default
from normgen.tuning.campaign import Campaign
from normgen.tuning.compile import Builder
from normgen.tuning.finals import finalist_records
from normgen.tuning.run import TuningRun
from normgen.tuning.search.features import facts_of
from normgen.tuning.search.names import SAMPLERS

if TYPE_CHECKING:
    from normgen.tuning.search.dashboard import StudyCopy
    from normgen.tuning.search.search import Search


def measure_on_gpu(run: TuningRun, using: Processes) -> tuple[tuple[Record, ...], bool]:
    """Search and confirm on a GPU: the finalists' records, the winner first, and whether Ctrl-C ended it.

    Raises NothingValidError when no candidate was usable.
    """
    arch = run.device.arch
    policy = Policy()
    run.memory = memory_of(run, policy)
    bench = judge.bench_at(using.post, run.problem, run.device, place=run.place, seed=run.seed, note=run.note)
    for module in own_modules(run.problem, run.device, run.place):
        using.pool.submit(module, arch)  # into the cache, where the worker looks when it has drawn its data
    run.begin("enumerate")
    with run.clock.phase("enumerate"):
        copy = study_copy(run)
        search, default, incumbent = prepare(run, copy=copy)
    campaign = Campaign(
        run,
        search=search,
        builder=Builder(
            run.problem,
            emit=emit,
            submit=lambda module: using.pool.submit(module, arch),
            emitter=using.emitter,
        ),
        bench=bench,
        default=default,
        policy=policy,
        incumbent=incumbent,
        turn=lambda: turn(device_name(using.post.index), TURNS, patience_s=lambda: run.clock.left_s, warn=run.note),
    )
    campaign.ask_ahead()
    run.begin("prepare data")
    with run.clock.phase("wait for the device"):
        assert bench.roofs, "a bench times its roofs"
    run.progress.phase("search")
    finish = campaign.finish()
    if copy is not None and copy.lost:
        run.note(f"the study in the storage is not complete: {copy.lost}")
    return finalist_records(campaign, finish), finish.interrupted


def own_modules(problem: Problem, device: Device, place: Place) -> list[Module]:
    """The hand-written kernels that a bench of the problem has beside the candidates."""
    return [*chain_modules(place.context), *roof_modules(problem, device)]


def memory_of(run: TuningRun, policy: Policy) -> KnownAnswers:
    """What the run's own file says when it was resumed, and the results of other runs unless they are not wanted."""
    results = results_here(run.problem, run.device, run.place, run.versions, policy=policy, report=run.note)
    return KnownAnswers(own=run.recorded, results=results, reuse=run.reuse)


def results_here(
    problem: Problem,
    device: Device,
    place: Place,
    versions: Mapping[str, str],
    *,
    policy: Policy | None = None,
    report: Callable[[str], None] = to_stderr,
) -> KeptResults:
    """The kept results of a problem, as a run with these versions and this policy would use them."""
    here = Environment(
        spec=problem.spec.sha256,
        gpu=device.name,
        nvrtc=versions.get("nvrtc", ""),
        protocol=versions.get("protocol", ""),
        place=str(place),
        policy=canonical(plain(policy or Policy())),
    )
    return KeptResults(results_path(problem.question, device), here, report=report)


def study_copy(run: TuningRun) -> StudyCopy | None:
    """A study of its own for this run, in the storage it was given; named as the run's folder."""
    if run.storage is None:
        return None
    from normgen.tuning.search.dashboard import StudyCopy

    copy = StudyCopy(run.storage, run.folder.name)
    copy.describe(problem=str(run.problem), device=run.device.name, place=str(run.place), command=run.command)
    return copy


def prepare(run: TuningRun, *, copy: StudyCopy | None = None) -> tuple[Search, Schedule, Schedule | None]:
    """The search over the legal set ordered by the cost model, the default, and the incumbent if there is one."""
    from normgen.tuning.search.search import Search

    default = default_schedule(run.problem, run.device)
    legal = with_default(space(run.problem, run.device).legal, default)
    found = lookup(run.problem, run.device, place=run.place)
    known = [found.schedule] if found.schedule else []
    told = terms(run.problem, legal, run.device, hot=run.place.is_hot)
    search = Search(
        legal,
        predicted=told["us"],
        facts=facts_of(told["occupancy"], told["waves"], told["registers"]),
        seeds=(default, *known),
        seed=run.seed,
        sampler=run.sampler if run.measured else SAMPLERS[0],  # where nothing is told, the cost model alone orders
        study_name=study_name(run.problem),
        copy=copy,
    )
    is_here = found.record is not None and found.record.measured and found.record.place == run.place
    incumbent = known[0] if known and found.exact and is_here else None
    return search, default, incumbent


def study_name(problem: Problem) -> str:
    return f"{problem.name} {problem.rows}x{problem.cols}"
