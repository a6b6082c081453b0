"""The promise that a row's bits depend neither on how many rows there are nor on which of them it is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.device import target
from normgen.errors import UsageError
from normgen.export import headers_of
from normgen.knobs import Edges, ReduceWith
from normgen.problem.words import options
from normgen.program.source import problem_for
from normgen.python.any_rows import AnyRows
from normgen.records.winners import lookup, records_of, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, changed
from normgen.spec.reader import load
from normgen.suites.bands import Bands
from tests.python.devices import NEEDS_COMPILER, OnCpu, OnGpu, Place

H200 = target("h200")
COUNTS = [*sorted(random.Random(5).sample(range(1, 130), 49)), 500]
Array = np.ndarray[Any, np.dtype[Any]]


def adversarial(rows: int, cols: int, dtype: Any = np.float32) -> Array:
    """Rows of all kinds side by side: some cancel, and need the second look that others are spared."""
    draw = np.random.default_rng(11)
    x = draw.standard_normal((rows, cols))
    x[1::3] = x[1::3] * 1e-3 + 1e3
    x[2::5] *= 1e-12
    return x.astype(dtype)


def bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)


def check(norm: Any, place: Place, x: Array, rest: tuple[Array, ...], counts: list[int]) -> None:
    """Every run of rows, wherever it stands, has the bits that its rows have among all of them."""
    given = tuple(place.array(value) for value in rest)
    whole = [np.array(place.values(part)) for part in norm(place.array(x), *given)]
    draw = random.Random(3)
    for count in counts:
        first = draw.randrange(len(x) - count + 1)
        for part, all_rows in zip(norm(place.array(x[first : first + count]), *given), whole, strict=True):
            np.testing.assert_array_equal(bits(place.values(part)), bits(all_rows[first : first + count]))


@NEEDS_COMPILER
def test_rows_have_the_same_bits_in_every_one_of_fifty_batches() -> None:
    norm = normgen.kernel("layernorm", shape=(-1, 96), batch_invariant=True, device="cpu")
    draw = np.random.default_rng(2)
    weights = tuple(draw.standard_normal(96).astype(np.float32) for _ in range(2))
    check(norm, OnCpu(), adversarial(500, 96), weights, COUNTS)
    assert isinstance(norm, AnyRows)
    assert {kernel.schedule.order for kernel in norm._by_band.values()} == {norm.schedule.order}
    assert len(COUNTS) == 50


@NEEDS_COMPILER
@pytest.mark.parametrize(
    "knobs",
    [
        "threads_per_row=8 rows_per_block=16 vector=4 variance=guarded",
        "threads_per_row=64 rows_per_block=4 vector=1 reduce_with=shared_tree",
        "threads_per_row=32 rows_per_block=2 vector=2 persistent=1 hold=registers unroll=0",
        "threads_per_row=32 cluster=2 vector=1 variance=corrected_two_pass",
    ],
)
def test_each_kind_of_schedule_treats_all_rows_alike(knobs: str) -> None:
    schedule = changed(Schedule(), knobs)
    norm = normgen.kernel("layernorm", shape=(8, 100), batch_invariant=True, schedule=schedule, device="cpu")
    assert refusal(norm.problem, schedule, H200) is None
    draw = np.random.default_rng(2)
    weights = tuple(draw.standard_normal(100).astype(np.float32) for _ in range(2))
    check(norm, OnCpu(), adversarial(70, 100), weights, [1, 2, 3, 8, 17, 33, 70])


@NEEDS_COMPILER
def test_a_peeled_row_has_other_bits_at_another_place_which_the_promise_refuses() -> None:
    peeled = Schedule(threads_per_row=8, rows_per_block=16, vector=4, edges="peel")
    norm = normgen.kernel("layernorm", shape=(8, 97), schedule=peeled, device="cpu")
    draw = np.random.default_rng(2)
    weights = tuple(draw.standard_normal(97).astype(np.float32) for _ in range(2))
    with pytest.raises(AssertionError, match="not equal"):
        check(norm, OnCpu(), adversarial(60, 97), weights, list(range(1, 50)))
    promised = problem_for(load("layernorm"), shape=(8, 97), batch_invariant=True)
    assert "peeled head" in (refusal(promised, peeled, H200) or "")


@NEEDS_COMPILER
def test_an_array_that_only_the_general_kernel_covers_is_refused() -> None:
    norm = normgen.kernel("rmsnorm", shape=(4, 64), dtype="bf16", batch_invariant=True, device="cpu")
    flat = np.zeros(4 * 64 + 1, ml_dtypes.bfloat16)
    with pytest.raises(UsageError, match="the layout it was made for"):
        norm(flat[1:].reshape(4, 64), np.ones(64, ml_dtypes.bfloat16))


def test_random_numbers_of_a_place_and_the_promise_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="random numbers"):
        problem_for(load("dropout_add_rmsnorm"), shape=(4, 64), batch_invariant=True)


def test_a_record_without_the_promise_serves_it_where_its_kernel_keeps_it() -> None:
    plain = problem_for(load("rmsnorm"), shape=(4096, 4096), dtype="bf16", without=("rstd",))
    promised = replace(plain, batch_invariant=True)
    records = tuple(records_of(H200, [shipped_folder()]))
    found, same = lookup(promised, H200, records=records), lookup(plain, H200, records=records)
    assert found.exact
    assert found.schedule == same.schedule
    assert found.record is not None
    peeled = replace(found.record, schedule=found.record.schedule.varied(edges=Edges.PEEL))
    assert not peeled.serves(promised.question)
    assert "batch_invariant" not in plain.question.as_dict()
    assert promised.question.as_dict()["batch_invariant"] is True
    assert "--batch-invariant" in options(promised)


def test_all_bands_have_one_order_and_keep_what_it_leaves_open() -> None:
    promised = problem_for(load("rmsnorm"), shape=(1, 4096), dtype="bf16", without=("rstd",), batch_invariant=True)
    bands = Bands(promised, H200, records=records_of(H200, [shipped_folder()]))
    free = Bands(replace(promised, batch_invariant=False), H200, records=records_of(H200, [shipped_folder()]))
    counts = (1, 8, 16, 300, 4096, 20000)
    found = [bands.lookup(rows).schedule for rows in counts]
    assert len({schedule.order for schedule in found if schedule}) == 1
    assert len({schedule for schedule in (free.lookup(rows).schedule for rows in counts) if schedule}) > 1
    at_work = [promised.with_rows(bands.band(rows)) for rows in counts]
    assert all(s is not None and refusal(p, s, H200) is None for p, s in zip(at_work, found, strict=True))
    assert {s.reduce_with for s in found if s} == {ReduceWith.SHUFFLE}  # what is not searched for many rows serves none


def test_a_header_of_the_promise_has_one_order_for_its_columns() -> None:
    free = problem_for(load("rmsnorm"), shape=(1, 4096), dtype="bf16", without=("rstd",)).question
    known = records_of(H200, [shipped_folder()])
    alike = [r for r in known if replace(r.problem, rows=1) == free and r.is_alone is False]
    promised = [replace(r, problem=replace(r.problem, batch_invariant=True), spec="") for r in alike]
    orders = {r.schedule.order for r in promised}
    assert len(orders) > 1
    with pytest.raises(UsageError, match="in one order"):
        headers_of(promised)
    (header,) = headers_of([r for r in promised if r.schedule.order == promised[0].schedule.order])
    assert "batch-invariant: a row's bits" in header.text
    assert header.file_name.endswith("_batch_invariant_sm90.cu")


CASES = [("layernorm", 4096, "f32"), ("rmsnorm", 4096, "bf16"), ("softmax", 1000, "bf16")]


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "cols", "dtype"), CASES)
def test_rows_have_the_same_bits_in_every_batch_on_the_gpu(op: str, cols: int, dtype: str) -> None:
    norm = normgen.kernel(op, shape=(-1, cols), dtype=dtype, batch_invariant=True, device=0)
    kind = norm.problem.dtype.numpy
    draw = np.random.default_rng(2)
    reads = [t for t in norm.problem.tensors if not t.is_written][1:]
    rest = tuple(draw.standard_normal(cols).astype(t.dtype.numpy) for t in reads)

    def always_several(*arrays: Any) -> tuple[Any, ...]:
        made = norm(*arrays)
        return made if isinstance(made, tuple) else (made,)

    counts = [*sorted(random.Random(5).sample(range(1, 5000), 49)), 1]
    check(always_several, OnGpu(), adversarial(5000, cols, kind), rest, counts)
