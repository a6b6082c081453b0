"""Training with our operators: a residual added and normalised in one kernel, a gated MLP, logits that are not stored.

python examples/training_step.py

Two models with the same weights, one of torch's operations, one of ours, take the same steps; their losses must agree.
The norms stand where a model spends them: h = x + residual and its RMSNorm are one kernel, whose gradient is one too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import normgen.torch

WIDTH, HIDDEN, WORDS, LAYERS, STEPS = 64, 160, 256, 2, 12


class Plain:
    """The operations as torch has them."""

    @staticmethod
    def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return nn.functional.rms_norm(h, h.shape[-1:], weight, 1e-6), h

    @staticmethod
    def gate(gate: Tensor, up: Tensor) -> Tensor:
        return nn.functional.silu(gate) * up

    @staticmethod
    def loss(rows: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(rows @ head.T, labels, label_smoothing=0.1)


class Ours:
    """The same by kernels."""

    @staticmethod
    def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, h = normgen.torch.add_rms_norm(x, residual, weight, eps=1e-6)
        return y, h

    @staticmethod
    def gate(gate: Tensor, up: Tensor) -> Tensor:
        return normgen.torch.swiglu(gate, up)

    @staticmethod
    def loss(rows: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        return normgen.torch.linear_cross_entropy(rows, head, labels, label_smoothing=0.1)


class Model(nn.Module):
    """MLP blocks with residuals, over an embedding."""

    def __init__(self, kind: type[Plain] | type[Ours]) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ParameterList(torch.ones(WIDTH) for _ in range(LAYERS))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 2 * HIDDEN) for _ in range(LAYERS))
        self.downs = nn.ModuleList(nn.Linear(HIDDEN, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        x = torch.zeros_like(h)
        for norm, gate, down in zip(self.norms, self.gates, self.downs, strict=True):
            y, h = self.kind.add_norm(x, h, norm)
            x = down(self.kind.gate(*gate(y).chunk(2, dim=-1)))
        return x + h


def train(kind: type[Plain] | type[Ours], device: str) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = Model(kind).to(device)
    tokens = torch.randint(0, WORDS, (4, 33), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        rows = model(tokens[:, :-1])
        loss = kind.loss(rows.flatten(0, 1), model.head.weight, tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    theirs, ours = train(Plain, device), train(Ours, device)
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        print(f"step {step:2}: torch {a:.5f}, ours {b:.5f}")
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert ours[-1] < 0.8 * ours[0], "it learns"


if __name__ == "__main__":
    main()
