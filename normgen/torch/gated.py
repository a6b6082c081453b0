"""The two products of a gated MLP and its gate in one kernel, which reads the rows once: inference and training.

The spec of a gate, such as `swiglu`, becomes one of rows and two weights in the order of torch's Linear. For a backward
pass the kernel stores both products, which are the gate's arguments: the gate's own kernel finds their gradients, and
torch's products those of rows and weights. Found again instead, they would cost two products more, a third of the
forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from normgen.spec.reader import load, parse
from normgen.torch.calls import autocast_dtype
from normgen.torch.choosing import note
from normgen.torch.functional import function
from normgen.torch.library import no_second, raising
from normgen.torch.operators import Operator

Tensor = Any

GATES = ("swiglu", "geglu_tanh", "geglu")  # functions of (gate, up)
_TEXT = """
name = "{name}"
summary = "{summary} Both are products of the same rows."
[tensors]
x = {{ role = "input", axes = ["rows", "inner"], dtypes = ["f32", "f16", "bf16"] }}
w_gate = {{ role = "parameter", axes = ["cols", "inner"], follows = "x" }}
w_up = {{ role = "parameter", axes = ["cols", "inner"], follows = "x" }}
gate = {{ role = "output", optional = true, follows = "x" }}
up = {{ role = "output", optional = true, follows = "x" }}
y = {{ role = "output", follows = "x" }}
[formulas]
gate = "x @ w_gate"
up = "x @ w_up"
y = "{formula}"
"""


class GatedProducts:
    """y = gate(x @ w_gate.T, x @ w_up.T) of x [.., inner] and weights [cols, inner], by one of GATES."""

    def __init__(self, gate: str) -> None:
        own = load(gate)
        self.name = f"{gate}_of_products"
        text = _TEXT.format(name=self.name, summary=own.summary, formula=own.formulas[-1].text)
        self._plain = Operator(parse(text))
        self._saving = Operator(parse(text), returns=("y", "gate", "up"))
        self._gate = function(gate).operator.operators  # type: ignore[attr-defined]
        self._forward_op = torch.library.custom_op(
            f"normgen::{self.name}",
            self._forward,
            mutates_args=(),
            schema="(Tensor x, Tensor w_gate, Tensor w_up) -> (Tensor, Tensor, Tensor)",
        )
        self._forward_op.register_fake(_forward_like)
        self._forward_op.register_autograd(self._gradient, setup_context=_setup)
        self._backward_op = torch.library.custom_op(
            f"normgen::{self.name}_backward",
            self._backward,
            mutates_args=(),
            schema=(
                "(Tensor dy, Tensor x, Tensor w_gate, Tensor w_up, Tensor gate, Tensor up, "
                "bool of_x, bool of_w_gate, bool of_w_up) -> Tensor[]"
            ),
        )
        self._backward_op.register_fake(_backward_like)
        self._backward_op.register_autograd(raising(no_second(self.name)))

    def __call__(self, x: Tensor, w_gate: Tensor, w_up: Tensor, where: str = "") -> Tensor:
        """`where`: as in `Site`. Under autocast all three are cast first, as torch's linear casts them."""
        device = x.device.type
        if (dtype := autocast_dtype(device)) is not None:
            with torch.autocast(device, enabled=False):
                x, w_gate, w_up = (t if t.dtype == torch.float64 else t.to(dtype) for t in (x, w_gate, w_up))
                return self(x, w_gate, w_up, where)
        is_traced = torch.compiler.is_dynamo_compiling()
        if torch.is_grad_enabled() and (x.requires_grad or w_gate.requires_grad or w_up.requires_grad):
            if is_traced:
                _note(where, self.name)
            y, *_ = self._forward_op(x, w_gate, w_up)
            return y
        if is_traced:
            return self._plain.traced(x, w_gate, w_up, None, True, where)
        return self._plain.function(x, w_gate, w_up)

    def _forward(self, x: Tensor, w_gate: Tensor, w_up: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._saving.function(x, w_gate, w_up))

    def _backward(
        self,
        dy: Tensor,
        x: Tensor,
        w_gate: Tensor,
        w_up: Tensor,
        gate: Tensor,
        up: Tensor,
        of_x: bool,
        of_w_gate: bool,
        of_w_up: bool,
    ) -> list[Tensor]:
        given = {"dy": dy, "gate": gate, "up": up}
        uses = self._gate.kept((True, True), (gate, up), gate.dtype).uses
        found = self._gate.calls.backward(uses, [given[use.name] for use in uses.reads], ())
        dgate, dup = (t.reshape(-1, t.shape[-1]) for t in found)
        gradients = []
        if of_x:
            gradients.append((dgate @ w_gate).addmm_(dup, w_up).view(x.shape))
        rows = x.reshape(-1, x.shape[-1])
        return [*gradients, *(d.t() @ rows for d, asked in ((dgate, of_w_gate), (dup, of_w_up)) if asked)]

    def _gradient(self, ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Products are not returned to the caller, and have no gradient of their own."""
        asked = ctx.needs_input_grad
        if dy is None:
            return (None,) * len(asked)
        found = iter(self._backward_op(dy.contiguous(), *ctx.saved_tensors, *asked))
        return tuple(next(found) if one else None for one in asked)


def _forward_like(x: Tensor, w_gate: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(*x.shape[:-1], w_gate.shape[0]) for _ in range(3))


def _backward_like(_: Tensor, *rest: Any) -> list[Tensor]:
    *tensors, of_x, of_w_gate, of_w_up = rest
    asked = (of_x, of_w_gate, of_w_up)
    return [t.new_empty(t.shape) for t, one in zip(tensors, asked, strict=False) if one]


def _setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])
    ctx.set_materialize_grads(False)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note(where: str, name: str) -> None:
    note(where, name, kernel=True, asked=False)


@functools.cache
def gated_products(gate: str) -> GatedProducts:
    """One for each of GATES: an operator of torch is registered once a process."""
    return GatedProducts(gate)
