"""A product of matrices between row-wise code, from normed_linear.toml: one operator in the place of three modules.

python examples/product/in_torch.py

The norm in front and the activation behind are part of the product's kernel: what stands between them is never stored.
On the CPU the same formulas run as torch's operations.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import normgen.torch

normed_linear = normgen.torch.operator(Path(__file__).parent / "normed_linear.toml")


class NormedLinear(nn.Module):
    """y = silu(rms_norm(x) @ w.T + bias), over the last dimension; parameters and state as of the modules `layers`."""

    def __init__(self, width: int, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=eps)
        self.linear = nn.Linear(width, features)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normed_linear(x, self.norm.weight, self.linear.weight, self.linear.bias, eps=self.eps)

    def layers(self) -> nn.Sequential:
        """The same parameters in torch's modules."""
        return nn.Sequential(self.norm, self.linear, nn.SiLU())


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    ours = NormedLinear(96, 160).to(device)
    nn.init.normal_(ours.norm.weight)
    x = torch.randn(4, 37, 96, device=device, requires_grad=True)
    y = ours(x)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, *ours.parameters()), cotangent))

    exact = NormedLinear(96, 160).to(device, torch.float64)
    exact.load_state_dict(ours.state_dict())
    wide = x.detach().double().requires_grad_()
    exact_y = exact.layers()(wide)
    wanted = (exact_y, *torch.autograd.grad(exact_y, (wide, *exact.parameters()), cotangent.double()))
    names = ("y", "dx", *(f"d{name}" for name, _ in ours.named_parameters()))
    for name, got, want in zip(names, found, wanted, strict=True):
        error = (got.double() - want).abs().max() / want.abs().max()
        print(f"{name}: largest error {error:.1e} of the largest value")
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5 * want.abs().max().item())

    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y)

    steps = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    aim, losses = torch.randn_like(y), []
    for _ in range(12):
        loss = nn.functional.mse_loss(ours(x.detach()), aim)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    print(f"12 steps: loss {losses[0]:.3f} before, {losses[-1]:.3f} after")
    assert losses[-1] < 0.9 * losses[0], "it learns"


if __name__ == "__main__":
    main()
