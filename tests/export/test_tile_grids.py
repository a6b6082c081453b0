"""The grids of headers of products: a block for each tile, or, of what is no product, by rows."""

from __future__ import annotations

from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.export import headers_of
from normgen.program.source import problem_for
from normgen.spec.reader import load

from .cases import record


def test_the_gradient_of_a_bias_is_a_kernel_of_rows_whose_grid_knows_no_tiles() -> None:
    spec = load("linear")
    for gradients, has_tiles in ((("bias",), False), (("x",), True), (("w",), True)):
        question: dict[str, Any] = {"shape": "256x512", "inner": 128, "direction": "backward", "gradients": gradients}
        [header] = headers_of([record(spec, **question)], spec=spec)
        assert ("int tile_rows" in header.text) is has_tiles
        assert ("blocks_for(const Launch& launch, int rows, int cols, int inner" in header.text) is has_tiles
        assert "int rows, int cols, int inner" in header.text
        writes_of_no_rows = "if (rows == 0) return cudaSuccess;" not in header.text
        assert writes_of_no_rows is (gradients != ("x",)), "a sum over no rows is 0, and is written"


def test_a_tile_that_a_cluster_shares_has_as_many_blocks() -> None:
    asked: dict[str, Any] = {"shape": "16x4096", "inner": 4096, "dtype": "bf16", "layout": {"w": "cols_inner"}}
    whole = default_schedule(problem_for(load("linear"), **asked), target("h200")).varied(cluster=1)
    for cluster in (1, 2):
        schedule = whole.varied(cluster=cluster)
        [header] = headers_of([record("linear", schedule=schedule, **asked)], spec=load("linear"))
        assert ("tiles_of(inner, launch.tile_inner) * launch.cluster;" in header.text) is (cluster > 1)
        assert "cudaLaunchAttributeClusterDimension" in header.text


def test_blocks_that_stay_and_clusters_are_counted_in_one_header() -> None:
    few: dict[str, Any] = {"shape": "16x4096", "inner": 4096, "dtype": "bf16", "layout": {"w": "cols_inner"}}
    many = few | {"shape": "4096x4096"}
    shared = default_schedule(problem_for(load("linear"), **few), target("h200")).varied(cluster=2)
    staying = default_schedule(problem_for(load("linear"), **many), target("h200"))
    assert staying.fragment == "wgmma"
    records = [record("linear", schedule=shared, **few), record("linear", schedule=staying, **many)]
    [header] = headers_of(records, spec=load("linear"))
    assert "tiles = lines * tiles_of(cols, launch.tile_cols) * launch.cluster;" in header.text
    assert "launch.persistent > 0 && tiles > resident" in header.text
