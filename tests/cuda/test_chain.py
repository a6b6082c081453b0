"""Chains of dependent launches: attributes, edges of captured graphs, and results that a race would change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen.codegen.module import Launch
from normgen.cuda.arrays import DeviceArray
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import check, device_facts, driver
from normgen.cuda.launch import BoundLaunch, LoadedModule, attributes_of
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Graph, Stream
from normgen.device import Device, target
from normgen.dtypes import F32
from normgen.errors import CompileError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.python.handle import kernel
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

LENGTH, WEIGHTS, EPS = 200, 7, 1e-6
BLOCK: dict[str, Any] = {"threads_per_row": 256, "vector": 4, "hold": "registers", "unroll": 0, "params": "early"}
# A row a block that all run at once; several waves of blocks; clusters; a row loop that keeps its parameters.
CHAINS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "start": ((64, 8192), {**BLOCK, "dependent_launch": "start"}),
    "loads": ((64, 8192), {**BLOCK, "dependent_launch": "loads"}),
    "end": ((64, 8192), {**BLOCK, "dependent_launch": "end"}),
    "one row": ((1, 4096), {**BLOCK, "dependent_launch": "start"}),
    "late": ((64, 8192), {**BLOCK, "params": "late", "dependent_launch": "start"}),
    "waves": ((5000, 1024), {**BLOCK, "threads_per_row": 32, "rows_per_block": 4, "dependent_launch": "start"}),
    "cluster": ((16, 16384), {**BLOCK, "cluster": 4, "dependent_launch": "start"}),
    "row loop": ((3000, 1024), {**BLOCK, "threads_per_row": 64, "params": "kept", "persistent": 2,
                                "dependent_launch": "start"}),
}  # fmt: skip


def test_a_launch_has_the_attributes_its_kernel_needs() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    ids = bindings.CUlaunchAttributeID
    early, cluster = (
        ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    )

    def kinds(launch: Launch, *, dependent: bool) -> list[Any]:
        return [attribute.id for attribute in attributes_of(launch, bindings, dependent=dependent)]

    assert kinds(Launch(threads=64), dependent=False) == []
    assert kinds(Launch(threads=64), dependent=True) == [early]
    assert kinds(Launch(threads=64, cluster=4), dependent=True) == [cluster, early]
    together = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert kinds(Launch(threads=64, parts=3, persistent=1, cooperates=True), dependent=False) == [together]
    (attribute,) = attributes_of(Launch(threads=64, cooperates=True), bindings, dependent=False)
    assert attribute.value.cooperative == 1
    (attribute,) = attributes_of(Launch(threads=64), bindings, dependent=True)
    assert attribute.value.programmaticStreamSerializationAllowed == 1


@pytest.fixture(scope="module")
def arch() -> int:
    return device_facts(0).arch


@pytest.fixture
def stream() -> Iterator[Stream]:
    with Stream() as stream:
        yield stream


def rmsnorm(shape: tuple[int, int], *, stable: bool = False) -> Problem:
    return problem_for(load("rmsnorm"), shape=shape, dtype="f32", without=["rstd"], stable_parameters=stable)


def is_too_old(problem: Problem, schedule: Schedule, gpu: Device) -> bool:
    """Whether the GPU has no dependent launches; if so, the schedule and the compiler must have said so."""
    if gpu.arch >= 90:
        return False
    assert "sm_90" in (refusal(problem, schedule, gpu) or "")
    with pytest.raises(CompileError, match=f"builds for sm_90 and later\n.*sm_{gpu.arch}"):
        compile_module(emit(problem, schedule), gpu.arch)
    return True


@pytest.mark.parametrize("gpu", ["t4", "a100"])
@pytest.mark.parametrize("name", CHAINS)
def test_gpus_without_dependent_launches_refuse_them(name: str, gpu: str) -> None:
    shape, knobs = CHAINS[name]
    assert is_too_old(rmsnorm(shape), Schedule(**knobs), target(gpu))


class Chain:
    """y = rmsnorm(x) * signs, LENGTH times between two buffers, with other random signs at every step.

    Signs keep the size of every element, so that rounding does not grow, and a value of the wrong step has the wrong
    sign in half of its elements.
    """

    def __init__(self, shape: tuple[int, int], knobs: dict[str, Any], arch: int, *, stable: bool) -> None:
        problem, schedule = rmsnorm(shape, stable=stable), Schedule(**knobs)
        assert refusal(problem, schedule, device_facts(0)) is None
        module = emit(problem, schedule)
        random = np.random.default_rng(5)
        self.shape = shape
        self.x = random.standard_normal(shape, dtype=np.float32)
        self.signs = random.choice(np.array([-1, 1], dtype=np.float32), (WEIGHTS, shape[1]))
        self.loaded = LoadedModule(module, compile_module(module, arch))
        self.weights = [DeviceBuffer.of(signs) for signs in self.signs]
        self.buffers = [DeviceBuffer.of(self.x), DeviceBuffer(self.x.nbytes)]

    def reset(self, stream: Stream) -> None:
        self.buffers[0].write(self.x)
        self.buffers[1].fill(0xFF)
        stream.wait_for(0)

    def queue(self, stream: Stream) -> None:
        pitch = self.shape[1]
        bound = self.loaded.bind().set(pitches={"x": pitch, "y": pitch}, rows=self.shape[0], scalars={"eps": EPS})
        for step in range(LENGTH):
            x, y = self.buffers[step % 2], self.buffers[(step + 1) % 2]
            bound.set(pointers={"x": x.pointer, "y": y.pointer, "weight": self.weights[step % WEIGHTS].pointer})
            bound.launch(stream)

    def result(self) -> np.ndarray[Any, Any]:
        return self.buffers[LENGTH % 2].read(self.shape, F32)

    def expected(self) -> np.ndarray[Any, Any]:
        rows = self.x.astype(np.float64)
        for step in range(LENGTH):
            rows = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + EPS) * self.signs[step % WEIGHTS]
        return rows


@pytest.mark.gpu
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_dependent_launches_is_right_on_a_stream_and_in_a_graph(
    name: str, stable: bool, arch: int, stream: Stream
) -> None:
    shape, knobs = CHAINS[name]
    if is_too_old(rmsnorm(shape, stable=stable), Schedule(**knobs), device_facts(0)):
        return
    chain = Chain(shape, knobs, arch, stable=stable)
    expected = chain.expected()
    graph = Graph.capture(stream, lambda: chain.queue(stream))
    works: dict[str, Callable[[], None]] = {
        "stream": lambda: chain.queue(stream),
        "graph": lambda: graph.launch(stream),
    }
    for how, work in works.items():
        for _ in range(5):
            chain.reset(stream)
            work()
            stream.synchronize()
            np.testing.assert_allclose(chain.result(), expected, rtol=2e-4, atol=1e-5, err_msg=how)


@pytest.mark.gpu
@pytest.mark.parametrize("trigger", ["start", "end"])
def test_a_chain_of_backward_calls_gives_the_bits_of_calls_one_by_one(trigger: str, arch: int, stream: Stream) -> None:
    """dy of a call is dx of the one before; all calls share one workspace."""
    rows, cols = 999, 1024
    problem = problem_for(load("rmsnorm"), shape=(rows, cols), dtype="f32", direction="backward")
    knobs: dict[str, Any] = {**BLOCK, "threads_per_row": 64, "params": "kept", "persistent": 2, "stages": 2}
    one_by_one = Schedule(**knobs, columns="partials_two_kernels")
    chained = replace(one_by_one, dependent_launch=trigger)
    if is_too_old(problem, chained, device_facts(0)):
        return
    found = [_backward_chain(problem, schedule, arch, stream) for schedule in (one_by_one, chained)]
    for name, bits in found[0].items():
        np.testing.assert_array_equal(found[1][name], bits, err_msg=name)
        assert np.isfinite(bits).all()


def _backward_chain(problem: Problem, schedule: Schedule, arch: int, stream: Stream) -> dict[str, np.ndarray[Any, Any]]:
    rows, cols, random = problem.rows, problem.cols, np.random.default_rng(6)
    module = emit(problem, schedule)
    x = random.standard_normal((rows, cols), dtype=np.float32)
    rstd = (1 / np.sqrt((x * x).mean(axis=1) + EPS)).astype(np.float32)
    weight = random.choice(np.array([-1, 1], dtype=np.float32), cols)
    fixed = {"x": DeviceBuffer.of(x), "rstd": DeviceBuffer.of(rstd), "weight": DeviceBuffer.of(weight)}
    gradients = [DeviceBuffer.of(random.standard_normal((rows, cols), dtype=np.float32)), DeviceBuffer(x.nbytes)]
    dweights = [DeviceBuffer(4 * cols) for _ in range(50)]
    workspace = DeviceBuffer(module.workspace_bytes(rows=rows, sm_count=device_facts(0).sm_count))
    loaded = LoadedModule(module, compile_module(module, arch))
    bound: BoundLaunch = loaded.bind().set(
        pointers={name: buffer.pointer for name, buffer in fixed.items()},
        pitches=dict.fromkeys(("x", "dy", "dx"), cols),
        rows=rows,
        scalars={"eps": EPS},
        workspace=workspace.pointer,
    )
    stream.wait_for(0)
    for step, dweight in enumerate(dweights):
        dy, dx = gradients[step % 2], gradients[(step + 1) % 2]
        bound.set(pointers={"dy": dy.pointer, "dx": dx.pointer, "dweight": dweight.pointer}).launch(stream)
    stream.synchronize()
    found = {f"dweight {i}": buffer.read((cols,), F32) for i, buffer in enumerate(dweights)}
    return found | {"dx": gradients[len(dweights) % 2].read((rows, cols), F32)}


@pytest.mark.gpu
def test_a_handles_calls_chain(stream: Stream) -> None:
    shape, schedule = (16, 4096), Schedule(**BLOCK, dependent_launch="start")
    if is_too_old(rmsnorm(shape, stable=True), schedule, device_facts(0)):
        return
    chained = kernel(
        "rmsnorm", shape=shape, dtype="float32", present=("weight",), schedule=schedule, stable_parameters=True
    )
    random = np.random.default_rng(7)
    x = random.standard_normal(shape, dtype=np.float32)
    signs = random.choice(np.array([-1, 1], dtype=np.float32), shape[1])
    value, weight, expected = DeviceArray.of(x), DeviceArray.of(signs), x.astype(np.float64)
    for _ in range(50):
        value = chained(value, weight, stream=stream)
        expected = expected / np.sqrt((expected * expected).mean(axis=1, keepdims=True) + EPS) * signs
    stream.synchronize()
    np.testing.assert_allclose(value.numpy(), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_captured_chain_keeps_its_early_starts(arch: int, stream: Stream) -> None:
    """Every kernel but the first hangs on the one in front by a programmatic edge."""
    shape, knobs = CHAINS["one row"]
    if is_too_old(rmsnorm(shape), Schedule(**knobs), device_facts(0)):
        return
    bindings, chain = driver(), Chain(shape, knobs, arch, stable=False)
    mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(bindings.cuStreamBeginCapture(stream.handle, mode), "begin a capture")
    chain.queue(stream)
    graph = check(bindings.cuStreamEndCapture(stream.handle), "end a capture")
    _, _, data, count = check(bindings.cuGraphGetEdges(graph, LENGTH), "list a graph's edges")
    programmatic = bindings.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    kinds = [edge.type for edge in data[:count]]
    check(bindings.cuGraphDestroy(graph), "destroy a graph")
    assert kinds == [int(programmatic)] * (LENGTH - 1)
