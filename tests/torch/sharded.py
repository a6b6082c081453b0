"""Two processes on gloo: a small Llama layer whole, and shared out by FSDP2, tensor and sequence parallelism, and DDP.

Started by test_sharding.py: `python -m tests.torch.sharded RANK PORT`. Rank 0 prints what it found as one JSON line.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import normgen.torch as ng

WIDTH, HEADS, TOKENS, ROWS = 32, 4, 8, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(ng.swiglu(self.gate(x), self.up(x)))


class Layer(nn.Module):
    """Norms, the gate and the loss's norm are ours."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = ng.RMSNorm(WIDTH, eps=1e-6), ng.RMSNorm(WIDTH, eps=1e-6)
        self.attention, self.gated = Attention(), Gated()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.gated(self.norm2(x))


def made() -> tuple[Layer, Any]:
    torch.manual_seed(0)
    layer = Layer()
    for parameter in (layer.norm1.weight, layer.norm2.weight):
        nn.init.normal_(parameter, 1, 0.2)
    return layer, torch.randn(ROWS, TOKENS, WIDTH)


def loss_of(y: Any) -> Any:
    return y.float().square().mean()


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compared(layer: nn.Module, loss: Any) -> dict[str, float]:
    """The largest difference from the layer that is not shared out, of the loss and of each gradient, relative."""
    reference, x = made()
    want = loss_of(reference(x))
    want.backward()
    names = dict(reference.named_parameters())
    got = {name.removeprefix("module."): whole(p.grad) for name, p in layer.named_parameters()}
    assert got.keys() == names.keys(), (got.keys(), names.keys())
    found = {"loss": (whole(loss).detach() - want.detach()).abs().item() / want.item()}
    for name, parameter in names.items():
        found[name] = ((got[name] - parameter.grad).abs().max() / parameter.grad.abs().max()).item()
    return found


def parallelized(layer: Layer, mesh: Any) -> Layer:
    sequence, full = Shard(1), Replicate()
    plan = {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(full,)),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=sequence, use_local_output=False),
        "gated": PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(full,)),
        "gated.gate": ColwiseParallel(use_local_output=False),
        "gated.up": ColwiseParallel(use_local_output=False),
        "gated.down": RowwiseParallel(output_layouts=sequence, use_local_output=False),
    }
    parallelize_module(layer, mesh, plan)
    return layer


def tensor_parallel(mesh: Any, *, is_compiled: bool = False) -> dict[str, float]:
    layer, x = made()
    parallelized(layer, mesh)
    run = torch.compile(layer, backend="aot_eager") if is_compiled else layer
    loss = loss_of(run(distribute_tensor(x, mesh, [Shard(1)])))
    loss.backward()
    return compared(layer, loss)


def data_parallel(mesh: Any, wrap: Callable[[Layer], Any]) -> dict[str, float]:
    layer, x = made()
    wrapped = wrap(layer)
    part = x.chunk(mesh.size())[mesh.get_rank()]
    loss = loss_of(wrapped(part))
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return compared(wrapped, mean / mesh.size())


def both_parallel() -> dict[str, float]:
    """FSDP2 over the parameters that tensor parallelism made DTensors: of two processes and of one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    layer, x = made()
    fully_shard(parallelized(layer, mesh["tensor"]), mesh=mesh["data"])
    part = x.chunk(2)[mesh["data"].get_local_rank()]
    loss = loss_of(layer(distribute_tensor(part, mesh["tensor"], [Shard(1)])))
    loss.backward()
    mean = whole(loss).detach().clone()
    dist.all_reduce(mean)
    return compared(layer, mean / 2)


def operators(mesh: Any) -> Iterator[tuple[str, Any]]:
    """Every operator, sharded by rows where that is its function still, and what it then moves between processes."""
    from normgen.operators.table import TABLE
    from tests.operators.cases import FUNCTIONS

    done = set()
    for name, *_ in FUNCTIONS:
        if name not in done:
            done.add(name)
            assert name in TABLE
            yield name, operator_case(mesh, name)


def operator_case(mesh: Any, name: str) -> dict[str, Any]:
    torch.manual_seed(1)
    function = getattr(ng, name)
    operator = function.operator
    shapes = {"row": (4, 6), "elem": (4, 6, 16), "col": (16,), "scalar": (), "batches": (4, 16), "heads": (6, 16)}
    tensors: dict[str, Any] = {}
    for read in operator.operators.calls.reads:
        if read.optional and read.name not in ("weight", "residual", "bias"):
            continue
        axes = "elem" if read.kind.is_elem else "col" if read.kind.is_col else "row" if read.kind.by_row else ""
        axes = axes or ("heads" if read.kind.by_head else "batches" if read.kind.by_batch else "scalar")
        if read.role.value == "seed":
            tensors[read.name] = torch.tensor(7)
        elif "i64" in read.dtypes:
            tensors[read.name] = torch.randint(0, 16, shapes[axes])
        else:
            tensors[read.name] = torch.randn(shapes[axes])
    reads = {read.name: read for read in operator.operators.calls.reads}

    def run(of: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        leaves = {k: v.detach().requires_grad_(v.is_floating_point() and reads[k].has_gradient) for k, v in of.items()}
        scalars = tuple(dict(operator.spec.scalars).values())
        with CommDebugMode() as moved:
            results = operator.run(tuple(leaves.get(r) for r in reads), scalars, None, None)
        results = results if isinstance(results, tuple) else (results,)
        sum((r * ramp(r)).sum() for r in results if r.requires_grad).backward()
        gradients = {k: v.grad for k, v in leaves.items() if v.requires_grad}
        return results, gradients, moved.get_total_counts()

    def ramp(result: Any) -> Any:
        values = torch.arange(1.0, 1 + result.shape[-1])
        return distribute_tensor(values, mesh, [Replicate()]) if isinstance(result, DTensor) else values

    want, want_gradients, _ = run(tensors)
    found: dict[str, Any] = {}
    for dim in (0, 1, 2):
        placed = {}
        for key, tensor in tensors.items():
            kind = reads[key].kind
            if kind.by_row and dim < tensor.ndim:
                place: Any = Shard(dim)
            elif kind.by_batch and dim == (1 if kind.by_head else 0):
                place = Shard(0)
            else:
                place = Replicate()
            placed[key] = distribute_tensor(tensor, mesh, [place])
        got, gradients, moved = run(placed)
        differ = [(whole(a) - b).abs().max().item() for a, b in zip(got, want, strict=True)]
        differ += [
            ((whole(gradients[k]) - g).abs().max() / g.abs().max().clamp(min=1)).item()
            for k, g in want_gradients.items()
        ]
        found[str(dim)] = {
            "error": max(differ),
            "moved": moved,
            "results": [str(r.placements[0]) for r in got],
            "gradients": {k: str(g.placements[0]) for k, g in gradients.items()},
        }
    return found


def main() -> None:
    rank, port = int(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {
        "tensor parallel": tensor_parallel(mesh),
        "tensor parallel, compiled": tensor_parallel(mesh, is_compiled=True),
        "FSDP2": data_parallel(mesh, lambda layer: fully_shard(layer, mesh=mesh) or layer),
        "FSDP2 and tensor parallel": both_parallel(),
        "DDP": data_parallel(mesh, DistributedDataParallel),
        "operators": dict(operators(mesh)),
    }
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
