"""Candidates with the same code are built once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from normgen.codegen.module import KernelEntry, Launch, Module, Workspace
from normgen.cuda.cubin import Cubin, Resources
from normgen.device import TARGETS
from normgen.errors import ProgramError
from normgen.problem.problem import Problem
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.tuning.candidate import Built, Failed, Proposed, Twin, local_bytes, misfit, resources_of
from normgen.tuning.compile import Builder, code_digest
from tests.measure.simulated import problem


def module(name: str, *, threads: int = 128, body: str = "x") -> Module:
    kernel = KernelEntry(name=name, params=(), launch=Launch(threads=threads, shared_bytes=1024))
    return Module(instructions="", text=f"void {name}() {{ {body} }}", kernels=(kernel,))


def cubin(name: str, *, code: bytes = b"mov", **resources: int) -> Cubin:
    return Cubin(
        data=b"\x7fELF" + name.encode() + code,
        arch=90,
        resources={name: Resources(**{"registers": 32} | resources)},
        log="",
        seconds=0.0,
        nvrtc_version=(13, 0),
        key=name,
    )


def test_kernels_that_differ_in_name_only_have_one_digest() -> None:
    assert module("a1").digest == module("b2").digest
    assert code_digest(module("a1"), cubin("a1")) == code_digest(module("b2"), cubin("b2"))


def test_another_launch_text_or_machine_code_is_another_kernel() -> None:
    first = module("a1")
    assert first.digest != module("a1", body="y").digest
    assert first.digest != module("a1", threads=256).digest
    assert first.digest != replace(first, workspace=Workspace(block=4)).digest
    assert code_digest(first, cubin("a1")) != code_digest(first, cubin("a1", code=b"add"))
    assert code_digest(first, cubin("a1")) != code_digest(module("a1", threads=256), cubin("a1"))


def test_resources_say_what_the_compiler_and_the_launch_say() -> None:
    (figures,) = resources_of(module("k"), cubin("k", static_shared_bytes=64, spill_store_bytes=8, stack_bytes=16))
    assert figures["threads"] == 128
    assert figures["static_shared_bytes"] + figures["dynamic_shared_bytes"] == 64 + 1024
    assert local_bytes([figures]) == 24


def test_a_block_that_fits_no_sm_is_refused_with_the_reason() -> None:
    h200 = TARGETS["h200"]
    fits = resources_of(module("k", threads=1024), cubin("k", registers=64))
    assert misfit(fits, h200) is None
    crowded = resources_of(module("k", threads=1024), cubin("k", registers=65))  # 65 takes 72: units of 8
    assert misfit(crowded, h200) == "k: 1024 threads x 72 registers exceed 65536"
    fat = resources_of(module("k"), cubin("k", static_shared_bytes=h200.shared_per_block))
    assert misfit(fat, h200) == f"k: {h200.shared_per_block + 1024} bytes of shared memory exceed 232448"


def test_an_emitter_thread_folds_equal_texts_in_the_order_in_which_they_began() -> None:
    def emit(_: Problem, schedule: Schedule) -> Module:
        assert threading.current_thread() is not threading.main_thread()
        if schedule.vector == 8:
            raise ProgramError("vectors of 8 are not built")
        time.sleep(0.01 * (4 - schedule.vector))  # the later ones are quicker
        return module(f"k{schedule.key}", threads=schedule.threads)

    def compile_now(text: Module) -> Future[Cubin]:
        done: Future[Cubin] = Future()
        done.set_result(cubin(text.kernels[0].name))
        return done

    candidates = [Proposed(schedule=Schedule(vector=vector)) for vector in (1, 2, 4, 8)]
    with ThreadPoolExecutor(1) as emitter:
        builder = Builder(problem(), emit=emit, submit=compile_now, emitter=emitter)
        for candidate in candidates:
            builder.begin(candidate)
        first, *twins, refused = [builder.finish(candidate) for candidate in candidates]
    assert isinstance(first, Built)
    assert [t.first for t in twins if isinstance(t, Twin)] == [candidates[0].key] * 2
    assert isinstance(refused, Failed)
    assert refused.outcome is Outcome.ILLEGAL
    assert "vectors of 8" in refused.reason
