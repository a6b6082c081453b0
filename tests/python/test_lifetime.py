"""What outlives a handle: captured graphs that hold its module and its workspace. Each test is a process of its own,
for a graph whose module is gone ends in a segmentation fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

HEAD = """
import gc, warnings
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

given, out = arrays(1), outputs()
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


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


def test_ten_thousand_handles_of_ten_kernels_take_the_memory_of_ten() -> None:
    told = run("""
import resource
from normgen.python.handle import Kernel
made = []
for cols in range(512, 5632, 512):
    handle = normgen.kernel("rmsnorm", shape=(64, cols), present=["weight"])
    made.append((handle.problem, handle.schedule, handle.module, handle._bound.loaded.cubin))
x = {p.cols: DeviceArray.of(np.ones((64, p.cols), np.float32)) for p, *_ in made}
w = {p.cols: DeviceArray.of(np.ones(p.cols, np.float32)) for p, *_ in made}
y = {p.cols: DeviceArray((64, p.cols), "f32") for p, *_ in made}

def memory():
    gc.collect()
    with OnDevice(0):
        free, _ = check(driver().cuMemGetInfo(), "tell the free memory")
    pages = int(open("/proc/self/statm").read().split()[1])
    return free, pages * resource.getpagesize()

for i in range(10_000):
    problem, schedule, module, cubin = made[i % 10]
    handle = Kernel(problem=problem, schedule=schedule, module=module, cubin=cubin)
    handle(x[problem.cols], w[problem.cols], out=y[problem.cols])
    if i == 999:
        free, resident = memory()
left, grown = memory()
print(f"device memory {free - left} bytes, host memory {grown - resident} bytes more after 9000 handles")
assert free - left <= 2 << 20 and grown - resident <= 8 << 20, (free - left, grown - resident)
""")
    assert "more after 9000 handles" in told
