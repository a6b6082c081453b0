"""The check on the CPU executor: wrong kernels are refused, each in the call that shows it; right ones never are."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from normgen.cpu import build_many, find_compiler
from normgen.cpu.compiler import require_compiler
from normgen.device import target
from normgen.measure.calls import FAR, PITCH_STEP, TRIPS, WALKERS, Call, calls, finishing_loop, together
from normgen.measure.cpu_check import CPU_SMS, check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records.verified import CPU, Site
from normgen.schedule.legality import refusal
from normgen.spec.reader import load
from normgen.verify import default_families
from tests.codegen.covering import Case, cover, pool
from tests.codegen.kernels import IN_REGISTERS, KERNELS, Named, named
from tests.mutation.cases import CASES
from tests.verify import made

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

H200 = target("h200")
MORE = {
    "ring": named(
        "softmax", "4096x1024", "f32",
        {"threads_per_row": 64, "rows_per_block": 2, "persistent": 2, "stages": 3, "copy": "bulk", "hold": "shared",
         "vector": 4, "unroll": 4},
    ),
    "norm_ring": named(
        "layernorm", "4096x1024", "f32",
        {"threads_per_row": 256, "persistent": 2, "stages": 3, "copy": "bulk", "hold": "shared", "vector": 4,
         "unroll": 1},
    ),
    "guarded": named(
        "layernorm", "4096x96", "f32",
        {"threads_per_row": 8, "rows_per_block": 4, "vector": 4, "variance": "guarded", **IN_REGISTERS},
    ),
    "online": named(
        "softmax", "64x1024", "f32",
        {"threads_per_row": 32, "rows_per_block": 4, "vector": 4, "softmax": "online", **IN_REGISTERS},
    ),
}  # fmt: skip
NAMED: dict[str, Named] = {**KERNELS, **MORE}

SITE = Site(executor=CPU, device="x86_64", version="g++ 12.2.0")


def test_a_fault_keeps_its_text_behind_the_call_that_shows_it() -> None:
    kernel = NAMED["warp_per_row"]
    module = kernel.module()
    text = module.text.replace("if (mean != nullptr) mean", "mean")
    check = check_on_cpu(kernel.problem, replace(module, text=text))
    first, second, *_ = check.summary.splitlines()
    assert first == "WRONG with null mean: layernorm forward 10 x 768 f32"
    assert second.startswith("out_of_bounds: ")
    assert "mean[row] = row_mean" in check.summary
    assert check.error == {}


def covering_sample() -> list[Case]:
    """Schedules of every kind that a search may choose, without the rewrites that lose rows of some family."""
    problems = [
        problem_for(load("layernorm"), shape="64x96"),
        problem_for(load("layernorm"), shape="64x77", dtype="bf16", align=4),
        problem_for(load("softmax"), shape="64x128", dtype="f16"),
        problem_for(load("rmsnorm"), shape="64x96", direction="backward"),
        problem_for(load("layernorm"), shape="64x128", dtype="bf16", direction="backward"),
    ]
    cases = []
    for number, problem in enumerate(problems):
        found = pool(problem, H200, random.Random(number))
        right = [c for c in found if c[1].variance != "sum_of_squares"]
        cases += cover(right, 12)
    return cases


def test_no_right_schedule_of_a_covering_sample_is_refused() -> None:
    cases = covering_sample()
    assert len(cases) >= 50
    modules = [emit(*case) for case in cases]
    build_many(modules)
    refused = [
        f"{problem}, {schedule}\n{check.summary}"
        for (problem, schedule), module in zip(cases, modules, strict=True)
        if not (check := check_on_cpu(problem, module, most_elements=1 << 18)).ok
    ]
    assert not refused, "\n".join(refused)


def by_name(name: str) -> dict[str, Call]:
    return {t.says: t for t in calls(NAMED[name].problem, NAMED[name].module(), sm_count=4)}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_the_calls_reach_what_they_say(name: str) -> None:
    kernel, module = NAMED[name], NAMED[name].module()
    problem, launch = kernel.problem, module.kernels[0].launch
    found = by_name(name)
    assert found["at 1 row"].problem.rows == 1
    own = next(t for says, t in found.items() if says.startswith("with pitches of their own"))
    pitches = own.pitches.values()
    assert len(set(pitches)) == len(pitches) == sum(t.kind.is_matrix for t in problem.passed_tensors)
    assert all(pitch > problem.pitch and (pitch - problem.pitch) % PITCH_STEP == 0 for pitch in pitches)
    assert sum(t.is_far for t in found.values()) == len(pitches)
    assert all((t.problem.rows - 1) * max(t.pitches.values()) >= FAR for t in found.values() if t.is_far)
    assert sum(t.order != 0 for t in found.values()) == 1
    if launch.rows_per_block > 1:
        assert any(t.problem.rows == launch.rows_per_block - 1 for t in found.values())
        assert any(
            t.problem.rows > launch.rows_per_block and t.problem.rows % launch.rows_per_block for t in found.values()
        )
    looping = [t for says, t in found.items() if "trips of the row loop" in says]
    assert len(looping) == (2 if launch.walks else 0)
    for call in looping:
        tiles = -(-call.problem.rows // launch.rows_per_block)
        assert tiles == TRIPS * call.grid // launch.cluster == TRIPS * launch.period
    crowded = [t for says, t in found.items() if says == "with more blocks than tiles"]
    assert len(crowded) == (1 if launch.walks else 0)
    for call in crowded:
        walkers = call.on_its_grid(module).kernels[0].launch.grid(rows=call.problem.rows, sm_count=4) // launch.cluster
        assert walkers == WALKERS > -(-call.problem.rows // launch.rows_per_block)
    nulls = {name for t in found.values() for name in t.nulls}
    assert nulls == {t.name for t in problem.tensors if t.nullable}


LAST_FIRST = {"persistent": 1, "stages": 2, "row_order": "descending", **IN_REGISTERS}
DESCENDING = {
    "a block": named("softmax", "4096x96", "f32", {"threads_per_row": 32, "vector": 2, **LAST_FIRST}),
    "rows side by side": named(
        "rmsnorm", "4096x131", "bf16",
        {"threads_per_row": 16, "rows_per_block": 4, "vector": 2, "edges": "peel", **LAST_FIRST},
    ),
    "a cluster": named("rmsnorm", "4096x1024", "f32", {"threads_per_row": 64, "cluster": 2, "vector": 4, **LAST_FIRST}),
    "a ring": named(
        "rmsnorm", "4096x1024", "bf16",
        {"threads_per_row": 128, "vector": 8, **LAST_FIRST, "copy": "bulk", "stages": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCENDING)
def test_a_walker_without_a_tile_takes_none_of_another_walkers_rows(name: str) -> None:
    """It would start wherever its wrapped first row lies, and write that row beside the walker that owns it."""
    kernel = DESCENDING[name]
    assert refusal(kernel.problem, kernel.schedule, H200) is None
    module = kernel.module()
    guarded = re.compile(r"const int last_start = .*? < rows \?\s+static_cast<int>\((.*?)\) : -1;", re.DOTALL)
    assert len(guarded.findall(module.text)) == 1
    right = check_on_cpu(kernel.problem, module, most_elements=1 << 16)
    assert right.ok, right.summary
    assert "ok with more blocks than tiles" in right.summary
    planted = replace(module, text=guarded.sub(r"const int last_start = \1;", module.text))
    wrong = check_on_cpu(kernel.problem, planted, most_elements=1 << 16)
    assert not wrong.ok
    assert wrong.summary.startswith("WRONG with more blocks than tiles")


@pytest.mark.parametrize("name", [n for n in NAMED if n.startswith("backward")])
def test_a_finishing_loop_makes_a_second_trip(name: str) -> None:
    """The text's own constants against what `finishing_loop` takes from the launches."""
    module = NAMED[name].module()
    constants = {k: int(v) for k, v in re.findall(r"\b(k\w+) = +(\d+)\b", module.text)}
    if len(module.kernels) > 1:
        loop = (module.kernels[1].launch.threads // constants["kCells"], constants["kInFlight"])
    else:
        loop = (constants["kThreads"] // 32, constants["kInFlight"])
    assert finishing_loop(module) == loop
    call = next(t for says, t in by_name(name).items() if "partial rows" in says)
    launch = module.kernels[0].launch
    assert launch.grid(rows=call.problem.rows, sm_count=call.sm_count) // launch.cluster > loop[0] * loop[1]


def test_a_call_that_was_not_made_is_said() -> None:
    problem, module = NAMED["backward_clusters"].problem, NAMED["backward_clusters"].module()
    check = check_on_cpu(problem, module, most_elements=1 << 18)
    assert check.ok
    assert "a call with 209 partial rows to add up was not made" in check.not_shown
    assert "not shown: a call with 209 partial rows to add up was not made" in check.summary


def test_no_address_space_for_far_rows_is_said_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise MemoryError(f"no address space of {size} bytes")

    monkeypatch.setattr("normgen.verify.rows._empty_pages", refuse)
    check = check_on_cpu(NAMED["warp_per_row"].problem, NAMED["warp_per_row"].module())
    assert check.ok
    assert check.not_shown == tuple(f"a call with rows of {name} beyond 2^31 elements was not made" for name in "yx")


def test_rows_that_no_sum_can_hold_and_elements_without_a_bound_are_said() -> None:
    check = check_on_cpu(NAMED["backward_clusters"].problem, NAMED["backward_clusters"].module())
    assert "rows of inf were not tried" in check.not_shown  # of nan in calls of their own
    squares = made.spec("squares", {"y": "x * x * x"}, eps=None)
    problem = problem_for(squares, shape=(64, 96))
    schedule = NAMED["online"].schedule
    schedule = replace(schedule, softmax="two_pass")
    assert refusal(problem, schedule, H200) is None
    check = check_on_cpu(problem, emit(problem, schedule))
    assert check.ok, check.summary
    assert any(re.fullmatch(r"any value passes in 0\.\d+ of the elements, .*", said) for said in check.not_shown)
    narrow = replace(problem, spec=replace(squares, accuracy_rows=("normal", "zeros")))
    check = check_on_cpu(narrow, emit(narrow, schedule))
    assert any("large_mean" in said and "outside the spec's accuracy contract" in said for said in check.not_shown)


def test_together_ends_with_the_first_wrong_call() -> None:
    kernel = NAMED["online"]
    call = Call(says="at 1 row", problem=kernel.problem, sm_count=1)

    def made_so_far():  # type: ignore[no-untyped-def]
        yield call, "deadlock: somewhere"
        raise AssertionError("a call after the wrong one")

    checked = together(made_so_far(), SITE)
    assert not checked.ok
    assert checked.summary.splitlines()[1] == "deadlock: somewhere"
    assert checked.verified is None


def test_what_was_verified_is_what_the_calls_were() -> None:
    kernel = NAMED["warp_per_row"]
    check = check_on_cpu(kernel.problem, kernel.module(), most_elements=1 << 15)
    found = check.verified
    assert found is not None
    made = [call for call in calls(kernel.problem, kernel.module(), sm_count=CPU_SMS) if call.elements <= 1 << 15]
    assert found.site.executor == "cpu"
    assert found.site.version == require_compiler().version
    assert found.calls == len(made) + 1
    assert found.rows == tuple(sorted({check.rows, *(call.problem.rows for call in made)}))
    assert found.cols == (kernel.problem.cols,)
    assert found.nulls == ("mean", "rstd")
    assert set(found.own_pitches) == {"x", "y"}
    assert found.orders == 2
    assert set(found.families) == set(default_families(kernel.problem))
    assert 0 <= found.unbounded < 0.1
    assert found.not_made == ()


def test_the_faults_that_are_planted_on_a_gpu_are_in_the_texts_of_today() -> None:
    from tests.measure.test_gpu import PLANTED

    missing = [fault for fault, (name, old, *_) in PLANTED.items() if old not in NAMED[name].module().text]
    assert not missing


@pytest.mark.parametrize("name", ["guarded_lanes", "guarded_block"])
def test_a_guard_that_spares_rows_of_six_deviations_is_wrong(name: str) -> None:
    """Both passed when no family of rows, and no bound, told means of 6.5 deviations from those of 0.5."""
    kernel = CASES[name]
    module = kernel.module()
    weak = replace(module, text=module.text.replace("- 0.75f *", "- 0.02f *"))
    assert weak.text != module.text
    assert check_on_cpu(kernel.problem, module, most_elements=1 << 16).ok
    checked = check_on_cpu(kernel.problem, weak, most_elements=1 << 16)
    assert not checked.ok
    assert "guarded_mean" in checked.summary


@pytest.mark.parametrize("name", ["atomic_in_order", "last_tile"])
def test_a_nan_that_is_left_out_of_a_sum_over_rows_is_wrong(name: str) -> None:
    kernel = CASES[name]
    module = kernel.module()
    text = re.sub(r"(const float dy_i =) (element\(.*\));", r"\1 \2 == \2 ? \2 : 0.0f;", module.text)
    assert text != module.text
    right = check_on_cpu(kernel.problem, module, most_elements=1 << 16)
    assert right.ok
    assert "ok with NaN and an infinity in dy" in right.summary
    checked = check_on_cpu(kernel.problem, replace(module, text=text), most_elements=1 << 16)
    assert checked.summary.startswith("WRONG with NaN and an infinity in dy"), checked.summary


def test_a_call_with_nan_has_it_in_few_columns() -> None:
    kernel = CASES["atomic_in_order"]
    call = next(c for c in calls(kernel.problem, kernel.module(), sm_count=4) if c.not_finite == "dy")
    inputs, _ = call.tensors(seed=0)
    cols, last = kernel.problem.cols, call.problem.rows - 1
    assert np.argwhere(np.isnan(inputs.arrays["dy"])).tolist() == [[last - 1, cols - 1], [last, cols // 2]]
    assert np.argwhere(np.isinf(inputs.arrays["dy"])).tolist() == [[0, 0], [1, cols // 3]]
