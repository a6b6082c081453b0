"""NVRTC runs without a GPU: these tests compile for real."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from normgen.cuda import compiler
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Resources, parse_resources
from normgen.errors import CompileError

from . import modules
from .compiled import ptx

ARCHS = (75, 80, 89, 90, 100, 120)
ELF_MACHINE_CUDA = 190


@pytest.mark.parametrize("arch", ARCHS)
def test_a_module_compiles_to_an_elf_cubin_with_its_resources(arch: int) -> None:
    cubin = compile_module(modules.scale(cols=96), arch)
    assert cubin.data[:4] == b"\x7fELF"
    assert int.from_bytes(cubin.data[18:20], "little") == ELF_MACHINE_CUDA
    found = cubin.resources["scale"]
    assert found.static_shared_bytes == 4 * 96
    assert 8 <= found.registers <= 64
    assert (found.spill_bytes, found.stack_bytes, found.barriers) == (0, 0, 1)
    assert (cubin.arch, cubin.cached) == (arch, False)
    assert cubin.nvrtc_version == compiler.nvrtc_version()


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_spills_are_counted_when_launch_bounds_leave_32_registers_for_96_values(arch: int) -> None:
    squeezed = compile_module(modules.spill(blocks=8), arch).resources["spill"]
    roomy = compile_module(modules.spill(blocks=1), arch).resources["spill"]
    assert squeezed.registers <= 32
    # 96 values, at most 32 of which can stay: at least 64 four-byte values travel to the stack and back.
    assert squeezed.spill_store_bytes >= 4 * 64
    assert squeezed.spill_load_bytes >= 4 * 64
    assert squeezed.stack_bytes >= 4 * 64
    assert roomy.spill_bytes == 0
    assert roomy.registers > 96


def test_resources_are_kept_apart_by_kernel() -> None:
    resources = compile_module(modules.two_kernels(), 90).resources
    assert sorted(resources) == ["first", "second"]
    assert (resources["first"].static_shared_bytes, resources["second"].static_shared_bytes) == (0, 1024)
    assert (resources["first"].barriers, resources["second"].barriers) == (0, 1)


def test_spills_of_a_function_that_was_not_inlined_are_charged_to_the_kernel() -> None:
    log = """\
ptxas info    : Compiling entry function 'outer' for 'sm_90'
ptxas info    : Function properties for outer
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem, 372 bytes cmem[0]
ptxas info    : Function properties for _Z6helperf
ptxas         .     32 bytes stack frame, 24 bytes spill stores, 20 bytes spill loads
"""
    assert parse_resources(log) == {
        "outer": Resources(
            registers=40,
            stack_bytes=48,
            spill_store_bytes=32,
            spill_load_bytes=24,
            static_shared_bytes=128,
            barriers=1,
        )
    }


def test_a_refused_text_raises_with_line_and_log() -> None:
    with pytest.raises(CompileError, match="undeclared_value") as caught:
        compile_module(modules.broken(), 90)
    assert 'broken.cu(1): error: identifier "undeclared_value" is undefined' in caught.value.log


def test_an_instruction_ptxas_refuses_raises_with_its_log() -> None:
    module = modules.scale()
    bad = replace(module, instructions=module.instructions.replace("ld.global.cs.f32", "ld.global.nonsense.f32"))
    with pytest.raises(CompileError) as caught:
        compile_module(bad, 90)
    assert "nonsense" in caught.value.log


def test_a_kernel_the_module_names_but_does_not_hold_is_an_error() -> None:
    module = modules.scale()
    renamed = replace(module, kernels=(replace(module.kernels[0], name="scales"),))
    with pytest.raises(CompileError, match="no scales among: scale"):
        compile_module(renamed, 90)


@pytest.mark.parametrize("arch", [91, 130])
def test_an_unknown_arch_is_refused_with_the_known_ones(arch: int) -> None:
    with pytest.raises(CompileError, match=f"received: sm_{arch}\n  hint: known: sm_75, sm_80"):
        compile_module(modules.scale(), arch)


def test_an_arch_below_the_modules_own_is_refused() -> None:
    with pytest.raises(CompileError, match="builds for sm_90 and later"):
        compile_module(replace(modules.scale(), min_arch=90), 80)


def test_ptx_names_the_arch_and_shows_double_arithmetic_only_where_the_text_has_it() -> None:
    assert ".target sm_90" in ptx(modules.scale(), 90)
    assert ".f64" not in ptx(modules.scale(), 90)
    module = modules.scale()
    double = replace(module, text=module.text.replace("row_copy[col] * factor", "row_copy[col] * (factor * 2.5)"))
    assert ".f64" in ptx(double, 90)


def test_denormals_and_ieee_division_are_kept() -> None:
    module = modules.scale()
    divided = replace(module, text=module.text.replace("row_copy[col] * factor", "row_copy[col] / factor"))
    text = ptx(divided, 90)
    assert "div.rn.f32" in text
    assert not re.search(r"\.ftz", text)


def test_cooperative_groups_compiles_with_the_installed_headers() -> None:
    cubin = compile_module(modules.cooperative(), 90)
    assert cubin.resources["warp_sum"].registers > 0


def test_the_key_changes_with_everything_that_matters() -> None:
    module = modules.scale()
    one_header = replace(module, headers=("cooperative_groups.h",))
    jobs = [
        compiler.job_of(module, 90),
        compiler.job_of(module, 80),
        compiler.job_of(module, 90, options=("--maxrregcount=32",)),
        compiler.job_of(modules.scale(cols=97), 90),
        compiler.job_of(one_header, 90),
    ]
    assert len({job.key for job in jobs}) == len(jobs)
    assert compiler.job_of(modules.scale(), 90).key == jobs[0].key
