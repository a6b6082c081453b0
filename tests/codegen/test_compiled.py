"""What NVRTC makes of emitted text: no double arithmetic, no warning on any arch, no heavy headers without need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import NormgenError
from normgen.pipeline import emit
from normgen.program.rewrites.reductions import SOFTMAX, VARIANCE, applicable
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import load
from tests.codegen.kernels import KERNELS
from tests.cuda.compiled import ptx
from tests.samples import CORE

ARCHS = (75, 80, 90, 100, 120)
DEVICE = target("h200")
SIDES = [(op, "forward") for op in CORE]
SIDES += [(op, "backward") for op in CORE if load(op).outputs]


def _nvrtc_loads() -> bool:
    from normgen.cuda.compiler import nvrtc_version

    try:
        return nvrtc_version() > (0, 0)
    except NormgenError:
        return False


pytestmark = pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("op", "direction"), SIDES)
def test_ptx_has_no_double_arithmetic(op: str, direction: str, dtype: str) -> None:
    """Every rewrite of every spec: f64 units are 64 times fewer on most GPUs."""
    spec = load(op)
    sources = [t.name for t in spec.tensors if not (t.role.is_written or t.kind.by_batch)]
    gradients = sources if direction == "backward" else None
    problem = problem_for(spec, shape=(64, 768), dtype=dtype, direction=direction, gradients=gradients)
    schedule = default_schedule(problem, DEVICE)
    ways = applicable(written_program(problem))
    schedules = {replace(schedule, variance=v) for v in VARIANCE if v in ways.get("variance", ())}
    schedules |= {replace(schedule, softmax=s) for s in SOFTMAX if s in ways.get("softmax", ())}
    for one in schedules or {schedule}:
        text = ptx(emit(problem, one), 90)
        assert "st.global" in text
        assert ".f64" not in text, str(one)


@pytest.mark.parametrize("name", KERNELS)
def test_nvrtc_compiles_for_every_arch_without_a_warning(name: str) -> None:
    module = KERNELS[name].module()
    for arch in (a for a in ARCHS if a >= module.min_arch):
        cubin = compile_module(module, arch)
        complaints = [line for line in cubin.log.splitlines() if "warning" in line.lower()]
        assert not complaints, f"sm_{arch}: {complaints}"
        assert {kernel.name for kernel in module.kernels} <= set(cubin.resources)


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_includes_a_header(name: str) -> None:
    """Those of cooperative groups take longer to compile than the kernels of a header together."""
    assert "#include" not in KERNELS[name].module().source
