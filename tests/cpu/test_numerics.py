"""Sound modules: right numbers against numpy, and no fault, at awkward shapes, strides and alignments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from normgen.cpu import Program, ProgramRun
from normgen.cpu.tensors import Array

SHAPES = [(1, 1), (3, 7), (5, 123), (6, 760)]


def normal(shape: tuple[int, ...], dtype: object = np.float32, *, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.dtype(dtype))  # type: ignore[arg-type]


def strided(rows: int, cols: int, *, pitch: int, offset: int) -> Array:
    """[rows, cols] f32 with rows `pitch` apart, starting `offset` elements after an aligned address."""
    flat = normal((rows * pitch + offset + 64,))
    start = (-flat.ctypes.data // 4) % 64 + offset
    return np.lib.stride_tricks.as_strided(flat[start:], (rows, cols), (pitch * 4, 4))


def check_clean(run: ProgramRun) -> None:
    assert run.faults == (), "\n".join(map(str, run.faults))


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize("seed", [0, 7])
def test_row_sum_by_shuffles(rows: int, cols: int, seed: int, programs: dict[str, Program]) -> None:
    x, total = normal((rows, cols)), np.full(rows, np.nan, dtype=np.float32)
    run = programs["row_sum"].run({"x": x, "total": total}, rows=rows, cols=cols, seed=seed)
    check_clean(run)
    assert run.blocks == -(-rows // 2)
    np.testing.assert_allclose(total, x.sum(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["layernorm_static", "layernorm_dynamic"])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_layernorm_of_strided_misaligned_rows(name: str, rows: int, cols: int, programs: dict[str, Program]) -> None:
    x, y = strided(rows, cols, pitch=cols + 5, offset=1), strided(rows, cols, pitch=cols + 3, offset=3)
    weight, mean = normal((cols,), seed=1), np.zeros(rows, dtype=np.float32)
    tensors = {"x": x, "y": y, "weight": weight, "mean": mean}
    check_clean(programs[name].run(tensors, rows=rows, cols=cols, scalars={"eps": 1e-5}))
    exact = x.astype(np.float64)
    centred = exact - exact.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, exact.mean(axis=1), rtol=1e-5, atol=1e-6)


def test_gaps_between_rows_and_unwritten_tensors_keep_their_bytes(programs: dict[str, Program]) -> None:
    whole = normal((4, 20))
    before, x = whole.copy(), normal((4, 16), seed=1)
    check_clean(
        programs["layernorm_static"].run(
            {"x": x, "y": whole[:, 2:18], "weight": np.ones(16, dtype=np.float32), "mean": None},
            rows=4,
            cols=16,
            scalars={"eps": 1e-5},
        )
    )
    assert (whole[:, :2] == before[:, :2]).all()
    assert (whole[:, 18:] == before[:, 18:]).all()
    assert not (whole[:, 2:18] == before[:, 2:18]).any()


@pytest.mark.parametrize(("name", "dtype"), [("scale_bf16", ml_dtypes.bfloat16), ("scale_f16", np.float16)])
def test_sixteen_bit_vectors(name: str, dtype: object, programs: dict[str, Program]) -> None:
    x = normal((5, 264), dtype)
    y = np.zeros_like(x)
    check_clean(programs[name].run({"x": x, "y": y}, rows=5, cols=264))
    assert (y == x * x.dtype.type(2)).all()


def test_every_half_survives_and_rounds_as_numpy_rounds(programs: dict[str, Program]) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(np.float16).reshape(64, 1024)
    y = np.zeros_like(x)
    check_clean(programs["scale_f16"].run({"x": x, "y": y}, rows=64, cols=1024))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (x.astype(np.float32) * 2).astype(np.float16)
    assert (np.isnan(y) == np.isnan(expected)).all()
    finite = ~np.isnan(expected)
    assert (y.view(np.uint16)[finite] == expected.view(np.uint16)[finite]).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_cluster_sum_through_stores_into_the_other_blocks(seed: int, programs: dict[str, Program]) -> None:
    x, total = normal((3, 700)), np.zeros(12, dtype=np.float32)
    run = programs["cluster_sum"].run({"x": x, "total": total}, rows=3, cols=700, seed=seed)
    check_clean(run)
    assert run.blocks == 12
    np.testing.assert_allclose(total.reshape(3, 4), np.repeat(x.sum(axis=1)[:, None], 4, axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 13])
def test_bulk_copies_in_two_stages(rows: int, programs: dict[str, Program]) -> None:
    x = normal((rows, 128))
    y = np.zeros_like(x)
    check_clean(programs["bulk_load"].run({"x": x, "y": y}, rows=rows, cols=128, seed=5))
    assert (y == 3 * x).all()


def test_cp_async_groups(programs: dict[str, Program]) -> None:
    x = normal((256,))
    y = np.zeros_like(x)
    check_clean(programs["cp_async"].run({"x": x, "y": y}, rows=1, cols=128))
    assert (y.reshape(2, 128) == np.roll(x.reshape(2, 128), -4, axis=1)).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_last_block_counter_and_a_second_kernel(seed: int, programs: dict[str, Program]) -> None:
    x, total = normal((23, 32)), np.zeros(32, dtype=np.float32)
    space = np.zeros(16 + 5 * 32 * 4, dtype=np.uint8)
    for _ in range(2):  # the kernel leaves its counter at zero
        run = programs["last_block"].run({"x": x, "total": total}, rows=23, cols=32, seed=seed, workspace=space)
        check_clean(run)
        np.testing.assert_allclose(total, 2 * x.sum(axis=0), rtol=1e-4, atol=1e-4)
        total[:] = 0


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_cooperative_groups_reduce_of_a_struct(rows: int, cols: int, programs: dict[str, Program]) -> None:
    x = normal((rows, cols))
    total, largest = np.zeros(rows, dtype=np.float32), np.zeros(rows, dtype=np.float32)
    check_clean(programs["cooperative"].run({"x": x, "total": total, "largest": largest}, rows=rows, cols=cols))
    np.testing.assert_allclose(total, x.sum(axis=1), rtol=1e-4, atol=1e-5)
    assert (largest == x.max(axis=1)).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_of_a_block_meet_at_named_barriers(seed: int, programs: dict[str, Program]) -> None:
    x, total = normal((4, 100)), np.zeros(4, dtype=np.float32)
    check_clean(programs["named_barrier"].run({"x": x, "total": total}, rows=4, cols=100, seed=seed))
    np.testing.assert_allclose(total, x.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_no_rows_launch_nothing(programs: dict[str, Program]) -> None:
    x, total = np.zeros((0, 5), dtype=np.float32), np.zeros(0, dtype=np.float32)
    run = programs["row_sum"].run({"x": x, "total": total}, rows=0, cols=5)
    assert (run.faults, run.blocks) == ((), 0)
