"""What outlives a handle: its results; captured graphs that hold its module and its workspace. What does not: the rest.

Each test of a graph is a process of its own, for a graph whose module is gone ends in a segmentation fault.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.python.handle import Kernel
from tests.python.devices import Array, Place

pytestmark = pytest.mark.filterwarnings("ignore:no record for")

HEAD = """
import gc, resource, sys, warnings
import numpy as np
import normgen
from normgen.cuda.arrays import DeviceArray
from normgen.cuda.captured import _free, _lent
from normgen.cuda.driver import OnDevice, check, driver
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Graph, Stream

warnings.simplefilter("ignore")
ROWS, COLS = 4096, 1024

def arrays(seed):
    random = np.random.default_rng(seed)
    made = {n: random.standard_normal((ROWS, COLS), dtype=np.float32) for n in ("dy", "x")}
    x = made["x"].astype(np.float64)
    made["weight"] = random.standard_normal(COLS, dtype=np.float32)
    made["mean"] = x.mean(1).astype(np.float32)
    made["rstd"] = (1 / np.sqrt(x.var(1) + 1e-5)).astype(np.float32)
    return {name: DeviceArray.of(array) for name, array in made.items()}

def outputs():
    made = {"dx": (ROWS, COLS), "dweight": (COLS,), "dbias": (COLS,)}
    return {name: DeviceArray(shape, "f32") for name, shape in made.items()}

def backward():
    return normgen.kernel("layernorm", shape=(ROWS, COLS), direction="backward", deterministic=True)

def poison():
    for array in out.values():
        array.buffer.fill(0xFF)
    for array in out.values():
        array.numpy()

def result():
    return {name: array.numpy().tobytes() for name, array in out.items()}

# What the driver made for this process and has not destroyed, with its bytes. The card's free memory would tell as
# much about every other process that uses it.
alive = {}

def count(make, end):
    made, ended = getattr(driver(), make), getattr(driver(), end)

    def counted(*arguments):
        answer = made(*arguments)
        if int(answer[0]) == 0:
            alive[make, int(answer[1])] = arguments[0] if make == "cuMemAlloc" else 0
        return answer

    def discounted(handle):
        answer = ended(handle)
        if int(answer[0]) == 0:
            del alive[make, int(handle)]
        return answer

    setattr(driver(), make, counted)
    setattr(driver(), end, discounted)

for pair in (
    ("cuMemAlloc", "cuMemFree"), ("cuModuleLoadData", "cuModuleUnload"), ("cuStreamCreate", "cuStreamDestroy"),
    ("cuEventCreate", "cuEventDestroy"), ("cuGraphInstantiate", "cuGraphExecDestroy"),
):
    count(*pair)

# Of this process: bytes on the device, torch's too; objects of the driver; bytes on the host.
def memory():
    gc.collect()
    torch = sys.modules.get("torch")
    held = sum(alive.values()) + (torch.cuda.memory_reserved() if torch else 0)
    pages = int(open("/proc/self/statm").read().split()[1])
    return held, len(alive), pages * resource.getpagesize()

def grown_since(before, calls):
    device, objects, host = (now - then for now, then in zip(memory(), before))
    print(f"device memory {device} bytes, {objects} objects, host memory {host} bytes more after {calls}")
    assert device <= 2 << 20 and objects <= 16 and host <= 8 << 20, (device, objects, host)

given, out = arrays(1), outputs()
"""


SHAPES = {"dy": (24, 256), "x": (24, 256), "weight": (256,), "mean": (24,), "rstd": (24,)}


def backward(place: Place) -> Kernel:
    """Its column sums go through a workspace."""
    return normgen.kernel("layernorm", shape=SHAPES["x"], direction="backward", deterministic=True, device=place.device)


def given(place: Place, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: place.array(random.standard_normal(shape, dtype=np.float32)) for name, shape in SHAPES.items()}


def test_a_handle_goes_with_its_last_reference_and_its_workspace_with_it_but_not_its_results(place: Place) -> None:
    handle, arrays = backward(place), given(place, 1)
    results = handle(**arrays)
    wanted = [place.values(array).copy() for array in results]
    left = [weakref.ref(thing) for thing in (handle, handle._bound, *handle._workspaces.values())]
    assert len(left) == 3
    del handle
    assert [reference() for reference in left] == [None] * 3
    others = [backward(place) for _ in range(3)]
    for other in others:  # over whatever the handle has freed
        other(**given(place, 2))
    for array, values in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(place.values(array), values)


def test_arrays_of_a_call_are_the_callers_again_once_it_returns(place: Place) -> None:
    handle, arrays = backward(place), given(place, 1)
    results = handle(**arrays)
    left = [weakref.ref(array) for array in (*arrays.values(), *results)]
    del arrays, results
    assert [reference() for reference in left] == [None] * len(left)


def test_threads_share_a_workspace_and_a_handle_that_nobody_else_keeps(place: Place) -> None:
    handle, inputs = backward(place), [given(place, seed) for seed in range(4)]
    wanted = [[place.values(array).copy() for array in backward(place)(**arrays)] for arrays in inputs]
    left, wrong = weakref.ref(handle), []

    def work(handle: Kernel, number: int) -> None:
        for _ in range(25):
            found: list[Array] = [place.values(array) for array in handle(**inputs[number])]
            wrong.extend(number for a, b in zip(found, wanted[number], strict=True) if not np.array_equal(a, b))

    threads = [threading.Thread(target=work, args=(handle, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    del handle
    for thread in threads:
        thread.join()
    del threads, thread
    assert wrong == []
    assert left() is None


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.gpu
def test_a_graph_replays_after_its_handle_is_gone() -> None:
    run("""
handle = backward()
with Stream() as stream:
    handle(**given, **out, stream=stream)
    stream.synchronize()
    wanted = result()
    graph = Graph.capture(stream, lambda: handle(**given, **out, stream=stream))
    assert handle.module.workspace_bytes(rows=ROWS, sm_count=132) > 0 and len(_lent) == 1
    del handle
    gc.collect()
    scribbled = [DeviceBuffer(1 << 20) for _ in range(64)]  # over whatever the handle has freed
    for buffer in scribbled:
        buffer.fill(0xFF)
    for _ in range(3):
        poison()
        graph.launch(stream)
        stream.synchronize()
        assert result() == wanted
""")


@pytest.mark.gpu
def test_an_eager_call_does_not_meet_a_graphs_workspace_and_a_graphs_end_gives_it_back() -> None:
    run("""
import time
handle = backward()
with Stream() as stream, Stream() as other:
    for _ in range(5):
        graph = Graph.capture(stream, lambda: handle(**given, **out, stream=stream))
        assert len(_lent) == 1
        lent = _lent[0].buffer.pointer
        handle(**given, **out, stream=stream)
        handle(**given, **out, stream=other)
        stream.synchronize(), other.synchronize()
        assert lent not in {w.pointer for w in handle._workspaces.values()}
        graph.close()
        time.sleep(0.2)  # the driver's thread posts the semaphore
assert len(_lent) + len(_free) == 1, (len(_lent), len(_free))
""")


@pytest.mark.gpu
def test_torch_captures_a_backward_call_without_a_warm_up() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run("""
import torch
handle = backward()
here = {name: torch.from_numpy(array.numpy()).cuda() for name, array in given.items()}
there = {name: torch.empty(array.shape, device="cuda") for name, array in out.items()}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # in global mode: no allocation by anybody
    handle(**here, **there)
del handle
gc.collect()
graph.replay()
torch.cuda.synchronize()
backward()(**given, **out)
for name, array in out.items():
    assert np.array_equal(there[name].cpu().numpy(), array.numpy()), name
""")


GARBAGE = {
    "memory": "DeviceBuffer(1 << 20)",
    "event": "Event()",
    "stream": "Stream()",
    "graph": "Graph.capture(aside, lambda: made.buffer.fill(0, stream=aside))",
    "module": "LoadedModule(handle.module, handle._bound.loaded.cubin)",
}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_that_is_collected_while_torch_captures_is_freed_and_leaves_the_capture_alone(kind: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run(f"""
import torch
from normgen.cuda.launch import LoadedModule
from normgen.cuda.stream import Event
handle, made, aside = backward(), DeviceArray((8,), "f32"), Stream()
x = torch.zeros(8, device="cuda")
gc.disable()
before = len(alive)
cycle = [{GARBAGE[kind]}]
cycle.append(cycle)
assert len(alive) > before
del cycle
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # in global mode
    x += 1
    gc.collect()
    x += 1
assert len(alive) == before
graph.replay()
assert x.tolist() == [2] * 8
""")


@pytest.mark.gpu
def test_torch_captures_the_first_call_of_a_function() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run("""
import torch
import normgen.torch as ng
x = torch.randn(64, 512, device="cuda")
weight = torch.randn(512, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # in global mode: no module is loaded by anybody
    y = ng.rms_norm(x, weight, eps=1e-6)
graph.replay()
want = torch.nn.functional.rms_norm(x, (512,), weight, 1e-6)
assert torch.allclose(y, want, rtol=1e-5, atol=1e-5)
""")


@pytest.mark.gpu
def test_ten_thousand_handles_of_ten_kernels_take_the_memory_of_ten() -> None:
    told = run("""
from normgen.python.handle import Kernel
made = []
for cols in range(512, 5632, 512):
    handle = normgen.kernel("rmsnorm", shape=(64, cols), present=["weight"])
    made.append((handle.problem, handle.schedule, handle.module, handle._bound.loaded.cubin))
x = {p.cols: DeviceArray.of(np.ones((64, p.cols), np.float32)) for p, *_ in made}
w = {p.cols: DeviceArray.of(np.ones(p.cols, np.float32)) for p, *_ in made}
y = {p.cols: DeviceArray((64, p.cols), "f32") for p, *_ in made}

for i in range(10_000):
    problem, schedule, module, cubin = made[i % 10]
    handle = Kernel(problem=problem, schedule=schedule, module=module, cubin=cubin)
    handle(x[problem.cols], w[problem.cols], out=y[problem.cols])
    if i == 999:
        before = memory()
assert before[0] >= sum(array.buffer.size for arrays in (x, w, y) for array in arrays.values())
assert before[1] >= 10  # modules
grown_since(before, "9000 handles")
""")
    assert "more after 9000 handles" in told


@pytest.mark.gpu
def test_a_million_calls_take_no_more_memory_than_ten_thousand() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    told = run("""
import torch
import normgen.torch
x = torch.randn(1, 1024, device="cuda").bfloat16()
w = torch.randn(1024, device="cuda").bfloat16()
y = torch.empty_like(x)
wx, ww = (t.clone().requires_grad_() for t in (x, w))
handle = normgen.kernel("rmsnorm", shape=(1, 1024), dtype="bf16", present=["weight"])

def calls(count):
    for i in range(count // 10):
        for _ in range(6):
            handle(x, w, out=y)
        handle(x, w)
        normgen.torch.rms_norm(x, w)
        normgen.torch.rms_norm(wx, ww).backward(y)
        if i % 1000 == 0:
            wx.grad = ww.grad = None
            torch.cuda.synchronize()
    torch.cuda.synchronize()

calls(10_000)
before = memory()
assert before[0] >= torch.cuda.memory_allocated() > 0 and before[1] > 0
calls(1_000_000)
grown_since(before, "1,000,000 calls")
""")
    print(told)
    assert "more after 1,000,000 calls" in told
