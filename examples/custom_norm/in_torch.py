"""A norm that no library has, in torch, from the ten lines of power_norm.toml: an operator, a module, a gradient.

python examples/custom_norm/in_torch.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import normgen.torch

power_norm = normgen.torch.operator(Path(__file__).parent / "power_norm.toml")


class PowerNorm(nn.Module):
    """y = x / (mean(|x|^3) + eps)^(1/3) * weight, over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return power_norm(x, self.weight, eps=self.eps)


def by_hand(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.abs().pow(3).mean(-1, keepdim=True) + eps) ** (-1 / 3) * weight


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    norm = PowerNorm(96).to(device)
    nn.init.normal_(norm.weight)
    x = torch.randn(4, 37, 96, device=device, requires_grad=True)
    y = norm(x)
    cotangent = torch.randn_like(y)
    dx, dweight = torch.autograd.grad(y, (x, norm.weight), cotangent)

    wide, wide_weight = (one.detach().double().requires_grad_() for one in (x, norm.weight))
    exact = by_hand(wide, wide_weight)
    exact_dx, exact_dweight = torch.autograd.grad(exact, (wide, wide_weight), cotangent.double())
    for name, ours, want in (("y", y, exact), ("dx", dx, exact_dx), ("dweight", dweight, exact_dweight)):
        error = (ours.double() - want).abs().max() / want.abs().max()
        print(f"{name}: largest error {error:.1e} of the largest value")
        torch.testing.assert_close(ours.double(), want, rtol=1e-4, atol=1e-5 * want.abs().max().item())

    torch.compiler.reset()
    compiled = torch.compile(norm, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y)


if __name__ == "__main__":
    main()
