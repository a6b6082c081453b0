"""How calls may be shared out, from the roles of their tensors: no framework is asked."""

from __future__ import annotations

import pytest

from normgen.operators.forms import writes_of
from normgen.operators.sharing import PARTIAL, REPLICATED, shares
from normgen.program.source import problem_for
from normgen.spec.reader import list_specs, load, parse

SIZES = {"rows": (4, 6), "cols": 128, "groups": 1, "batches": 4, "heads": 6, "inner": 32}


def ways(op: str, direction: str = "forward") -> list[tuple[dict[str, int], dict[str, int]]]:
    spec = parse(op) if "\n" in op else load(op)
    inner = 32 if spec.has_inner else None
    rows = 24
    problem = problem_for(spec, shape=(4, 6, 128), direction=direction, inner=inner)
    assert problem.rows == rows
    reads = [t for t in problem.tensors if not t.is_written]
    writes = [t for t in problem.tensors if t.is_written]
    shapes = {}
    for use in reads:
        axes = use.axes
        sizes: tuple[int, ...] = ()
        for axis in axes:
            sizes += SIZES["rows"] if axis == "rows" else (SIZES[axis],)
        shapes[use.name] = sizes
    return list(shares(problem, reads, writes, shapes))


def test_a_norm_is_shared_out_by_rows_and_its_parameters_gradients_are_partial_sums() -> None:
    whole, *by_rows = ways("layernorm")
    assert set(whole[0].values()) == set(whole[1].values()) == {REPLICATED}
    assert [(read["x"], read["weight"], written["y"], written["rstd"]) for read, written in by_rows] == [
        (0, REPLICATED, 0, 0),
        (1, REPLICATED, 1, 1),
    ]
    _, *by_rows = ways("layernorm", "backward")
    assert [(read["dy"], written["dx"], written["dweight"], written["dbias"]) for read, written in by_rows] == [
        (0, 0, PARTIAL, PARTIAL),
        (1, 1, PARTIAL, PARTIAL),
    ]


def test_rows_with_numbers_stay_together() -> None:
    for op in ("causal_softmax", "dropout_add_rmsnorm"):
        assert len(ways(op)) == len(ways(op, "backward")) == 1


def test_only_where_no_column_sees_another_one_are_columns_shared_out() -> None:
    *_, (read, written) = ways("swiglu", "backward")
    assert set(read.values()) == set(written.values()) == {2}
    *_, (read, written) = ways("dyt")
    assert (read["x"], read["weight"], read["alpha"], written["y"]) == (2, 0, REPLICATED, 2)
    for op in ("rmsnorm", "softmax", "quantize_to_fp8_group", "cross_entropy"):
        assert all(2 not in {**read, **written}.values() for read, written in ways(op))
    numbered = 'name = "ramp"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\n'
    assert len(ways(numbered + 'y = "x * col"\n')) == len(ways(numbered + 'y = "x / cols"\n')) == 3
    assert len(ways(numbered + 'y = "where(row < 3, x, 0)"\n')) == 2
    assert len(ways(numbered + 'y = "x * 2"\n')) == 4


def test_a_batch_is_sharded_with_the_size_that_counts_it_and_its_gradient_is_a_sum_along_the_other() -> None:
    found = {read["x"]: (read["scale"], written["dscale"]) for read, written in ways("adaln", "backward")[1:]}
    assert found == {0: (0, 0), 1: (REPLICATED, PARTIAL)}
    found = {
        read["x"]: (read["weight"], written["dweight"]) for read, written in ways("head_layernorm", "backward")[1:]
    }
    assert found == {0: (REPLICATED, PARTIAL), 1: (0, 0)}


def test_products_are_shared_out_by_rows_and_their_matrices_gradients_are_sums() -> None:
    for read, written in ways("linear", "backward")[1:]:
        assert read["dy"] == written["dx"] != REPLICATED
        assert {value for name, value in written.items() if name != "dx"} == {PARTIAL}


def test_a_matrix_of_each_batch_is_sharded_with_its_batches_and_its_gradient_is_a_sum_along_the_other() -> None:
    found = {read["dy"]: (read["w"], written["dw"]) for read, written in ways("bmm", "backward")[1:]}
    assert found == {0: (0, 0), 1: (REPLICATED, PARTIAL)}
    problem = problem_for(load("bmm"), shape=(24, 6, 128), inner=32)
    shapes = {"x": (2, 3, 4, 32), "w": (2, 3, 32, 128)}
    reads = [t for t in problem.tensors if not t.is_written]
    writes = [t for t in problem.tensors if t.is_written]
    found = {read["x"]: (read["w"], written["y"]) for read, written in list(shares(problem, reads, writes, shapes))[1:]}
    assert found == {0: (0, 0), 1: (1, 1), 2: (REPLICATED, 2)}


@pytest.mark.parametrize("op", sorted(list_specs()))
def test_every_operation_has_a_way_and_each_way_says_all_of_its_tensors(op: str) -> None:
    problem = problem_for(load(op), shape=(4, 6, 128), inner=32 if load(op).has_inner else None)
    found = ways(op)
    assert found
    for read, written in found:
        assert {*read, *written} == {t.name for t in problem.tensors}
    assert writes_of(load(op), ()).plainly
