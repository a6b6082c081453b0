"""A kernel's emitted text run by the CPU executor at a reduced number of rows, compared with the reference."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from normgen.codegen.module import Module
from normgen.cpu import Program, build, find_compiler
from normgen.cpu.compiler import require_compiler
from normgen.cpu.program import TOGETHER
from normgen.errors import UsageError
from normgen.measure.calls import MOST_ELEMENTS, CheckedCalls, KernelCall, calls, few_beside, taken, together
from normgen.measure.host_memory import require_memory
from normgen.problem.problem import Problem
from normgen.records.verified import CPU, VerifiedOn
from normgen.verify import Verdict, effects, families_of, family_rows

CPU_ELEMENTS = 1 << 15
LONG_ELEMENTS = 3 << 20  # of a plain call: some 20 s on the executor. Rows of 75,000 and more have fewer of each family
EXECUTOR_S = 8e-6  # an element, drawn, run and compared: a layernorm of 131072 columns in a cluster of 16 blocks
PRODUCTS_S = 5e-7  # an element of products, which `KernelCall.elements` counts: a float32 linear of 1024 x 1024
FIBER_ADDRESSES = 9 << 29  # the executor reserves 4 GiB of address space for the stacks of its largest cluster
CPU_SMS = 4  # a persistent grid on so few makes its blocks loop even over the few rows


def has_compiler() -> bool:
    """Whether there is a C++ compiler to build the executor with."""
    return find_compiler() is not None


def why_unchecked(problem: Problem) -> str | None:
    """Why no kernel of this problem can be checked here; None where it can."""
    if not has_compiler():
        return "no C++ compiler was found (set CXX, or install g++ or clang++)"
    try:
        _require_memory(_plain_calls(problem))
    except UsageError as error:
        return f"{error.rule}, but: {error.received}"
    return None


def longest_s(problem: Problem) -> float:
    """Seconds that the plain calls take at most where nothing else runs: 2 to 8 µs an element, by kernel; of products
    0.2 to 0.4.
    """
    return (PRODUCTS_S if problem.inner else EXECUTOR_S) * sum(call.elements for call in _plain_calls(problem))


def _require_memory(plain: list[KernelCall]) -> None:
    require_memory(max(plain, key=lambda call: call.elements).problem, addresses=FIBER_ADDRESSES)


def check_on_cpu(
    problem: Problem,
    module: Module,
    *,
    seed: int = 0,
    most_elements: int = MOST_ELEMENTS,
    is_over: Callable[[], bool] = lambda: False,
    scalars: Mapping[str, float] | None = None,
) -> CheckedCalls:
    """Build the module's text and run it on the CPU: numerics, and every fault the executor knows.

    The number of rows is a run-time argument of the kernel, so a large problem is checked with fewer rows, enough
    for every row family and, when cols is small, for several blocks. One with fewer rows than that is checked
    with its own number first and then with enough for every family. Very long rows have one of each family, or of the
    first of them. The other calls follow (`calls`), but for those of more than `most_elements`, and for all that would
    begin when `is_over` says so; the first that is wrong is the last.
    `scalars` are values that are checked besides those that every check has.
    Raises UsageError when plain calls do not fit the memory, CompileError when the host compiler refuses the text.
    """
    problem = few_beside(problem)
    _require_memory(_plain_calls(problem))
    problem = taken(problem, module)
    plain = _plain_calls(problem)
    program = build(module)

    def run(call: KernelCall) -> Verdict | str | None:
        chain = module.chain if call.problem.cols == problem.cols else 0
        try:
            is_made = not call.says or (call.elements <= most_elements and not is_over())
            return _run(program, call, seed, chain) if is_made else None
        except MemoryError:  # rows that lie 2^31 elements apart need 9 GB of address space
            if not call.says:
                raise
            return None

    others = calls(problem, module, sm_count=_sm_count(module), scalars=scalars)
    made = ((call, run(call)) for call in (*plain, *others))
    compiler = require_compiler().version
    return together(made, VerifiedOn(executor=CPU, device=platform.machine(), version=compiler))


def _sm_count(module: Module) -> int:
    """SMs of the device that the executor stands for: of blocks that wait for each other room for three groups, if it
    runs so many.
    """
    launch = module.kernels[0].launch
    if not launch.cooperates:
        return CPU_SMS
    groups = max(1, min(3, TOGETHER // launch.parts))
    return -(-groups * launch.parts // launch.persistent)


def _plain_calls(problem: Problem) -> list[KernelCall]:
    problem = few_beside(problem)
    every = min(family_rows(problem), max(1, LONG_ELEMENTS // problem.cols))
    enough = max(every, CPU_ELEMENTS // problem.cols)
    counts = [problem.rows, every] if problem.rows < every else [min(problem.rows, enough)]
    # Rows of a large mean first: they are as different as normal ones, and tell how a variance is computed.
    fitting = sorted(families_of(problem), key=lambda name: name != "large_mean")
    families = tuple(fitting[:every]) if every < len(fitting) else None
    return [KernelCall(says="", problem=problem.with_rows(n), sm_count=CPU_SMS, families=families) for n in counts]


def _run(program: Program, call: KernelCall, seed: int, chain: int) -> Verdict | str:
    """The verdict on one call, or the faults that were found before there was a result. Raises MemoryError."""
    problem, module = call.problem, call.on_its_grid(program.module)
    inputs, outputs = call.tensors(seed=seed)
    buffers, launched = call.memory(inputs, outputs), call.far_rows.launched
    tensors: dict[str, Any] = {name: buffer.array for name, buffer in buffers.items()} | dict.fromkeys(call.nulls)
    zeroed = module.zeroed_bytes(launched.batches)
    counts = {"rows": launched.rows, "sm_count": call.sm_count, "batches": launched.batches}
    size = module.workspace_bytes(**counts, **problem.lengths)
    workspace = np.full(size, 0xFF, dtype=np.uint8)
    workspace[:zeroed] = 0
    run = replace(program, module=module).run(
        tensors,
        rows=launched.rows,
        cols=problem.cols,
        inner=problem.sizes.inner,
        rows_per_batch=launched.sharing_rows,
        scalars=inputs.scalars,
        seed=seed + call.order,
        sm_count=call.sm_count,
        workspace=workspace if workspace.size else None,
        ends=-(-problem.rows // module.kernels[0].launch.rows_per_block) if call.gap else 0,
        far=call.far_rows.numbers if call.gap else None,
    )
    call.gather(buffers, outputs)
    if run.faults:
        return "\n".join(str(fault) for fault in run.faults)
    if workspace[:zeroed].any():
        return "the workspace is left unfit for the next call"
    expected = call.expected(inputs, outputs, elements=CPU_ELEMENTS, chain=chain or None)
    found = effects(expected, outputs.start)
    return replace(expected.check(outputs), call=call.title, seen=found.seen, unseen=found.unseen)
