"""Emitted kernels that lack a fence, a barrier, an atomic or an initial value: faults name the line that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from normgen.codegen.module import Module
from normgen.cpu import Fault, FaultKind, build, find_compiler
from normgen.device import target
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import make_inputs, make_outputs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

H200 = target("h200")
WALK = Schedule(threads_per_row=64, vector=4, hold="registers", unroll=0, persistent=1)
RING = replace(WALK, hold="shared", copy="bulk", stages=2, unroll=2)
SMS = 4


def backward(op: str = "layernorm", shape: str = "37x512") -> Problem:
    return problem_for(load(op), shape=shape, dtype="f32", direction="backward")


KERNELS: dict[str, tuple[Problem, Schedule]] = {
    "last tile": (backward(), replace(WALK, columns="partials_last_tile")),
    "register atomics": (backward(), replace(WALK, columns="register_atomic")),
    "atomics a row": (backward("rmsnorm"), replace(WALK, columns="atomic")),
    "bulk copy": (problem_for(load("layernorm"), shape="9x512"), replace(RING, persistent=0, stages=1)),
    "bulk ring": (problem_for(load("softmax"), shape="37x512"), RING),
    "bulk ring of clusters": (problem_for(load("softmax"), shape="37x512"), replace(RING, cluster=2, unroll=1)),
    "clusters that walk": (backward(shape="37x1024"), replace(WALK, cluster=2)),
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`before` becomes `after` at its first or `which`-th place; the fault stands in a line with `named`."""

    kernel: str
    before: str
    after: str = ""
    which: int = 0
    kind: FaultKind
    named: str


FENCE, BEHIND_TICKET = "__threadfence();", "if (is_last) __threadfence();"
BARRIER = "__syncthreads();  // others wait only for a barrier that is set up"
MUTANTS = {
    "last tile, partial sums not fenced": Mutant(
        kernel="last tile", before=FENCE, which=1, kind=FaultKind.MISSING_FENCE, named="parts[i] = __ldcg("
    ),
    "last tile, no fence behind the ticket": Mutant(
        kernel="last tile", before=BEHIND_TICKET, kind=FaultKind.MISSING_FENCE, named="parts[i] = __ldcg("
    ),
    "atomic sums not fenced": Mutant(
        kernel="register atomics", before=FENCE, which=1, kind=FaultKind.MISSING_FENCE, named="__ldcg(sums"
    ),
    "no fence behind the ticket": Mutant(
        kernel="atomics a row", before=BEHIND_TICKET, kind=FaultKind.MISSING_FENCE, named="__ldcg(sums"
    ),
    "sums without atomics": Mutant(
        kernel="register atomics",
        before="atomicAdd(sums + ",
        after="plain_add(sums + ",
        kind=FaultKind.GLOBAL_RACE,
        named="*to += value",
    ),
    "all blocks fill one partial row": Mutant(
        kernel="last tile",
        before="partials + static_cast<long long>(blockIdx.x)",
        after="partials + static_cast<long long>(0)",
        kind=FaultKind.GLOBAL_RACE,
        named="partial_row[",
    ),
    "mbarrier hidden from the copy engine": Mutant(
        kernel="bulk copy", before="mbarrier_fence();", kind=FaultKind.MISSING_FENCE, named="bulk_load("
    ),
    "mbarriers hidden from the copy engine": Mutant(
        kernel="bulk ring", before="mbarrier_fence();", kind=FaultKind.MISSING_FENCE, named="bulk_load("
    ),
    "mbarrier waited for before its initialisation": Mutant(
        kernel="bulk copy", before=BARRIER, kind=FaultKind.MBARRIER, named="mbarrier_wait("
    ),
    "mbarriers waited for before their initialisation": Mutant(
        kernel="bulk ring", before=BARRIER, kind=FaultKind.MBARRIER, named="mbarrier_wait("
    ),
    "mbarriers of clusters waited for before their initialisation": Mutant(
        kernel="bulk ring of clusters", before=BARRIER, kind=FaultKind.MBARRIER, named="mbarrier_wait("
    ),
    "mbarrier hidden from the other block": Mutant(
        kernel="clusters that walk",
        before="mbarrier_cluster_fence();",
        kind=FaultKind.MISSING_FENCE,
        named="cluster_send(",
    ),
}
PLAIN_ADD = "__device__ inline void plain_add(float* to, float value) { *to += value; }\n"


def faults_of(problem: Problem, module: Module, seed: int) -> tuple[Fault, ...]:
    inputs, outputs = make_inputs(problem, seed=0), make_outputs(problem)
    tensors = {**inputs.arrays, **outputs.arrays}
    run = build(module).run(
        tensors, rows=problem.rows, cols=problem.cols, scalars=inputs.scalars, seed=seed, sm_count=SMS
    )
    return run.faults


def mutated(module: Module, mutant: Mutant) -> Module:
    parts = module.text.split(mutant.before)
    assert len(parts) > mutant.which + 1, f"the kernel has no {mutant.before}"
    head, tail = parts[: mutant.which + 1], parts[mutant.which + 1 :]
    text = mutant.before.join(head) + mutant.after + mutant.before.join(tail)
    return replace(module, text=PLAIN_ADD + text if "plain_add" in text else text)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_are_without_fault(name: str, seed: int) -> None:
    problem, schedule = KERNELS[name]
    assert refusal(problem, schedule, H200) is None
    assert faults_of(problem, emit(problem, schedule), seed) == ()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_kernel_lacks_is_named(name: str, seed: int) -> None:
    mutant = MUTANTS[name]
    problem, schedule = KERNELS[mutant.kernel]
    found = faults_of(problem, mutated(emit(problem, schedule), mutant), seed)
    assert any(fault.kind is mutant.kind and mutant.named in fault.line_text for fault in found), found


@pytest.mark.parametrize("sums", ["dweight_sum", "dbias_sum"])
def test_sums_that_start_from_whatever_a_register_holds_are_wrong(sums: str) -> None:
    problem, schedule = KERNELS["register atomics"]
    module = emit(problem, schedule)
    start = f"float {sums}[kSteps][kVector] = {{}};"
    assert module.text.count(start) == 1
    assert check_on_cpu(problem, module).ok
    unset = replace(module, text=module.text.replace(start, start.replace(" = {}", "")))
    assert not check_on_cpu(problem, unset).ok
