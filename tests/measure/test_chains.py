"""Producers, consumers and roofs compile where they must, cover every byte, and are what their names say."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.cuda.compiler import compile_module
from normgen.errors import NormgenError
from normgen.measure.chains import ends, matmul
from normgen.measure.chains.chain import Chain
from normgen.measure.chains.ends import ConsumedRegion, PlainEnds
from normgen.measure.chains.kernels import MOST_REGIONS, NAMES, THREADS, VECTORS_PER_THREAD, module_of
from normgen.measure.chains.roofs import MOST_HELD, elementwise_roofs, reduction_roofs, streams_of
from normgen.measure.protocol import ROOF_PREFIX, roof_family
from normgen.measure.replays import layout
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Place, Setting
from normgen.spec.reader import load
from tests.cuda.compiled import ptx


def asked(op: str, shape: str, **question: Any) -> Problem:
    return problem_for(load(op), shape=shape, **({"dtype": "bf16"} | question))


@pytest.mark.parametrize("arch", [75, 80, 90, 120])
def test_the_helpers_compile_without_spilling(arch: int) -> None:
    resources = compile_module(module_of("produce"), arch).resources
    assert set(resources) == set(NAMES)
    assert all(r.spill_bytes == r.stack_bytes == 0 for r in resources.values())
    assert resources["produce"].registers >= 16  # four vectors of 16 bytes wait in registers


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_covers_every_vector_and_only_early_ones_start_early(name: str) -> None:
    launch = module_of(name).kernels[0].launch
    assert launch.grid(rows=1, sm_count=132) == 1
    assert launch.grid(rows=THREADS * VECTORS_PER_THREAD + 1, sm_count=132) == 2
    assert launch.dependent is name.endswith("early")


def test_an_early_kernel_triggers_and_waits_before_its_first_access_and_a_plain_one_does_neither() -> None:
    bodies = ptx(module_of("produce"), 90).split(".entry ")[1:]
    found = {body.partition("(")[0]: body for body in bodies}
    assert set(found) == set(NAMES)
    for name, body in found.items():
        waits = body.find("griddepcontrol.wait")
        assert (waits >= 0) is (body.find("griddepcontrol.launch_dependents") >= 0) is name.endswith("early")
        if waits >= 0:
            accesses = [at for access in ("ld.global", "st.global") if (at := body.find(access)) >= 0]
            assert waits < min(accesses)


@pytest.mark.parametrize(
    ("pointer", "size", "wanted"), [(0, 16, (0, 1)), (6, 10, (0, 1)), (6, 11, (0, 2)), (48, 1, (48, 1))]
)
def test_a_region_is_read_in_the_whole_vectors_that_it_touches(
    pointer: int, size: int, wanted: tuple[int, int]
) -> None:
    assert ConsumedRegion(pointer=pointer, bytes=size).aligned == wanted


class Launches:
    """Stands in for a loaded helper: keeps what was launched."""

    def __init__(self, module: Any, *_: Any) -> None:
        self.name, self.made = module.kernels[0].name, []
        self.values: dict[str, Any] = {}
        self.bound = self

    def set(self, **values: Any) -> Launches:
        self.values |= values
        return self

    def launch(self, stream: int) -> None:
        self.made.append({"stream": stream, **self.values})


class Held:
    def __init__(self, size: int, **_: Any) -> None:
        self.size, self.pointer = size, 1 << 40


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> tuple[PlainEnds, Launches, Launches]:
    monkeypatch.setattr(ends, "Loaded", Launches)
    monkeypatch.setattr(ends, "DeviceBuffer", Held)
    made = PlainEnds(70, None, 0, early=False)  # type: ignore[arg-type]
    return made, made._producer, made._consumer  # type: ignore[return-value]


def test_a_consumer_reads_as_much_whatever_it_is_given(plain: tuple[PlainEnds, Launches, Launches]) -> None:
    made, _, consumer = plain
    for regions in (
        [ConsumedRegion(pointer=64, bytes=32)],
        [ConsumedRegion(pointer=i << 10, bytes=16 * i) for i in range(1, 7)],
    ):
        made.consume(regions, 5)
        assert consumer.made[-1]["rows"] == 70
    first, second = consumer.made
    assert (first["pitches"], first["pointers"]["a"]) == ({"a": 2, "b": 0, "c": 0, "d": 0}, 64)
    assert list(second["pitches"].values()) == [3, 4, 5, 6]  # the largest four
    assert len(second["pitches"]) == MOST_REGIONS


@pytest.mark.parametrize("setting", list(Setting))
def test_a_link_without_a_kernel_reads_what_p_wrote_and_one_with_it_what_k_wrote(
    plain: tuple[PlainEnds, Launches, Launches], setting: Setting
) -> None:
    made, producer, consumer = plain
    problem = asked("layernorm", "40x96", direction="backward")
    where = layout(problem, Place(setting=setting))
    base = 1 << 20
    sets = [Held(where.bytes), Held(where.bytes)]
    sets[0].pointer, sets[1].pointer = base, 2 * base
    chain = Chain(problem, where, sets, made)  # type: ignore[arg-type]
    chain.without(3, 9)
    chain.before(0, 9)
    chain.behind(0, 9)
    chain.behind(0, 9, [ConsumedRegion(pointer=7 << 20, bytes=160)])
    written = where.target.start
    assert written == (where.source.start + where.source.bytes if setting is Setting.COLD else where.slots["dy"].start)
    assert [p["pointers"] for p in producer.made] == [
        {"target": at + written, "source": at + where.source.start} for at in (2 * base, base)
    ]
    assert producer.made[0]["rows"] == 40 * 96 * 2 // 16
    free, own, theirs = ((c["pointers"], c["pitches"]) for c in consumer.made)
    assert (free[0]["a"], free[1]["a"], free[1]["b"]) == (2 * base + written, 480, 0)
    assert [own[0][name] - base for name in "abc"] == [where.slots[n].start for n in ("dx", "dweight", "dbias")]
    assert list(own[1].values()) == [480, 12, 12, 0]
    assert (theirs[0]["a"], theirs[1]["a"]) == (7 << 20, 10)
    assert {c["rows"] for c in consumer.made} == {70}


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    "problem",
    [
        asked("rmsnorm", "1x4096"),
        asked("rmsnorm", "16x16384"),
        asked("layernorm", "64x4097", dtype="f32"),
        asked("softmax", "200x1000"),
    ],
    ids=str,
)
def test_every_reduction_roof_compiles_and_holds_its_row_in_registers(problem: Problem, arch: int) -> None:
    roofs = list(reduction_roofs(problem, sm_count=132, arch=arch))
    assert len(roofs) >= (6 if arch >= 90 else 4)
    assert len({roof.name for roof in roofs}) == len(roofs)
    has_clusters = arch >= 90 and problem.cols > 1000  # a shorter row has no work for several blocks
    assert any(roof.module.kernels[0].launch.cluster > 1 for roof in roofs) is has_clusters
    for roof in roofs:
        (figures,) = compile_module(roof.module, arch).resources.values()
        assert figures.stack_bytes == figures.spill_bytes == 0
        assert figures.registers < 64 + MOST_HELD // 4


def test_a_reduction_roof_is_for_few_rows_without_sums_over_them() -> None:
    assert not list(reduction_roofs(asked("rmsnorm", "265x4096"), sm_count=132, arch=90))
    assert list(reduction_roofs(asked("rmsnorm", "264x4096"), sm_count=132, arch=90))
    assert not list(reduction_roofs(asked("rmsnorm", "8x4096", direction="backward"), sm_count=132, arch=90))


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_flat_roof_compiles_and_its_grid_covers_what_it_moves(direction: str, arch: int) -> None:
    problem = asked("layernorm", "8192x768", direction=direction)
    parts = 132 if problem.column_outputs else 0
    sums = (2 * 768, 2) if parts else None
    roofs = list(elementwise_roofs(streams_of(problem, parts=parts), sums=sums, parts=parts))
    assert len(roofs) == 11
    assert sum(roof.name.endswith("last first") for roof in roofs) == 3
    for roof in roofs:
        resources = compile_module(roof.module, arch).resources
        assert all(r.stack_bytes == r.spill_bytes == 0 for r in resources.values())
        assert len(resources) == 1 + bool(parts)
        launch = roof.module.kernels[0].launch
        is_one_wave = launch.persistent > 0
        assert is_one_wave is roof.name.endswith("one wave")
        covered = launch.grid(rows=roof.rows, sm_count=132) * launch.rows_per_block
        assert is_one_wave or covered >= max(vectors for _, vectors in roof.vectors)


def test_the_streams_are_the_compulsory_bytes_and_partial_sums_take_the_place_of_sums() -> None:
    problem = asked("layernorm", "8192x768", direction="backward")
    whole, split = streams_of(problem), streams_of(problem, parts=132)
    assert whole.read + whole.written == problem.compulsory_bytes
    assert whole.partials == 0
    assert split.read == whole.read
    assert whole.written - split.written == 2 * 768 * 2
    assert split.partials == 2 * 768 * 132 * 4


def test_a_roof_belongs_to_the_family_that_begins_its_name() -> None:
    problem = asked("rmsnorm", "8x4096")
    flat = elementwise_roofs(streams_of(problem))
    assert {roof_family(ROOF_PREFIX + roof.name) for roof in flat} == {"elementwise"}
    two = elementwise_roofs(streams_of(problem), sums=(4096, 2), parts=4)
    assert {roof_family(ROOF_PREFIX + roof.name) for roof in two} == {"two launches"}
    reduced = reduction_roofs(problem, sm_count=132, arch=90)
    assert {roof_family(ROOF_PREFIX + roof.name) for roof in reduced} == {"reduction"}
    assert roof_family(ROOF_PREFIX + "copy") == "copy"


def test_what_does_not_stand_between_matrix_products_is_told_why() -> None:
    free = 100 << 30
    assert matmul.refusal(asked("rmsnorm", "64x4096"), free_bytes=free) == ""
    assert "weights [131072, 131072] take 64." in matmul.refusal(asked("rmsnorm", "64x131072"), free_bytes=free)
    mixed = asked("rmsnorm", "64x4096", dtypes={"y": "f32"})
    assert matmul.refusal(mixed, free_bytes=free).endswith("x is bf16, y f32")
    sums = asked("layernorm", "64x4096", direction="backward", gradients=("weight", "bias"))
    assert "no [rows, cols] output" in matmul.refusal(sums, free_bytes=free)


def test_two_matrix_products_take_as_long_as_their_weights_at_least() -> None:
    """To make and to time those of 1x97600 took longer than an answer may, and the tune ended without a winner."""

    def least(shape: str) -> str:
        return matmul.too_long(matmul.least_us(asked("rmsnorm", shape), gb_per_s=4200.0))

    assert least("1x97600") == "two of this size take 9.1 ms"
    assert least("64x4096") == least("1x40960") == ""


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "WHEELS", ("normgen-has-no-such-wheel",))
    matmul.library.cache_clear()
    with pytest.raises(NormgenError, match="needs cuBLAS") as caught:
        matmul.library()
    assert "nvidia-cublas" in str(caught.value)
    matmul.library.cache_clear()
