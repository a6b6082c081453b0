"""The end of a campaign: the fastest few are timed once more, together, and the winner is checked in full."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from normgen.errors import NothingValidError
from normgen.files.plain import plain
from normgen.knobs import Statistics
from normgen.measure import timing
from normgen.measure.elsewhere import Elsewhere, FinalistTrial
from normgen.measure.judge import RoofCosts
from normgen.measure.timing import Confirmation
from normgen.records.record import Record
from normgen.schedule.legality import statistics
from normgen.tuning.candidate import Checked, Failed, Proposed, Timed
from normgen.tuning.hearing import Hearing
from normgen.tuning.standings import tie_order

LEFT_OUT_PAYS = 0.01  # of its price, which a kernel that cannot store a statistic must gain over one that can


@dataclass(frozen=True, kw_only=True)
class CampaignEnd:
    """What a campaign ends with; times of `candidates` and `confirmation` are of one interleaved run.

    candidates  the finalists, fastest first, the default among them
    matmul      by schedule's key, see `measure.elsewhere`
    conditions  of the device during the confirmation
    """

    winner: Timed
    candidates: tuple[Timed, ...]
    confirmation: Confirmation | None = None
    roof: RoofCosts
    default_us: float | None
    interrupted: bool = False
    matmul: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)


def confirm(hearing: Hearing) -> CampaignEnd:
    """Re-time the fastest with the roof in one interleaved run, and check the winner in full.

    A winner that is wrong in a further call is out: those that are left race again. So the calls of a full check are
    made for one kernel of most tunes, and no kernel leaves a tune without them.
    Raises NothingValidError when every finalist is out, DeviceLostError when nothing can be judged any more.
    """
    while True:
        with hearing.run.clock.phase("verify"):
            finalists = _finalists(hearing)
        with hearing.run.clock.phase("confirm"):
            finalists, confirmation = _confirmation(hearing, finalists)
            conditions = hearing.bench.conditions()
        with hearing.run.clock.phase("elsewhere"):
            found = _elsewhere(hearing, finalists, confirmation)
        with hearing.run.clock.phase("verify in full"):
            winner = hearing.admit(found.winner, full=True)
        if isinstance(winner, Checked):
            break
        hearing.run.keep(winner, search=hearing.conditions)
    if spills := conditions.get("spills"):
        hearing.run.note(f"not hot: {spills}")
    for said in winner.verified.not_shown if winner.verified else ():
        hearing.run.note(f"not shown: {said}")
    times, prices = confirmation.times, confirmation.prices
    left = [winner, *(c for c in found.left if c.key != winner.key)]
    timed = {c.key: c.timed(times[c.key], prices.get(c.key), found.alone_us.get(c.key)) for c in left}
    for candidate in timed.values():
        hearing.take(candidate)
    return CampaignEnd(
        winner=timed[winner.key],
        candidates=tuple(sorted(timed.values(), key=lambda c: (c.key != winner.key, c.times_us.median))),
        confirmation=confirmation,
        roof=hearing.judge.roof_in(confirmation),
        default_us=hearing.standings.us_of(hearing.default),
        matmul=found.matmul,
        conditions=conditions,
    )


def _finalists(hearing: Hearing) -> list[Checked]:
    """The fastest that pass a plain call, of one kernel one; then the default and the incumbent where usable."""
    chosen: list[Checked] = []
    codes: set[str] = set()
    for candidate in hearing.standings.ranked:
        is_over = len(chosen) >= hearing.policy.finalists or codes & candidate.code
        if is_over and not hearing.is_guest(candidate):
            continue
        found = hearing.admit(candidate)
        if isinstance(found, Checked):
            chosen.append(found)
            codes |= candidate.code
        else:
            hearing.run.keep(found, search=hearing.conditions)
    if not chosen:
        raise NothingValidError("every candidate failed the check", received=hearing.run.counted)
    return [*chosen, *_counterpart(hearing, chosen)]


def _counterpart(hearing: Hearing, chosen: Sequence[Checked]) -> list[Checked]:
    """The leader without code for statistics that nobody asked for, where it has some; or with it."""
    leader, run = chosen[0], hearing.run
    is_bare = leader.schedule.statistics is Statistics.LEFT_OUT
    schedule = replace(leader.schedule, statistics=Statistics.NULLABLE if is_bare else Statistics.LEFT_OUT)
    if statistics(run.problem, schedule, run.device) is not None or not hearing.has_time():
        return []
    if any(c.schedule == schedule for c in (*chosen, *hearing.standings.failed)):
        return []
    built = hearing.builder.rebuilt(Proposed(schedule=schedule, predicted_us=leader.predicted_us, chosen="counterpart"))
    found = built if isinstance(built, Failed) else hearing.admit(built)
    if isinstance(found, Checked):
        return [found]
    run.keep(found, search=hearing.conditions)
    return []


def _confirmation(hearing: Hearing, finalists: list[Checked]) -> tuple[list[Checked], Confirmation]:
    """The finalists' last race, and who was timed in it: one that faults is out and the others race again."""
    by_key = {c.key: c for c in finalists}

    def run(keys: list[str]) -> Confirmation:
        if not keys:
            raise NothingValidError("every finalist failed in the confirmation", received=hearing.run.counted)
        return timing.confirm(
            hearing.bench,
            keys,
            tie_order=lambda key: tie_order(by_key[key]),
            policy=hearing.policy,
            seed=hearing.run.seed,
            others=hearing.judge.roofs,
            incumbent=next((key for key in keys if by_key[key].schedule == hearing.incumbent), None),
            settle=lambda winner, us: _settled(by_key[winner], us),
        )

    confirmation, faults = hearing.judge.rerun(list(by_key), run, dropped=partial(hearing.drop, among=by_key))
    return [c for c in finalists if c.key not in faults], confirmation


def _settled(winner: Checked, us: Mapping[str, float]) -> str:
    """The winner; where it only gains little by leaving statistics out, the kernel that serves all callers."""
    full = replace(winner.schedule, statistics=Statistics.NULLABLE).key
    return full if us.get(full, math.inf) * (1 - LEFT_OUT_PAYS) <= us[winner.key] else winner.key


def _elsewhere(hearing: Hearing, finalists: list[Checked], confirmation: Confirmation) -> Elsewhere[Checked]:
    """The winner that does not lose between matrix products, and what the finalists take alone."""
    run, policy = hearing.run, hearing.policy
    found = FinalistTrial(
        hearing.judge,
        finalists,
        confirmation,
        default=next((c for c in finalists if c.schedule == hearing.default), None),
        place=run.place,
        policy=policy,
        seed=run.seed,
        dropped=partial(hearing.drop, among={c.key: c for c in finalists}),
    ).held()
    for candidate in found.passed_over:
        run.note(f"passed over, it loses to the default between matrix products: {candidate.schedule}")
    if found.refused:
        run.note(f"not compared between matrix products: {found.refused}")
    price = confirmation.prices.get(found.winner.key)
    if price is not None and price.spread > policy.price_spread:
        rounds = confirmation.times[found.winner.key].n
        run.note(f"the marginal time's interval is {100 * price.spread:.1f} % wide after {rounds} rounds")
    return found


def finalist_records(hearing: Hearing, finish: CampaignEnd) -> tuple[Record, ...]:
    """The finalists' records, the winner first."""
    search = _summary(hearing, finish)
    evidence = {**finish.roof.evidence, "default_us": finish.default_us, "search": search}
    winner_first = [finish.winner, *(c for c in finish.candidates if c is not finish.winner)]
    return tuple(hearing.run.record(c, **evidence) for c in winner_first)


def _summary(hearing: Hearing, finish: CampaignEnd) -> dict[str, Any]:
    """What a record says of the search that found it."""
    run, confirmation, incumbent = hearing.run, finish.confirmation, hearing.incumbent
    rivals = {c.schedule for c in finish.candidates} if confirmation else set()
    return {
        "trials": hearing.search.trials,
        "outcomes": dict(sorted(run.counts.items())),
        "phases_s": {name: round(s, 2) for name, s in run.clock.phases_s.items()},
        "elapsed_s": round(run.clock.elapsed_s, 2),
        "noise_floor": confirmation.noise_floor if confirmation else None,
        "ties": len(confirmation.ties) if confirmation else None,
        "matmul": dict(finish.matmul),
        "policy": plain(hearing.policy),
        "conditions": dict(finish.conditions),
        # Its line is replaced only by a winner of the same interleaved run, which was faster beyond the noise.
        "incumbent": incumbent.key if incumbent in rivals else None,
    }
