"""The space of awkward problems: never empty, its default legal, every refusal a sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.device import TARGETS, target
from normgen.knobs import KNOBS
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import space
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from tests.codegen.layouts import BACKWARD_SETS, SETS, Layout, problem_of
from tests.samples import CORE, is_full

H200 = target("h200")
LAYOUTS = [layout for layouts in SETS.values() for layout in layouts]
SIZES = [Layout(rows=0, cols=1), Layout(rows=1, cols=131072), Layout(rows=2, cols=131071, align=0)]
SIZES += [Layout(rows=1, cols=cols, align=0) for cols in (2, 31, 33, 255, 8191, 65537)]
BACKWARD = [layout for layouts in BACKWARD_SETS.values() for layout in layouts]
BACKWARD += [Layout(rows=1, cols=cols, align=0) for cols in (1, 33, 4097, 65535, 65536)]


def formats(number: int) -> tuple[str, ...]:
    """What the tensors of a layout are stored in: in turn, or all in a full run."""
    every = ("f32", "bf16", "mixed16", "mixed32")
    return every if is_full() else (every[number % 4],)


@pytest.mark.parametrize("gpu", TARGETS)
@pytest.mark.parametrize("op", CORE)
def test_every_forward_problem_has_a_legal_default(op: str, gpu: str) -> None:
    for number, layout in enumerate((*LAYOUTS, *SIZES)):
        for stored in formats(number):
            problem = problem_of(load(op), layout, stored, "forward")
            assert refusal(problem, default_schedule(problem, target(gpu)), target(gpu)) is None


@pytest.mark.parametrize("gpu", ["h200", "t4"])
@pytest.mark.parametrize("op", [op for op in CORE if load(op).outputs])
def test_every_backward_problem_has_a_legal_default(op: str, gpu: str) -> None:
    for number, layout in enumerate(BACKWARD):
        for stored in formats(number):
            problem = problem_of(load(op), layout, stored, "backward")
            assert refusal(problem, default_schedule(problem, target(gpu)), target(gpu)) is None


@pytest.mark.parametrize("cols", [16384, 32768, 65536])
@pytest.mark.parametrize(("op", "dtype"), [("layernorm", "bf16"), ("rmsnorm", "bf16"), ("rmsnorm", "f32")])
def test_column_sums_of_wide_rows_stay_in_registers_by_default(op: str, dtype: str, cols: int) -> None:
    wide = problem_for(load(op), shape=(2048, cols), dtype=dtype, direction="backward")
    assert default_schedule(wide, H200).columns == "partials_two_kernels"


def searched_clusters(shape: str) -> set[int]:
    return {s.row_blocks for s in space(problem(shape, dtype="bf16", direction="backward"), H200).legal}


def test_clusters_are_searched_with_column_sums_where_rows_are_wide_or_few() -> None:
    assert searched_clusters("8192x1024") == {1}
    assert searched_clusters("8192x4096") == {1, 2, 4, 8}
    assert searched_clusters("512x2048") > {1, 2}


def is_sentence(reason: str) -> bool:
    """Several words, no placeholder left, no bare Python value."""
    return len(reason.split()) >= 4 and not re.search(r"[{}<>]|None|object at", reason)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_spaces_are_not_empty_and_every_refusal_is_a_sentence(layout: Layout) -> None:
    problem = problem_of(load("layernorm"), layout, "bf16", "forward")
    found = space(problem, H200)
    assert found.legal
    assert len(set(found.legal)) == len(found.legal)
    for schedule in found.legal[:: max(1, len(found.legal) // 500)]:
        assert refusal(problem, schedule, H200) is None
    for refused in found.refusals:
        assert is_sentence(refused.reason), refused.reason
        assert refused.count > 0


def test_spaces_come_in_the_same_order_every_time() -> None:
    problem = problem_for(load("softmax"), shape="64x760")
    assert space(problem, H200).legal == space(problem, H200).legal


def problem(shape: str = "4096x768", op: str = "layernorm", **more: object) -> Problem:
    return problem_for(load(op), shape=shape, **more)


AHEAD = {"hold": "registers", "unroll": 0, "vector": 4, "persistent": 1, "threads_per_row": 64}
HYBRID = {"hold": "hybrid", "vector": 4, "threads_per_row": 1024}
SLOT = {"hold": "shared", "threads_per_row": 64}
THIN_PARAMETERS = {"shape": "8x49152", "without": ["bias"], "dtypes": {"weight": "bf16"}}
HELD = {"hold": "registers", "unroll": 0}
PEELED = {"edges": "peel", "vector": 8}
WIDE_WEIGHT = {"shape": "37x64", "dtype": "bf16", "dtypes": {"weight": "f32"}, "align": 4}
GROUPS = {"op": "quantize_to_fp8_group", "shape": "64x512", "dtype": "bf16"}
ODD_ROWS = {"shape": "4096x1001", "dtype": "bf16", "align": 4}
REFUSED = [
    ({"threads_per_row": 1024, "rows_per_block": 2}, {}, "at most 1024 threads a block"),
    ({"threads_per_row": 8}, {}, "whole warps"),
    ({"threads_per_row": 1024, "vector": 4}, {}, "would own no vector"),
    ({"vector": 8}, {}, "one access moves at most 16 bytes on sm_90"),
    ({"vector": 4}, {"shape": "8x759"}, "vectors of 4 elements need cols divisible by 4"),
    ({"vector": 4}, {"align": 4}, "are not aligned to vectors of 4 elements"),
    ({"vector": 4, "edges": "masked"}, {}, "nothing to mask"),
    ({"vector": 4, "edges": "peel"}, {}, "nothing to peel"),
    ({"hold": "registers"}, {"any_cols": True}, "cols is a run-time value"),
    ({"hold": "registers", "threads_per_row": 32, "unroll": 0}, {"shape": "8x32768"}, "registers of data"),
    ({"hold": "shared", "vector": 1}, {"dtype": "bf16"}, "conflict on banks"),
    ({"params": "kept"}, {}, "only by a persistent grid"),
    ({"cluster": 2, "threads_per_row": 64, "rows_per_block": 2}, {}, "a cluster shares one row"),
    ({"cluster": 2, "threads_per_row": 64, "hold": "reload"}, {"any_cols": True}, "rows of a fixed length"),
    (
        {"cluster": 2, "threads_per_row": 64, "columns": "shared_atomic"},
        {"direction": "backward"},
        "would be mostly zeros",
    ),
    ({"copy": "bulk"}, {}, "waits there or in registers"),
    ({"copy": "bulk", "hold": "registers", "unroll": 0, "vector": 4}, {}, "without later rows to copy"),
    ({"copy": "bulk", **AHEAD}, {"gpu": "a100"}, "copy = bulk needs sm_90"),
    ({"copy": "cp_async", **AHEAD}, {"gpu": "t4"}, "copy = cp_async needs sm_80"),
    ({"copy": "bulk", **AHEAD, "vector": 2}, {"shape": "4096x762"}, "whole rows of 16-byte units"),
    ({"copy": "bulk", **AHEAD, "vector": 1}, {"shape": "4096x768", "align": 4}, "whole rows of 16-byte units"),
    ({"copy": "bulk", "threads_per_row": 1, "rows_per_block": 32, "hold": "shared"}, {}, "start at 16-byte addresses"),
    ({"copy": "bulk", **SLOT, "edges": "peel", "vector": 4}, ODD_ROWS, "moves units of 16 bytes"),
    ({"copy": "bulk", **SLOT, **PEELED, "cluster": 2}, ODD_ROWS, "starts where no row shifts"),
    ({"copy": "cp_async", **AHEAD, "vector": 1}, {"dtype": "bf16"}, "moves at least 4 bytes"),
    ({"copy": "bulk", **AHEAD, "vector": 4, "load": "streaming"}, {}, "priorities in L2 only"),
    ({"copy": "cp_async", **AHEAD, "load": "streaming"}, {}, "carries no cache hint"),
    (
        {"copy": "cp_async", **AHEAD, "stages": 4, "threads_per_row": 1024},
        {"shape": "4096x16384"},
        "rows on their way need",
    ),
    ({"stages": 3, "hold": "registers", "persistent": 1, "unroll": 0}, {}, "need an asynchronous copy"),
    ({"stages": 3, "copy": "bulk", "hold": "shared", "vector": 4}, {}, "need a persistent grid"),
    ({"hold": "hybrid", "vector": 4}, {"shape": "8x1024"}, "are its whole row: hold = registers"),
    ({**HYBRID, "params": "early"}, THIN_PARAMETERS, "leaves none for parameters"),
    ({**HYBRID, "copy": "bulk", "persistent": 1}, {"shape": "4096x65536"}, "no room for the next"),
    ({**HYBRID, "threads_per_row": 512, "blocks_per_sm": 8}, {"shape": "8x65536"}, "not one vector of a row fits"),
    ({"persistent": 4, "threads_per_row": 1024}, {"shape": "8x8192"}, "no row to loop over"),
    ({"blocks_per_sm": 8, "threads_per_row": 512}, {}, "exceed the 2048 threads of an SM"),
    ({"hold": "registers", "unroll": 4}, {}, "unrolled completely"),
    ({"columns": "atomic"}, {}, "no column reductions"),
    ({"dependent_launch": "on"}, {}, "no second kernel to start early"),
    ({"dependent_launch": "loads", "persistent": 2}, {}, "the only one of its block"),
    ({"dependent_launch": "loads", "hold": "reload"}, {}, "the only one of its block"),
    ({"division": "remainder"}, {"shape": "8x4096"}, "no row or group has a quotient, but by powers of two"),
    ({"division": "remainder"}, {"op": "swiglu"}, "no row or group has a quotient"),
    ({"division": "remainder"}, {"any_cols": True}, "no reciprocal yet"),
    # Just past a limit; `LEGAL` has what lies just within.
    ({"threads_per_row": 32, "vector": 2}, WIDE_WEIGHT, "parameters are not aligned to vectors of 2 elements"),
    ({"threads_per_row": 16}, {}, "whole warps"),
    ({"threads_per_row": 64, "vector": 4}, {"shape": "8x128"}, "would own no vector"),
    ({"threads_per_row": 8, "rows_per_block": 16, **PEELED}, ODD_ROWS, "need a lane each"),
    ({"threads_per_row": 64, "cluster": 2, "persistent": 1, **PEELED}, ODD_ROWS, "from iteration to iteration"),
    ({"threads_per_row": 512, "vector": 4, "hold": "shared"}, {"shape": "8x57344"}, "need 229376 bytes of shared"),
    ({"stages": 2, "hold": "shared", "persistent": 1}, {}, "the next row travels in registers"),
    ({"cluster": 2, "threads_per_row": 64, "reduce_with": "cooperative_groups"}, {}, "clusters combine with shuffles"),
    ({"cluster": 2, **AHEAD, "reduce_with": "short_chains"}, {}, "short_chains in a grid without a row loop"),
    (
        {"threads_per_row": 64, "rows_per_block": 2, "reduce_with": "short_chains"},
        {},
        "rows_per_block = 1, several warps",
    ),
    ({"threads_per_row": 32, "reduce_with": "short_chains"}, {}, "rows_per_block = 1, several warps"),
    ({"threads_per_row": 64, "reduce_with": "short_chains"}, {"any_cols": True}, "by shuffles"),
    (
        {"threads_per_row": 32, "vector": 8, "reduce_with": "short_chains"},
        {**GROUPS, "op": "silu_mul_to_fp8_group"},
        "a vector for each lane of a warp",
    ),
    ({"threads_per_row": 128, "vector": 4, "unroll": 4}, {"shape": "8x1024"}, "unroll 4 exceeds the 2 steps"),
    (
        {"threads_per_row": 512, "vector": 4, "hold": "registers", "unroll": 0},
        {"shape": "8x45056"},
        "would hold 88 registers",
    ),
]
LEGAL = [
    ({"threads_per_row": 32, "vector": 2}, {**WIDE_WEIGHT, "align": 8}),
    ({"threads_per_row": 16, "rows_per_block": 2}, {}),
    ({"threads_per_row": 32, "vector": 4}, {"shape": "8x128"}),
    ({"division": "remainder"}, {"shape": "8x768"}),
    ({"threads_per_row": 64, "reduce_with": "short_chains"}, {}),
    ({"threads_per_row": 32, "vector": 4, "reduce_with": "short_chains"}, GROUPS),
    ({"threads_per_row": 32, "cluster": 2, "reduce_with": "short_chains"}, {}),
    ({"threads_per_row": 16, "rows_per_block": 8, **PEELED}, ODD_ROWS),
    ({"threads_per_row": 64, "cluster": 2, **PEELED}, ODD_ROWS),
    ({"copy": "bulk", **SLOT, **PEELED}, ODD_ROWS),
    ({"threads_per_row": 512, "vector": 4, "hold": "shared"}, {"shape": "8x55296"}),
    ({"threads_per_row": 128, "vector": 4, "unroll": 2}, {"shape": "8x1024"}),
    ({"threads_per_row": 512, "vector": 4, **HELD}, {"shape": "8x43008"}),
]


@pytest.mark.parametrize(("knobs", "what", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_refusals_say_why(knobs: dict[str, object], what: dict[str, object], reason: str) -> None:
    gpu = target(str(what.get("gpu", "h200")))
    received = refusal(problem(**{k: v for k, v in what.items() if k != "gpu"}), schedule_from(knobs), gpu)
    assert received is not None
    assert reason in received


@pytest.mark.parametrize(("knobs", "what"), LEGAL, ids=str)
def test_what_lies_just_within_a_limit_is_legal(knobs: dict[str, object], what: dict[str, object]) -> None:
    assert refusal(problem(**what), schedule_from(knobs), H200) is None


def with_space(op: str, tables: str) -> Spec:
    """A built-in spec with other tables for what is searched."""
    text = Path(load(op).file).read_text(encoding="utf-8")
    return parse(text.replace("[backward]", f"{tables}[backward]"))


class Searched:
    """The values of each knob in the search space of a problem."""

    def __init__(self, spec: Spec, shape: str = "8192x1024", **more: Any) -> None:
        self.legal = space(problem_for(spec, shape=shape, dtype="bf16", **more), H200).legal

    def __getitem__(self, knob: str) -> set[object]:
        return {getattr(s, knob) for s in self.legal}


def test_a_specs_own_values_are_searched_in_the_direction_they_are_given_for() -> None:
    spec = with_space("rmsnorm", '[space]\nvector = "half8"\n[space.backward]\nstages = 2\nload = "streaming"\n')
    forward, backward = Searched(spec), Searched(spec, direction="backward")
    assert forward["vector"] == {8} < backward["vector"]
    assert backward["stages"] == {2}
    assert backward["load"] == {"streaming"}  # which no default has: a spec may widen the space
    assert forward["load"] == {"evict_last", "default", "no_allocate"}


def test_a_spec_may_ask_for_what_no_search_proposes() -> None:
    found = Searched(with_space("layernorm", '[space]\nvariance = "welford"\nhold = "registers"\n'))
    assert found["variance"] == {"welford"}


def test_knobs_of_column_sums_do_not_empty_the_space_of_a_backward_without_them() -> None:
    spec = with_space("rmsnorm", '[space.backward]\ncolumns = "atomic"\n')
    dx_only = {"shape": "64x256", "direction": "backward", "gradients": ["x"]}
    assert Searched(spec, **dx_only).legal == Searched(load("rmsnorm"), **dx_only).legal


def test_a_spec_may_ask_for_exact_exponentials() -> None:
    assert Searched(load("softmax"), "64x256")["arithmetic"] == {"approximate"}
    exact = with_space("softmax", '[space]\narithmetic = "exact"\n')
    assert Searched(exact, "64x256")["arithmetic"] == {"exact"}
    assert default_schedule(problem_for(exact, shape="64x256", dtype="bf16"), H200).arithmetic == "exact"


def test_short_chains_are_searched_for_blocks_that_have_an_sm_to_themselves_and_for_groups() -> None:
    few, many = Searched(load("rmsnorm"), "64x4096"), Searched(load("rmsnorm"), "8192x4096")
    assert (few["reduce_with"], many["reduce_with"]) == ({"shuffle", "short_chains"}, {"shuffle"})
    asked = with_space("rmsnorm", '[space]\nreduce_with = "short_chains"\n')
    assert Searched(asked, "8192x4096")["reduce_with"] == {"short_chains"}
    groups = Searched(load("quantize_to_fp8_group"), "8192x4096")
    assert groups["reduce_with"] == {"shuffle", "short_chains"}
    assert {s.vector for s in groups.legal if s.reduce_with == "short_chains"} == {4, 8}


def test_of_rows_that_blocks_share_other_thread_counts_are_searched_where_each_thread_has_one_vector() -> None:
    def counts(op: str, shape: str) -> set[tuple[int, int]]:
        asked = problem_for(load(op), shape=shape, dtype="bf16")
        found = {(s.threads_per_row, s.parts) for s in space(asked, target("h200")).legal if s.vector == 4}
        return {(threads, parts) for threads, parts in found if threads & (threads - 1)}

    groups = counts("silu_mul_to_fp8_group", "16x6144")
    assert {(384, 4), (192, 8), (96, 16)} <= groups
    assert {threads for threads, _ in groups} == {96, 192, 384, 768}
    assert not counts("layernorm", "16x6144")


def test_every_knob_of_a_schedule_has_its_values_listed() -> None:
    assert list(KNOBS) == list(Schedule().as_dict())
    for name, default in Schedule().as_dict().items():
        assert default in KNOBS[name].values


def test_every_refusal_of_the_unrolling_names_a_number_of_steps() -> None:
    reasons = [found.reason for found in space(problem(shape="8x1024"), H200).refusals]
    assert any("exceeds the" in reason for reason in reasons)
    assert not [reason for reason in reasons if re.search(r"the (-\d+|0) steps?", reason)]
