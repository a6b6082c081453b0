"""What a replay consists of, in each context, on a device that only writes down what it is asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module as EmittedModule
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS
from normgen.errors import NormgenError
from normgen.measure import data, gpu
from normgen.measure.chains import ends, matmul, works
from normgen.measure.chains.kernels import module_of
from normgen.measure.clocks import ClockWatch
from normgen.measure.gpu import GpuBench
from normgen.measure.protocol import BASE, BASE_AGAIN, twin_name
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.spec.reader import load
from normgen.tuning.measured import own_modules
from tests.measure.host_device import HostBuffer, host_memset

H200 = TARGETS["h200"]
Node = tuple[str, dict[str, int | None]]  # the kernel's name and its pointers
NODE_US = 8.0
queued: list[Node] = []


class Handle:
    """A stream or an event: nothing to wait for."""

    handle = 7

    def __init__(self, *_: Any) -> None: ...
    def __int__(self) -> int:
        return self.handle

    def wait_for(self, _: int) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, _: Any) -> None: ...
    def close(self) -> None: ...
    def since_us(self, _: Any) -> float:
        return 3 * NODE_US


class Graph:
    """What was queued while it was captured; a replay takes as long as it has nodes."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes, self.is_open = nodes, True

    @staticmethod
    def capture(_: Any, work: Callable[[], object]) -> Graph:
        queued.clear()
        work()
        return Graph(list(queued))

    def upload(self, _: Any) -> None: ...
    def replay_us(self, *_: Any) -> float:
        assert self.is_open
        return len(self.nodes) * NODE_US

    def close(self) -> None:
        self.is_open = False


class Module:
    """A loaded module, which is its own set of arguments."""

    def __init__(self, module: Any, cubin: Any, **_: Any) -> None:
        assert set(cubin.resources) >= {kernel.name for kernel in module.kernels}
        self.module, self.values = module, dict[str, Any]()

    def bind(self) -> Module:
        again = Module.__new__(Module)
        again.module, again.values = self.module, {}
        return again

    def set(self, **values: Any) -> Module:
        self.values["pointers"] = {**self.values.get("pointers", {}), **values.pop("pointers", {})}
        self.values |= values
        return self

    def launch(self, stream: Any) -> None:
        assert int(stream) == Handle.handle
        assert self.values["rows"] > 0
        queued.extend((kernel.name, dict(self.values["pointers"])) for kernel in self.module.kernels)

    def close(self) -> None: ...


def copying(target: int, source: int, size: int, **_: Any) -> None:
    queued.append(("copy", {"target": target, "source": source}))
    ctypes.memmove(target, source, size)


@pytest.fixture(autouse=True)
def written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpu, data, works, ends):
        for name, stand_in in {"DeviceBuffer": HostBuffer, "copy": copying, "LoadedModule": Module}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    for name, stand_in in {"Stream": Handle, "Event": Handle, "Graph": Graph, "memset": host_memset}.items():
        monkeypatch.setattr(gpu, name, stand_in)
    monkeypatch.setattr(gpu, "use_device", lambda _: None)
    monkeypatch.setattr(gpu, "pci_bus_id", lambda _: "0")
    monkeypatch.setattr(gpu.ClockWatch, "of_device", lambda _: ClockWatch(None))
    monkeypatch.setattr(gpu, "DeviceCheck", lambda problem, *_, **__: type("Checks", (), {"problem": problem})())
    monkeypatch.setattr(matmul, "WHEELS", ())
    matmul.library.cache_clear()


def asked(shape: str = "300x1024", **question: Any) -> Problem:
    return problem_for(load("layernorm"), shape=shape, **({"dtype": "bf16"} | question))


def bench_at(place: Place, problem: Problem, **more: Any) -> GpuBench:
    bench = GpuBench(problem, H200, index=0, place=place, seed=0, **more)
    module = emit(problem, default_schedule(problem, H200))
    bench.load("ours", module, compile_module(module, H200.arch))
    bench.warm_up("ours")
    return bench


def nodes(bench: GpuBench, key: str) -> list[Node]:
    graph: Any = bench._replays[key].graph
    found: list[Node] = graph.nodes
    return found


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("setting", list(Setting))
@pytest.mark.parametrize(("context", "suffix"), [(Context.BETWEEN, ""), (Context.CHAIN, "_early")])
def test_each_link_is_p_then_the_kernel_then_c_on_one_set_and_all_have_as_many_links(
    context: Context, suffix: str, setting: Setting, direction: str
) -> None:
    problem = asked(direction=direction)
    bench = bench_at(Place(context=context, setting=setting), problem)
    ours = [kernel.name for kernel in bench._loaded["ours"].module.module.kernels]
    count = bench.links(BASE)
    assert [name for name, _ in nodes(bench, BASE)] == [f"produce{suffix}", f"consume{suffix}"] * count
    assert [name for name, _ in nodes(bench, "ours")] == [f"produce{suffix}", *ours, f"consume{suffix}"] * count
    assert {bench.links(key) for key in ("ours", *bench.bases, *bench.roofs)} == {count}
    first = problem.tensors[0].name
    step = 2 + len(ours)
    for i in range(bench.plan.sets):
        produced, kernel, consumed = (nodes(bench, "ours")[step * i + at][1] for at in (0, 1, step - 1))
        where = bench.tensors(i)
        main = where["dy" if direction == "backward" else "x"]
        assert (produced["target"] == main) is (setting is not Setting.COLD)
        assert kernel[first] == consumed["a"] == where[first]
        free = nodes(bench, BASE)
        assert free[2 * i][1] == produced
        assert free[2 * i + 1][1]["a"] == produced["target"]


@pytest.mark.parametrize("op", ["row_sum", "row_max_sum", "cross_entropy", "kl_div", "full_sum"])
def test_c_reads_rows_and_totals_where_a_kernel_writes_nothing_else(op: str) -> None:
    problem = problem_for(load(op), shape="64x96", dtype="f32")
    bench = bench_at(DEFAULT_PLACE, problem)
    links = nodes(bench, "ours")
    assert [name for name, _ in links[:: len(links) // bench.links("ours")]] == ["produce"] * bench.links("ours")
    assert links[len(links) // bench.links("ours") - 1][0] == "consume"
    assert links[len(links) // bench.links("ours") - 1][1]["a"] == bench.tensors(0)[problem.tensors[0].name]


def test_alone_a_replay_is_launches_of_the_kernel_and_nothing_else() -> None:
    bench = bench_at(Place(context=Context.ALONE), asked())
    assert bench.bases == ()
    assert {name for name, _ in nodes(bench, "ours")} == {bench._loaded["ours"].module.module.kernels[0].name}
    assert all(not name.startswith(("produce", "consume")) for key in bench.roofs for name, _ in nodes(bench, key))


def test_a_kernel_in_a_chain_can_also_be_timed_alone_and_both_are_freed_with_it() -> None:
    bench = bench_at(DEFAULT_PLACE, asked())
    twins = [bench.twin("ours"), bench.twin("ours", Context.ALONE)]
    assert twins == [twin_name("ours"), twin_name("ours", Context.ALONE)]
    assert nodes(bench, twins[0]) == nodes(bench, "ours")
    assert len({name for name, _ in nodes(bench, twins[1])}) == 1
    graphs: list[Any] = [bench._replays[key].graph for key in ("ours", *twins)]
    bench.unload("ours")
    assert not any(graph.is_open for graph in graphs)
    assert not {"ours", *twins} & set(bench._replays)
    bench.close()


def test_the_chain_without_a_kernel_is_one_graph_under_two_keys() -> None:
    bench = bench_at(DEFAULT_PLACE, asked())
    assert bench._replays[BASE].graph is bench._replays[BASE_AGAIN].graph


def test_small_sets_are_flushed_and_none_is_used_twice_in_a_replay() -> None:
    bench = bench_at(DEFAULT_PLACE, asked("2x64"))
    assert bench.plan.flushed
    written = [pointers["target"] for name, pointers in nodes(bench, "ours") if name == "produce"]
    assert len(set(written)) == len(written) == bench.links("ours") <= bench.plan.sets
    assert bench._replays["ours"].flush is not None


def test_replays_between_libraries_are_longer() -> None:
    short, long = (
        bench_at(Place(setting=Setting.HOT), asked("2x64"), **more) for more in ({}, {"replay_us": CONTEST_REPLAY_US})
    )
    assert (short.links("ours"), long.links("ours")) == (125, 500)


def test_a_hot_chain_that_does_not_fit_says_so() -> None:
    assert "spills" not in bench_at(Place(setting=Setting.HOT), asked()).conditions()
    found = bench_at(Place(setting=Setting.HOT), asked("4096x1024")).conditions()
    assert found["spills"] == "a chain takes 24 MiB and does not stay in L2"


def test_without_cublas_there_is_no_chain_of_matrix_products() -> None:
    bench = bench_at(DEFAULT_PLACE, asked())
    with pytest.raises(NormgenError, match="needs cuBLAS"):
        bench.twin(BASE, Context.MATMUL)
    with pytest.raises(NormgenError, match="needs cuBLAS"):
        GpuBench(asked(), H200, index=0, place=Place(context=Context.MATMUL), seed=0)


def test_p_copies_the_main_input_so_that_a_set_is_its_own_again() -> None:
    bench = bench_at(DEFAULT_PLACE, asked())
    x = bench.problem.tensor("x")
    own = bench.read(x, (0, 300)).copy()
    ctypes.memset(bench.tensors(0)["x"], 0, own.nbytes)
    bench.restore()
    assert (bench.read(x, (0, 300)) == own).all()
    assert own.astype(float).std() > 0.5


@pytest.mark.parametrize("context", [Context.BETWEEN, Context.CHAIN, Context.ALONE])
@pytest.mark.parametrize("direction", list(Direction))
def test_the_kernels_that_a_bench_loads_of_its_own_are_known_before_it_opens(
    context: Context, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[EmittedModule] = []
    compiled = ends.compile_module

    def noting(module: EmittedModule, *arguments: Any, **named: Any) -> Cubin:
        loaded.append(module)
        return compiled(module, *arguments, **named)

    monkeypatch.setattr(ends, "compile_module", noting)
    problem, place = asked(direction=direction), Place(context=context)
    GpuBench(problem, H200, index=0, place=place, seed=0)
    ours = [module for module in loaded if module != module_of("read_elements")]
    assert own_modules(problem, H200, place) == ours
