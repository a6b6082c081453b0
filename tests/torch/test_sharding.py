"""Tensors that are shared out among processes (DTensor): losses, gradients and placements are those of one process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

import normgen.torch as ng  # noqa: E402  (of what is not always there)
from normgen.operators.table import TABLE  # noqa: E402

BOUND = 2e-6  # of float32 sums in another order, relative to the largest gradient
WAYS = ["tensor parallel", "tensor parallel, compiled", "FSDP2", "FSDP2 and tensor parallel", "DDP"]
# Rows that are told apart by their numbers stay together.
WHOLE = {"causal_softmax", "dropout_add_rms_norm"}
COLUMN_BY_COLUMN = {"swiglu", "swiglu_clamped", "geglu", "geglu_tanh"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What two processes found, on gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.torch.sharded"]
    both = [subprocess.Popen([*command, str(rank), str(port)], stdout=-1, stderr=-1, text=True) for rank in (0, 1)]
    try:
        texts = [process.communicate(timeout=240) for process in both]
    finally:
        for process in both:
            process.kill()
    assert not any(process.returncode for process in both), [err for _, err in texts]
    told: dict[str, Any] = json.loads(texts[0][0].splitlines()[-1])
    return told


@pytest.mark.parametrize("way", WAYS)
def test_a_shared_layer_has_the_loss_and_the_gradients_of_a_whole_one(found: dict[str, Any], way: str) -> None:
    differences = found[way]
    assert len(differences) == 10
    assert max(differences.values()) < BOUND, differences


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_operator_shared_out_by_rows_moves_nothing_and_sums_parameters_gradients(
    found: dict[str, Any], name: str
) -> None:
    for dim in ("0", "1"):
        told = found["operators"][name][dim]
        assert told["error"] < BOUND
        if name in WHOLE:
            assert set(told["results"]) == {"R"}
            continue
        assert told["moved"] == 0
        assert set(told["results"]) == {f"S({dim})"}
        for parameter in {"weight", "bias", "alpha"} & told["gradients"].keys():
            assert told["gradients"][parameter] == "P(sum)"
        for rows in {"x", "residual", "gate", "up", "z"} & told["gradients"].keys():
            assert told["gradients"][rows] == f"S({dim})"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_columns_are_gathered_unless_no_column_sees_another_one(found: dict[str, Any], name: str) -> None:
    told = found["operators"][name]["2"]
    assert told["error"] < BOUND
    is_kept = name in {*COLUMN_BY_COLUMN, "dyt"}
    assert set(told["results"]) == {"S(2)" if is_kept else "R"}
    assert (told["moved"] == 0) == is_kept
    if name in COLUMN_BY_COLUMN:
        assert set(told["gradients"].values()) == {"S(2)"}


def test_batches_and_heads_are_sharded_with_their_rows(found: dict[str, Any]) -> None:
    batches = found["operators"]["ada_layer_norm"]
    assert batches["0"]["gradients"] == {"x": "S(0)", "scale": "S(0)", "shift": "S(0)"}
    assert batches["1"]["gradients"] == {"x": "S(1)", "scale": "P(sum)", "shift": "P(sum)"}


def test_another_torch_s_dtensor_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor._ops import utils

    from normgen.errors import UsageError
    from normgen.torch import sharding

    monkeypatch.delattr(utils, "expand_to_full_mesh_op_strategy")
    with pytest.raises(UsageError, match="need a DTensor of torch"):
        sharding.register(ng.rms_norm.operator.operators.plain, lambda _: None)
