"""The layer of an exported folder, with kernels of torch that take what the libraries take: python layered.py FOLDER.

A library refuses rows without a size of their own, and such that lie over one another; these kernels say so too.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch


def _checked(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        shape, strides = tensor.shape, tensor.stride()
        is_apart = shape[0] < 2 or strides[-2] >= shape[-1]
        if tensor.dim() != 2 or (tensor.numel() and not (strides[-1] == 1 and is_apart)):
            raise ValueError(f"received the strides {list(strides)} of {list(shape)}")


def _rstd(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)


def forward(y: Any, rstd: Any, x: Any, weight: Any, eps: float) -> None:
    _checked(y, x)
    rstd.copy_(_rstd(x, eps).squeeze(-1))
    y.copy_(x.double() * _rstd(x, eps) * weight.double())


def backward(dx: Any, dweight: Any, dy: Any, x: Any, weight: Any, _: Any) -> None:
    _checked(dx, dy, x)
    r = _rstd(x, 1e-6)
    inner = dy.double() * weight.double()
    dx.copy_(r * (inner - x.double() * r * (inner * x.double() * r).mean(-1, keepdim=True)))
    dweight.copy_((dy.double() * x.double() * r).sum(0))


def main() -> None:
    init = Path(sys.argv[1]) / "build" / "torch-cpu" / "__init__.py"
    spec = importlib.util.spec_from_file_location("layered_folder", init)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(3)
    made = torch.randn
    losses = {
        "sum": lambda y: y.sum(),
        "summed over rows": lambda y: (y.reshape(-1, y.shape[-1]).sum(0) * made(y.shape[-1])).sum(),
        "weighted": lambda y: (y * made(y.shape)).sum(),
    }
    inputs = {
        "rows": made(4, 64),
        "three sizes": made(2, 3, 64),
        "one row alone": made(64),
        "an expanded row": made(1, 64).expand(4, 64),
        "rows of a slice": made(4, 128)[:, 64:],
        "columns side by side": made(64, 4).t(),
        "other order": made(3, 2, 64).transpose(0, 1),
        "every second element": made(4, 128)[:, ::2],
        "no rows": made(0, 64),
    }
    found: dict[str, Any] = {}
    for is_kernel in (True, False):
        module._kernels = lambda *_, is_kernel=is_kernel: (forward, backward) if is_kernel else None
        for name, given in inputs.items():
            for loss_name, loss in losses.items():
                key = f"{name}, {loss_name}, {'kernels' if is_kernel else 'formula'}"
                results = []
                for run in (module.rms_norm, lambda x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)):
                    x, weight = given.detach().requires_grad_(), torch.linspace(0.5, 1.5, 64).requires_grad_()
                    torch.manual_seed(5)
                    try:
                        y = run(x, weight)
                        loss(y).backward()
                    except ValueError as error:
                        found[key] = str(error)
                        break
                    results.append((y.detach(), x.grad, weight.grad))
                else:
                    pairs = list(zip(*results, strict=True))
                    near = [a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs]
                    traced = module.rms_norm(given.to("meta"), torch.empty(64, device="meta"))
                    found[key] = [*near, results[0][0].stride() == traced.stride()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
