"""The grids of headers of products: a block for each tile, or, of what is no product, by rows."""

from __future__ import annotations

from typing import Any

from normgen.export import headers_of
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
