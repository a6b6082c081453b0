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
from normgen.measure.calls import FAR, PITCH_STEP, TRIPS, WALKERS, KernelCall, calls, finishing_loop, together
from normgen.measure.cpu_check import CPU_SMS, check_on_cpu
from normgen.pipeline import emit
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.records.verified import CPU, VerifiedOn
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.spec.reader import load, parse
from normgen.verify import default_families, families_of, scalar_values
from normgen.verify.varied.values import combinations
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

SITE = VerifiedOn(executor=CPU, device="x86_64", version="g++ 12.2.0")


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


def by_name(name: str) -> dict[str, KernelCall]:
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
    call = KernelCall(says="at 1 row", problem=kernel.problem, sm_count=1)

    def made_so_far():  # type: ignore[no-untyped-def]
        yield call, "deadlock: somewhere"
        raise AssertionError("a call after the wrong one")

    checked = together(made_so_far(), SITE)
    assert not checked.ok
    assert checked.summary.splitlines()[1] == "deadlock: somewhere"
    assert checked.verified is None


def test_what_was_verified_is_what_the_calls_were() -> None:
    kernel = NAMED["warp_per_row"]
    check = check_on_cpu(kernel.problem, kernel.module(), most_elements=1 << 17)
    found = check.verified
    assert found is not None
    made = [call for call in calls(kernel.problem, kernel.module(), sm_count=CPU_SMS) if call.elements <= 1 << 17]
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


LOWER_WORD = "static_cast<float>(static_cast<int>(static_cast<long long>(row_value(&label[valid_row]))))"
# One wrong line for each kind of thing that a caller may vary: at the defaults, with ordinary inputs, they are right.
ORDINARILY_RIGHT = {
    "the default for a scalar": ("layernorm", {}, "rsqrtf(eps + ", "rsqrtf(1e-5f + ", "eps=0.1"),
    "a branch that the default switches off": (
        "cross_entropy", {}, "label_smoothing * (logf(", "2.0f * label_smoothing * (logf(", "label_smoothing=0.103125",
    ),
    "an ignored row gets a loss": (
        "cross_entropy", {}, "row_is_counted != 0.0f ?", "true ?", "label ignore_index",
    ),
    "the upper word of a label": (
        "cross_entropy", {}, "row_value(&label[valid_row])", LOWER_WORD,
        "label 2^40",
    ),
    "a weight without its sign": ("layernorm", {}, "element(weight_vec, i)", "fabsf(element(weight_vec, i))", "y:"),
    "a target of exactly 0": ("kl_div", {}, "target_i > 0.0f", "target_i >= 0.0f", "target zero"),
    "a mask of -inf leaks": (
        "masked_softmax", {}, "element(spec_mask_vec, i)", "fmaxf(element(spec_mask_vec, i), -20.0f)", "mask ",
    ),
    "the lowest number of a mask is -inf": (
        "safe_masked_softmax", {}, "pass1.row_max == __int_as_float(0xff800000)", "pass1.row_max <= -3.0e38f",
        "mask lowest",
    ),
    "a mask that is cut far out": (
        "masked_softmax", {}, "element(spec_mask_vec, i)", "fmaxf(element(spec_mask_vec, i), -1000.0f)", "mask low ",
    ),
    "the maximum of a scale without its sign": (
        "causal_softmax", {}, "maximum(pass1.row_max, z_i)",
        "maximum(pass1.row_max, col <= valid_row % kCols ? x_i * fabsf(scale) : z_i)", "scale=-2",
    ),
    "a gradient that is cut": (
        "softmax", {"direction": "backward"}, "element(dy_vec, i)",
        "fminf(fmaxf(element(dy_vec, i), -8.0f), 8.0f)", "dy thirties",
    ),
    "a small scalar": (
        "cross_entropy", {}, "label_smoothing > 0.0f", "label_smoothing > 0.05f", "with further scalars, ",
    ),
    "a random number that is the share": (
        "dropout_add_rmsnorm", {}, "keep_random_i >= p", "keep_random_i > p", "with a random number that is p",
    ),
    "a limit itself": (
        "swiglu_clamped", {"direction": "backward"}, "gate_i <= limit", "gate_i < limit", "gate edges",
    ),
    "16 bits of a row's number": (
        "causal_softmax", {}, "valid_row % kCols", "(valid_row & 0xffff) % kCols", "more than 2^16",
    ),
    "16 bits of a row that random numbers are drawn for": (
        "dropout_add_rmsnorm", {"direction": "backward", "without": ["weight"]}, "seed_value, valid_row",
        "seed_value, valid_row & 0xffff", "more than 2^16",
    ),
    "a row's address of 16 bits": (
        "head_layernorm", {}, "y + valid_row * ",
        "y + (valid_row & 0xffff) * ", "more than 2^16",
    ),
    "fp8 from 240 on": (
        "rmsnorm_to_fp8", {}, "floats_to_e4m3x2(values[i], values[i + 1])",
        "floats_to_e4m3x2(values[i] > 240.0f ? 240.0f : values[i], values[i + 1])", "with weight of ",
    ),
    "a tie of int8": (
        "layernorm_to_int8", {}, "floats_to_int8x2(values[i],",
        "floats_to_int8x2(__uint_as_float(__float_as_uint(values[i]) + 1u),", "with ties between numbers of 8 bits",
    ),
    "null for a number": (
        "layernorm", {"any_cols": True, "align": 8}, "filled<float, kVector>(0.0f)", "filled<float, kVector>(0.5f)",
        "cols with null weight and bias",
    ),
    "a residual that is cut behind the last whole vector": (
        "add_rmsnorm", {"any_cols": True, "align": 8}, "element(residual_vec, 0)",
        "fminf(fmaxf(element(residual_vec, 0), -8.0f), 8.0f)", "residual ",
    ),
    "a scalar's default behind the last whole vector": (
        "swiglu_clamped", {"any_cols": True, "align": 8}, "element(up_vec, 0);\n",
        "fmaxf(element(up_vec, 0), -7.0f);\n", "limit=14",
    ),
    "16 bits of a label of 32": (
        "cross_entropy", {"dtypes": {"label": "i32"}}, "row_value(&label[valid_row])",
        "static_cast<float>(static_cast<short>(static_cast<long long>(row_value(&label[valid_row]))))", "label 2^30",
    ),
    "a limit below 1/50": (
        "swiglu_clamped", {}, "maximum(up_i, -limit)", "maximum(up_i, -(fabsf(limit) < 0.02f ? 0.0f : limit))",
        "limit=0.0136719",
    ),
    "a share below 1/50": (
        "dropout_add_rmsnorm", {}, "keep_random_i >= p", "keep_random_i >= (p < 0.02f ? 0.0f : p)", "next below p",
    ),
    "row numbers not modulo the columns": ("causal_softmax", {}, "valid_row % kCols", "valid_row", "more than columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARILY_RIGHT)
def test_a_kernel_that_is_right_at_the_defaults_alone_is_refused(name: str) -> None:
    op, options, old, new, says = ORDINARILY_RIGHT[name]
    knobs: dict[str, object] = {"threads_per_row": 32, "rows_per_block": 4, "vector": 2}
    knobs |= {"edges": "masked"} if "any_cols" in options else {}
    kernel = named(op, "44x48", "f32", knobs, **options)
    module = kernel.module()
    assert old in module.text
    found = check_on_cpu(kernel.problem, replace(module, text=module.text.replace(old, new)))
    assert not found.ok
    assert says in found.summary


@pytest.mark.parametrize(
    ("role", "direction"),
    [
        ("batch_parameter", "forward"),
        ("batch_parameter", "backward"),
        ("batch_input", "forward"),
        ("head_parameter", "forward"),
        ("head_parameter", "backward"),
        ("head_input", "forward"),
    ],
)
def test_a_kernel_whose_only_tensor_of_batches_is_null_is_told_of_batches(role: str, direction: str) -> None:
    formulas = '[formulas]\ny = "x * rsqrt(mean(x * x) + 1e-6) * scale"'
    tensors = f'x = "input"\nscale = {{ role = "{role}", optional = true, absent = "1" }}\ny = "output"'
    spec = parse(f'name = "scaled_norm"\n[tensors]\n{tensors}\n{formulas}')
    of_x = {"gradients": ("x",)} if direction == "backward" else {}
    problem = problem_for(spec, shape="6x7x48", any_cols=True, direction=direction, **of_x)
    for schedule in fallback_schedules(problem):
        module = emit(problem, schedule)
        made = [call for call in calls(problem, module, sm_count=CPU_SMS) if "scale" in call.nulls]
        assert made
        assert all(call.problem.sharing_rows for call in made)
        found = check_on_cpu(problem, module, most_elements=1 << 13)
        assert found.ok, found.summary
        assert "ok with null scale" in found.summary


def test_an_infinity_of_f16_is_demanded_where_the_largest_number_is_passed() -> None:
    kernel = named("rmsnorm", "44x48", "f16", {"threads_per_row": 32, "rows_per_block": 4, "vector": 2})
    module, old = kernel.module(), "floats_to_half2(values[i],"
    assert old in module.text
    for limit, beyond in (("65504.0f", "65504.0f"), ("65000.0f", "2.0f * values[i]")):
        wrong = f"floats_to_half2((values[i] > {limit} ? {beyond} : values[i]),"
        found = check_on_cpu(kernel.problem, replace(module, text=module.text.replace(old, wrong)))
        assert not found.ok, wrong
        assert "with weight of 6" in found.summary


def test_a_call_with_more_than_65536_rows_has_few_of_them_in_memory_and_runs_both_ends() -> None:
    kernel = varied("head_layernorm")
    found = list(calls(kernel.problem, kernel.module(), sm_count=4))
    [call] = [call for call in found if call.gap]
    far = call.far_rows
    assert far.launched.rows > 1 << 16
    assert far.launched.batches == call.problem.batches
    assert (far.launched.batch_of(far.numbers) == call.problem.batch_of(np.arange(call.problem.rows))).all()
    inputs, outputs = call.tensors(seed=0)
    buffers = call.memory(inputs, outputs)
    assert (buffers["x"].array[far.numbers] == inputs.arrays["x"]).all()
    assert not buffers["x"].array[far.first : far.numbers[far.first]].any()


def test_no_sum_over_rows_is_asked_of_rows_that_nobody_draws() -> None:
    kernel = varied("layernorm")
    backward = problem_for(kernel.problem.spec, **kernel.problem.arguments() | {"direction": Direction.BACKWARD})
    assert not any(call.gap for call in calls(backward, emit(backward, kernel.schedule), sm_count=4))


def test_values_that_change_an_element_and_those_that_do_not_are_told() -> None:
    told = {op: check_on_cpu(k.problem, k.module()) for op, k in ((op, varied(op)) for op in ("masked_softmax", "dyt"))}
    masked = told["masked_softmax"].verified
    assert masked is not None
    assert {"scale=0.5", "scale=2", "scale=-2", "mask zeros", "mask hidden"} <= set(masked.seen or ())
    assert masked.unseen == ("mask huge",)
    assert "no call shows what depends on mask huge" in masked.not_shown
    assert "  not shown: no call shows what depends on mask huge" in told["masked_softmax"].summary.splitlines()
    without = told["dyt"].verified
    assert without is not None
    assert (without.seen, without.unseen) == ((), ())


@pytest.mark.parametrize("op", ["cross_entropy", "swiglu_clamped", "causal_softmax", "kl_div"])
def test_a_right_kernel_is_right_off_its_defaults_too(op: str) -> None:
    found = check_on_cpu(varied(op).problem, varied(op).module())
    assert found.ok, found.summary


def test_every_call_has_parameters_of_both_signs() -> None:
    kernel = varied("layernorm")
    for call in calls(kernel.problem, kernel.module(), sm_count=4):
        if not call.is_far:
            assert (call.tensors(seed=0)[0].arrays["weight"] < 0).any(), call.says


def test_ignored_rows_are_first_and_last_and_all() -> None:
    kernel = varied("cross_entropy")
    found = {call.says: call.tensors(seed=0)[0] for call in calls(kernel.problem, kernel.module(), sm_count=4)}
    ends = found["with label ignore_index in the first and the last row"]
    ignored = np.flatnonzero(ends.arrays["label"] == ends.scalars["ignore_index"]).tolist()
    assert {0, ends.problem.rows - 1} <= set(ignored)
    assert len(ignored) < ends.problem.rows
    every = found["with label ignore_index in every row"]
    assert (every.arrays["label"] == every.scalars["ignore_index"]).all()


def test_rows_outnumber_columns_where_a_formula_names_them() -> None:
    kernel = varied("causal_softmax")
    assert max(c.problem.rows for c in calls(kernel.problem, kernel.module(), sm_count=4) if not c.is_far) > 48
    text = kernel.problem.spec.text.replace("row % cols", "row % 40").replace("causal_softmax", "stairs")
    stairs = problem_for(parse(text), shape="44x48")
    module = emit(stairs, kernel.schedule)
    assert max(c.problem.rows for c in calls(stairs, module, sm_count=4) if not c.is_far) > 80


def varied(op: str) -> Named:
    return named(op, "44x48", "f32", {"threads_per_row": 32, "rows_per_block": 4, "vector": 2})


def test_values_of_scalars_are_dealt_out_to_calls_and_each_meets_every_family() -> None:
    kernel = varied("swiglu_clamped")
    found = list(calls(kernel.problem, kernel.module(), sm_count=4))
    whole = [call for call in found if call.says == "with all families of rows"]
    values = scalar_values(kernel.problem)
    assert {(n, v) for call in whole for n, v in call.scalars.items()} == {
        (n, v) for n, several in values.items() for v in several[:2]
    }
    assert [c.scalars for c in found if c.scalars] == combinations(values)
    spread = [call for call in found if call.says == "with further scalars"]
    assert [call.scalars["limit"] for call in spread] == [-14, 7 / 512, 7 * 64]
    assert {*(spread[0].families or ())} == {"normal", "tiny", "large_mean", "gate edges", "up edges"}
    assert any(c.scalars and c.pitches for c in found)  # few calls are added: others take values too
    assert all(call.families is None and call.problem.rows >= 2 * len(families_of(kernel.problem)) for call in whole)
    plain = list(calls(varied("kl_div").problem, varied("kl_div").module(), sm_count=4))
    assert not any(call.scalars for call in plain)


def test_values_of_scalars_are_tried_in_short_calls_where_rows_are_long_and_told_where_none_was() -> None:
    knobs = {"threads_per_row": 256, "vector": 4, **IN_REGISTERS}
    kernel = named("rmsnorm", "44x4096", "f32", knobs)
    wide = list(calls(kernel.problem, kernel.module(), sm_count=4))
    short = [c.scalars for c in wide if c.elements <= 1 << 17 and c.scalars]
    assert sorted(one["eps"] for one in short) == sorted(scalar_values(kernel.problem)["eps"])
    found = check_on_cpu(kernel.problem, kernel.module(), most_elements=1 << 17).verified
    assert found is not None
    assert {"eps=0.1", "eps=8", "eps=512", "eps=0.000316228"} == set(found.seen or ())
    none = check_on_cpu(kernel.problem, kernel.module(), most_elements=1).verified
    assert none is not None
    assert (none.seen, none.unseen) == ((), ("eps",))
    assert "no call shows what depends on eps" in none.not_shown


def test_a_value_of_the_callers_own_is_checked_too() -> None:
    kernel = varied("swiglu_clamped")
    first = next(calls(kernel.problem, kernel.module(), sm_count=4, scalars={"limit": 5.0}))
    assert first.title == "with all families of rows, limit=5"
    module = kernel.module()
    wrong = replace(module, text=module.text.replace("+ shift)", "+ (limit == 5.0f ? 0.0f : shift))"))
    assert check_on_cpu(kernel.problem, wrong).ok
    assert not check_on_cpu(kernel.problem, wrong, scalars={"limit": 5.0}).ok
