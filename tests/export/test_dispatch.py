"""What an exported function launches, seen by a made-up CUDA runtime: no GPU takes part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest

from normgen.device import target
from normgen.export import HeaderForm, headers_of
from normgen.export.groups import HeaderGroup, groups_of
from normgen.export.header import halves
from normgen.knobs import ColumnWay, Hold
from normgen.pipeline import emit_parts
from normgen.problem.problem import LARGEST_ROWS
from normgen.records.record import Record
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.samples import sized

from .cases import layernorm_records, record
from .driven import CLUSTERS as FITTING
from .driven import SM_COUNT, Call, PartsOfHeader, Program, expected
from .test_headers import CHAINED, CLUSTERS, DEPENDENT, PAIRS, needs_nvcc

pytestmark = needs_nvcc
SUMS = Schedule(threads_per_row=128, vector=4, hold=Hold.REGISTERS, persistent=2, unroll=0)
LAST_TILE = Schedule(**{**SUMS.as_dict(), "columns": ColumnWay.PARTIALS_LAST_TILE})
OF_HEADS = {"op": "head_layernorm", "dtype": "bf16"}
OF_CLUSTERS = replace(SUMS, threads_per_row=32, cluster=2, stages=2)
TOGETHER = Schedule(threads_per_row=64, parts=6, vector=4, persistent=1)
ATOMIC = Schedule(**{**SUMS.as_dict(), "columns": ColumnWay.REGISTER_ATOMIC})


def backward(shape: str, schedule: Schedule, op: str = "rmsnorm", **asked: object) -> Record:
    return record(op, shape=shape, direction="backward", schedule=schedule, **asked)


CASES = {
    "layernorm": layernorm_records(),
    "every_way_to_sum_columns": [
        backward("64x4096", LAST_TILE),  # one kernel, two Configs: their partial rows lie elsewhere
        backward("64x2048", LAST_TILE),
        backward("64x1024", ATOMIC),
        backward("4096x8192", CLUSTERS),
        backward("300x768", PAIRS),
        backward("4096x512", DEPENDENT),
    ],
    "two_gradients": [backward("300x768", SUMS, "layernorm", dtype="bf16")],
    "deterministic": [backward("64x512", SUMS, "layernorm", deterministic=True)],
    "chained": [record("rmsnorm", shape="16x4096", dtype="bf16", schedule=CHAINED)],
    "one_kernel_of_two_grids": [
        record("rmsnorm", shape="640x4096", schedule=replace(SUMS, persistent=4)),
        record("rmsnorm", shape="4096x4096", schedule=SUMS),
    ],
    "blocks_that_share_rows": [
        record("softmax", shape="4x65536", schedule=TOGETHER),
        record("softmax", shape="4096x65536", schedule=replace(TOGETHER, parts=30, persistent=8, blocks_per_sm=8)),
        record("softmax", shape="64x1024"),
    ],
    "sums_of_blocks_that_share_rows": [
        backward("16x65536", replace(TOGETHER, hold=Hold.REGISTERS, unroll=0, threads_per_row=512)),
        backward("16x32768", replace(LAST_TILE, parts=6, threads_per_row=512, persistent=1)),
        backward("64x1024", ATOMIC),
    ],
    "in_place": [backward("64x512", SUMS, in_place={"dx": "dy"})],
    "batches": [record("adaln", shape="8x64x1024", dtype="bf16"), record("adaln", shape="2x64x1024", dtype="bf16")],
    "sums_of_batches": [
        backward("8x64x1024", SUMS, "adaln", dtype="bf16"),
        backward("8x64x512", ATOMIC, "adaln", dtype="bf16"),
        backward("8x512x2048", replace(SUMS, cluster=2), "adaln", dtype="bf16"),
        backward("8x64x256", OF_CLUSTERS, "adaln", dtype="bf16"),
    ],
    "heads": [record("head_layernorm", shape=s, dtype="bf16") for s in ("64x8x128", "9x8x128")],
    "sums_of_heads": [
        backward("64x8x1024", SUMS, **OF_HEADS),
        backward("64x8x512", ATOMIC, **OF_HEADS),
        backward("64x8x256", OF_CLUSTERS, **OF_HEADS),
    ],
    "no_parameter": [record("softmax", shape="64x4096", dtype="f16")],
}


def calls_of(group: HeaderGroup) -> list[Call]:
    """Each tuned shape as it was tuned; every set of null parameters at cols that nobody tuned; no rows; odd rows."""
    tuned = [
        Call(
            rows=e.problem.rows,
            cols=e.problem.cols,
            null=nulls(group, e.problem.absent),
            odd=4 * e.record.schedule.peels,
        )
        for e in group.entries
    ]
    general = [
        Call(rows=rows, cols=cols, null=nulls(group, absent), odd=odd, apart=apart)
        for absent in subsets(group.optional)
        for apart in (0, 4)  # where rows start alike vectors are read, else single elements
        for rows, cols, odd in ((0, 33, 0), (5, 33, 0), (LARGEST_ROWS, 100, 4))
    ]
    return [*tuned, *general]


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))


def nulls(group: HeaderGroup, absent: tuple[str, ...]) -> frozenset[str]:
    """The pointers that say so: a gradient that has no parameter is not asked for."""
    return frozenset(t.name for t in group.problem.tensors if t.name.removeprefix("d") in absent or t.name in absent)


@pytest.mark.parametrize("records", CASES.values(), ids=CASES.keys())
def test_a_call_zeroes_and_launches_what_the_emitter_says_with_its_own_arguments(
    records: list[Record], tmp_path: Path
) -> None:
    (group,) = groups_of(records, lambda r: load(r.problem.op))
    (header,) = headers_of(records)
    program = Program(tmp_path, [header], header.file_name, f"normgen::sm90::{group.name}")
    host = halves(group).host
    scalars = [name for name in ("eps",) if f"þ{name}!" in host.names]
    made = PartsOfHeader.of(group)
    modules, ways = made.tuned, made.general
    known = {program.linked(k, "sm90"): k for k in made.kernels}
    assert len(known) == len(program.kernels)
    absent = len(list(subsets(group.optional)))
    every = ways if len(ways) > 1 else ways * absent  # one for each set of null parameters, or one for all of them
    calls = calls_of(group)
    of_calls = [*modules, *(pair for general in every for pair in general for _ in range(3))]
    answers = program.asks([c.words(group, scalars, workspace=host.workspace) for c in calls], known)
    for call, (problem, parts), answer in zip(calls, of_calls, answers, strict=True):
        nothing = call.rows == 0 and not host.launches_empty
        assert answer == [*([] if nothing else expected(group, call, problem, parts)), "= 0"], call
    # A block would count on beyond 31 bits: refused before anything is launched.
    beyond = Call(rows=LARGEST_ROWS + 1, cols=100).words(group, scalars, workspace=host.workspace)
    assert program.asks([beyond], known) == [["= 1"]]


def test_the_workspace_covers_every_kernel_that_a_call_may_take(tmp_path: Path) -> None:
    records = CASES["every_way_to_sum_columns"]
    (group,) = groups_of(records, lambda r: load(r.problem.op))
    (header,) = headers_of(records)
    function = f"normgen::sm90::{group.name}"
    program = Program(tmp_path, [header], header.file_name, function, f"-DWORKSPACE={function}_workspace_bytes")
    questions = [(rows, cols) for rows in (0, 3, 4096) for cols in (33, 512, 768, 1024, 2048, 4096, 8192)]
    answers = program.asks([f"workspace {rows} {cols}" for rows, cols in questions], {})
    for (rows, cols), (answer,) in zip(questions, answers, strict=True):
        tuned = [emit_parts(e.problem, e.record.schedule).module() for e in group.entries if e.problem.cols == cols]
        sizes = [module.workspace_bytes(rows=rows, sm_count=SM_COUNT) for module in tuned]
        assert answer == f"= {max(128 + 4 * cols, *sizes, 0)}"


def on_a100(one: Record) -> Record:
    return replace(one, device=target("a100").as_dict())


BOTH = [  # clusters and chains have instructions that sm_80 does not
    on_a100(backward("64x1024", ATOMIC)),
    backward("64x1024", SUMS),
    backward("4096x8192", CLUSTERS),
    backward("4096x512", DEPENDENT),
]
SM80_FIRST = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
NO_IMAGE = 209  # cudaErrorNoKernelImageForDevice
BUILDS = [  # in a normal run the first and the last: both orders of passes, both forms
    pytest.param(passes, shared, id=f"{'shared_library' if shared else 'self_contained'}-{order}")
    for order, passes in (("sm80_first", SM80_FIRST), ("sm90_first", SM80_FIRST[::-1]))
    for shared in (False, True)
]


@pytest.mark.parametrize(("passes", "shared"), BUILDS[:: sized(3, 1)])
def test_a_set_calls_the_newest_header_that_the_code_for_the_device_was_compiled_for(
    passes: tuple[str, str], shared: bool, tmp_path: Path
) -> None:
    form = HeaderForm(archs=(80, 90), shared_library=shared)
    groups = groups_of(BOTH, lambda r: load(r.problem.op), form.archs)
    program = Program(tmp_path, headers_of(BOTH, form=form), "rmsnorm_bwd_f32.cu", "normgen::rmsnorm_bwd_f32", *passes)
    made = {g.arch: PartsOfHeader.of(g) for g in groups}
    known = {program.linked(k, f"sm{arch}"): k for arch, parts in made.items() for k in parts.kernels}
    assert len(known) == len(program.kernels) - 1  # and the one that tells the pass
    call = Call(rows=64, cols=1024).words(groups[0], [], workspace=True)
    for number, compiled_for in enumerate((0, 75, 80, 86, 90, 100)):
        device = f"device {number} {SM_COUNT} {compiled_for} {FITTING}"
        first, second = program.asks([device, call, call], known)
        if compiled_for < 80:
            assert first == ["attributes", f"= {NO_IMAGE}"]
            assert second == first[compiled_for > 0 :]
            continue
        arch = 80 if compiled_for < 90 else 90
        (group,) = [g for g in groups if g.arch == arch]
        ((problem, parts),) = [found for found in made[arch].tuned if found[0].cols == 1024]
        launched = expected(group, Call(rows=64, cols=1024), problem, parts)
        assert first == ["attributes", *launched, "= 0"]
        assert second == [*launched, "= 0"]  # a device is asked once
    devices = [f"device {number} {SM_COUNT} {arch} {FITTING}" for number, arch in ((1, 80), (2, 90))]
    answers = program.asks([word for device in (*devices, *devices) for word in (device, call)], known)
    assert [answer[0] == "attributes" for answer in answers] == [True, True, False, False]
    assert answers[0][1:] == answers[2] != answers[1][1:] == answers[3]
