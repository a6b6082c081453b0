"""The driver layer on a real device; and, without one, what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import _dram_gb_per_s, device_count, device_facts, devices, driver_version, synchronize
from normgen.cuda.launch import BoundLaunch, LoadedModule
from normgen.cuda.memory import DeviceBuffer, copy, memset
from normgen.cuda.stream import Event, Graph, Stream
from normgen.dtypes import BF16, F32
from normgen.errors import CompileError, DriverError, UsageError

from . import modules

COLS, ROWS, PITCH = 96, 7, 100


def test_an_unmeasured_gpus_bandwidth_follows_from_memory_clock_and_bus_width() -> None:
    # NVIDIA H200: 3201 MHz, 6144 bits, 4200 GB/s measured; under another name the formula must come near.
    assert _dram_gb_per_s("NVIDIA H200", 3_201_000, 6144) == 4200.0
    assert _dram_gb_per_s("some H200 of tomorrow", 3_201_000, 6144) == pytest.approx(4200.0, rel=0.03)
    assert _dram_gb_per_s("no clock reported", 0, 6144) > 0


@pytest.fixture(scope="module")
def arch() -> int:
    return device_facts(0).arch


@pytest.fixture
def stream() -> Iterator[Stream]:
    with Stream() as stream:
        yield stream


class _Scaled:
    """The `scale` module bound to a strided x and a contiguous y, poisoned with NaN."""

    def __init__(self, arch: int, module: Module | None = None, *, dependent_launch: bool = False) -> None:
        module = module or modules.scale(COLS)
        self.x = np.random.default_rng(1).standard_normal((ROWS, PITCH), dtype=np.float32)
        self.device_x = DeviceBuffer.of(self.x)
        self.device_y = DeviceBuffer(ROWS * COLS * 4)
        self.device_y.fill(0xFF)
        synchronize(self.device_y.device)  # streams that do not block wait for no other
        self.loaded = LoadedModule(module, compile_module(module, arch), dependent_launch=dependent_launch)
        self.bound = self.bind(factor=2.5)

    def bind(self, *, factor: float) -> BoundLaunch:
        pointers = {"x": self.device_x.pointer, "y": self.device_y.pointer}
        return self.loaded.bind().set(pointers=pointers, pitches={"x": PITCH}, rows=ROWS, scalars={"eps": factor})

    def y(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return self.device_y.read((ROWS, COLS), F32)

    def expected(self, factor: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return self.x[:, :COLS] * np.float32(factor)


@pytest.mark.gpu
def test_device_facts_are_those_of_a_gpu_kernels_are_made_for() -> None:
    (first, *_) = devices()
    assert first.arch >= 75
    assert first.sm_count > 0
    assert first.shared_per_block >= 48 << 10
    assert first.shared_per_sm >= first.shared_per_block
    assert first.l2_bytes > 1 << 20
    assert 0.3 < first.sm_clock_ghz < 5
    assert 50 < first.dram_gb_per_s < 20000
    assert driver_version() >= (12, 0)


@pytest.mark.gpu
def test_a_device_index_out_of_range_is_named() -> None:
    count = device_count()
    with pytest.raises(UsageError, match=f"received: {count}"):
        device_facts(count)


@pytest.mark.gpu
def test_bytes_come_back_as_they_went_up() -> None:
    x = np.random.default_rng(2).standard_normal((33, 65)).astype(ml_dtypes.bfloat16)
    buffer = DeviceBuffer.of(x)
    np.testing.assert_array_equal(buffer.read(x.shape, BF16).view(np.uint16), x.view(np.uint16))
    second_row = buffer.read((65,), BF16, offset=65 * 2)
    np.testing.assert_array_equal(second_row.view(np.uint16), x[1].view(np.uint16))
    with pytest.raises(UsageError, match="inside the buffer"):
        buffer.read((34, 65), BF16)


@pytest.mark.gpu
def test_fill_and_copy_follow_the_stream(stream: Stream) -> None:
    first, second = DeviceBuffer(1000), DeviceBuffer(1000)
    first.fill(0xAB, stream=stream)
    second.copy_from(first, stream=stream)
    first.fill(0, stream=stream)
    stream.synchronize()
    assert (second.read((1000,), np.uint8) == 0xAB).all()
    assert (first.read((1000,), np.uint8) == 0).all()


@pytest.mark.gpu
def test_a_launch_reads_pointer_pitch_rows_and_scalar(arch: int, stream: Stream) -> None:
    scaled = _Scaled(arch)
    assert np.isnan(scaled.y()).all()
    scaled.bound.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(scaled.y(), scaled.expected(2.5))


@pytest.mark.gpu
def test_fewer_rows_leave_the_rest_alone_and_no_rows_launch_nothing(arch: int, stream: Stream) -> None:
    scaled = _Scaled(arch)
    scaled.bound.set(rows=0).launch(stream)
    stream.synchronize()
    assert np.isnan(scaled.y()).all()
    scaled.bound.set(rows=3).launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(scaled.y()[:3], scaled.expected(2.5)[:3])
    assert np.isnan(scaled.y()[3:]).all()


@pytest.mark.gpu
def test_a_captured_launch_keeps_its_arguments_and_runs_only_on_replay(arch: int, stream: Stream) -> None:
    scaled = _Scaled(arch)
    bound = scaled.bind(factor=2.0)
    graph = Graph.capture(stream, lambda: [bound.launch(stream) for _ in range(5)])
    bound.set(scalars={"eps": -1.0})
    stream.synchronize()
    assert graph.nodes == 5
    assert np.isnan(scaled.y()).all()
    with Event() as start, Event() as stop:
        graph.upload(stream)
        us = graph.replay_us(stream, start, stop)
    np.testing.assert_array_equal(scaled.y(), scaled.expected(2.0))
    assert 1.0 < us < 1e5


@pytest.mark.gpu
def test_an_error_during_capture_ends_it_and_the_stream_goes_on(arch: int, stream: Stream) -> None:
    scaled = _Scaled(arch)

    def broken() -> None:
        scaled.bound.launch(stream)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        Graph.capture(stream, broken)
    scaled.bound.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(scaled.y(), scaled.expected(2.5))


@pytest.mark.gpu
def test_a_graph_holds_copies_and_fills_too(stream: Stream) -> None:
    source, target = DeviceBuffer(4096), DeviceBuffer(4096)
    source.fill(0x11, stream=stream)
    target.fill(0, stream=stream)

    def work() -> None:
        copy(target.pointer, source.pointer, 4096, stream=stream)
        memset(source.pointer, 0x22, 4096, stream=stream)

    graph = Graph.capture(stream, work)
    graph.launch(stream)
    stream.synchronize()
    assert graph.nodes == 2
    assert (target.read((4096,), np.uint8) == 0x11).all()
    assert (source.read((4096,), np.uint8) == 0x22).all()


@pytest.mark.gpu
def test_ptxas_and_the_driver_agree_on_a_kernels_resources(arch: int) -> None:
    for module in (modules.scale(COLS), modules.spill(blocks=8), modules.spill(blocks=1)):
        cubin = compile_module(module, arch)
        loaded = LoadedModule(module, cubin)  # kernels live as long as their module
        (kernel,) = loaded.kernels
        reported = cubin.resources[module.kernels[0].name]
        assert kernel.attribute("NUM_REGS") == reported.registers
        assert kernel.attribute("LOCAL_SIZE_BYTES") >= reported.stack_bytes
        # sm_90 and later reserve 1 KB of shared memory per block, which the driver may count.
        assert kernel.attribute("SHARED_SIZE_BYTES") - reported.static_shared_bytes in (0, 1024)
        assert kernel.blocks_per_sm() >= 1


_DYNAMIC = """\
extern "C" __global__ void far_end(float* y, int rows) {
  extern __shared__ float space[];
  space[LAST] = 3.0f + rows;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = space[LAST];
}
"""

_CLUSTER = """\
extern "C" __global__ void ranks(float* y, int rows) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0 && blockIdx.x < rows * CLUSTER) y[blockIdx.x] = rank * 100 + size;
}
"""


def _plain(text: str, name: str, launch: Launch, min_arch: int = 75) -> Module:
    params = (
        Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),
        Param(name="rows", ctype="int", source=Source.ROWS),
    )
    return Module(
        instructions="", text=text, kernels=(KernelEntry(name=name, params=params, launch=launch),), min_arch=min_arch
    )


@pytest.mark.gpu
def test_all_the_dynamic_shared_memory_of_the_device_can_be_used(arch: int, stream: Stream) -> None:
    most = device_facts(0).shared_per_block
    module = _plain(_DYNAMIC.replace("LAST", str(most // 4 - 1)), "far_end", Launch(threads=32, shared_bytes=most))
    y = DeviceBuffer(4 * 4)
    loaded = LoadedModule(module, compile_module(module, arch))
    loaded.bind().set(pointers={"y": y.pointer}, rows=4).launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(y.read((4,), F32), np.full(4, 7.0, np.float32))


@pytest.mark.gpu
def test_more_shared_memory_than_the_device_has_is_a_driver_error(arch: int) -> None:
    most = device_facts(0).shared_per_block
    module = _plain(_DYNAMIC.replace("LAST", "0"), "far_end", Launch(threads=32, shared_bytes=most + 4096))
    with pytest.raises(DriverError, match="shared memory") as caught:
        LoadedModule(module, compile_module(module, arch))
    assert caught.value.code == "CUDA_ERROR_INVALID_VALUE"


def _is_too_old(module: Module, arch: int) -> bool:
    """Whether the GPU lacks what the module needs; if so, the compiler must have said so."""
    if arch >= module.min_arch:
        return False
    with pytest.raises(CompileError, match=f"builds for sm_{module.min_arch} and later\n.*sm_{arch}"):
        compile_module(module, arch)
    return True


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_blocks_of_a_cluster_are_consecutive_and_ranked(arch: int, stream: Stream, cluster: int) -> None:
    text = _CLUSTER.replace("CLUSTER", str(cluster))
    module = _plain(text, "ranks", Launch(threads=32, cluster=cluster), min_arch=90)
    if _is_too_old(module, arch):
        return
    loaded = LoadedModule(module, compile_module(module, arch))
    if cluster == 16 and arch >= 120:  # these have clusters of at most 8
        with pytest.raises(DriverError):
            loaded.kernels[0].active_clusters()
        return
    assert loaded.kernels[0].active_clusters() >= 1
    y = DeviceBuffer(3 * cluster * 4)
    loaded.bind().set(pointers={"y": y.pointer}, rows=3).launch(stream)
    stream.synchronize()
    expected = np.tile(np.arange(cluster) * 100 + cluster, 3).astype(np.float32)
    np.testing.assert_array_equal(y.read((3 * cluster,), F32), expected)


@pytest.mark.gpu
def test_dependent_launches_compute_the_same(arch: int, stream: Stream) -> None:
    if _is_too_old(replace(modules.scale(COLS), min_arch=90), arch):
        return
    scaled = _Scaled(arch, dependent_launch=True)
    graph = Graph.capture(stream, lambda: [scaled.bound.launch(stream) for _ in range(4)])
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(scaled.y(), scaled.expected(2.5))


@pytest.mark.gpu
def test_a_cubin_of_another_arch_is_refused_by_name(arch: int) -> None:
    other = 80 if arch >= 90 else 90
    module = modules.scale(COLS)
    with pytest.raises(DriverError) as caught:
        LoadedModule(module, compile_module(module, other))
    assert caught.value.code in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE")


@pytest.mark.gpu
def test_a_bad_launch_shape_is_a_driver_error(arch: int, stream: Stream) -> None:
    module = modules.scale(COLS)
    launch = replace(module.kernels[0].launch, threads=2048)
    module = replace(module, kernels=(replace(module.kernels[0], launch=launch),))
    scaled = _Scaled(arch, module)
    with pytest.raises(DriverError, match="launch scale on 7 blocks"):
        scaled.bound.launch(stream)


@pytest.mark.gpu
def test_one_stream_waits_for_another(arch: int, stream: Stream) -> None:
    scaled = _Scaled(arch)
    with Stream() as other:
        scaled.bound.launch(other)
        stream.wait_for(other)
        second = DeviceBuffer(scaled.device_y.size)
        second.copy_from(scaled.device_y, stream=stream)
        stream.synchronize()
    np.testing.assert_array_equal(second.read((ROWS, COLS), F32), scaled.expected(2.5))


@pytest.mark.gpu
def test_event_times_grow_with_the_work(stream: Stream) -> None:
    buffer = DeviceBuffer(256 << 20)
    with Event() as start, Event() as middle, Event() as stop:
        buffer.fill(0, stream=stream)
        start.record(stream)
        buffer.fill(1, stream=stream)
        middle.record(stream)
        for _ in range(8):
            buffer.fill(2, stream=stream)
        stop.record(stream)
        stop.synchronize()
        one, eight = middle.since_us(start), stop.since_us(middle)
    assert one > 5
    assert math.isclose(eight / one, 8, rel_tol=0.5)
