"""Any problem's program in torch, in float32 as our kernels compute it: for torch.compile, which makes kernels of it.

Run eagerly it would be one kernel an operation, which nobody writes: `torch_eager` has the operations by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from normgen.bench.peers import NotOfferedError, Tensors
from normgen.bench.peers.common import Function
from normgen.bench.peers.tape import replayed
from normgen.dtypes import DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.source import written_program

Tensor = Any


def _truth(holds: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: holds(*args).float()


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "rsqrt", "abs", "sigmoid", "tanh", "erf")},
    **{name: getattr(torch, name) for name in ("sin", "cos", "floor", "ceil", "round", "minimum", "maximum", "sign")},
    "divide": torch.div,
    "constant": lambda x: x,
    "%": torch.fmod,
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "<": _truth(torch.lt),
    "<=": _truth(torch.le),
    ">": _truth(torch.gt),
    ">=": _truth(torch.ge),
    "==": _truth(torch.eq),
    "!=": _truth(torch.ne),
    "and": _truth(lambda a, b: (a != 0) & (b != 0)),
    "or": _truth(lambda a, b: (a != 0) | (b != 0)),
    "not": _truth(lambda a: a == 0),
}


@dataclass(frozen=True, kw_only=True)
class TorchFloat32:
    """float32 on rows of `cols` elements: elem [rows, cols], row [rows, 1], col [1, cols], scalar []."""

    cols: int
    device: Any

    def constant(self, value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float32, device=self.device)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def subtract(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def power(self, base: Tensor, exponent: float) -> Tensor:
        return base**exponent

    def call(self, name: str, *args: Tensor) -> Tensor:
        return _FUNCTIONS[name](*args)

    def cast(self, a: Tensor, dtype: DType) -> Tensor:
        return stored(a, dtype).float()

    def in_any_order(self, above: list[Tensor], below: list[Tensor], found: Tensor) -> Tensor:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: Tensor, group: int = 0) -> Tensor:
        """Over the row; over groups of its columns, each of which then has its group's value."""
        row = arg.expand(*arg.shape[:-1], self.cols) if arg.ndim else arg.expand(1, self.cols)
        if group:
            groups = row.reshape(row.shape[0], -1, group)
            return _reduced(name, groups).expand(groups.shape).reshape(row.shape)
        return _reduced(name, row)

    def sum_rows(self, arg: Tensor, row: Tensor | None = None) -> Tensor:
        """Over all rows; `row` has their numbers, [rows, 1]: a value of no row is summed as often."""
        every = arg if row is None else arg.expand(row.shape[0], arg.shape[-1] if arg.ndim else 1)
        return every.sum(0, keepdim=True)


def _reduced(name: str, x: Tensor) -> Tensor:
    if name in ("sum", "mean"):
        return getattr(x, name)(-1, keepdim=True)
    if name not in ("min", "max", "absmax"):
        raise NotOfferedError(f"no {name} of a row")
    return x.amin(-1, keepdim=True) if name == "min" else (x.abs() if name == "absmax" else x).amax(-1, keepdim=True)


def stored(value: Tensor, dtype: DType) -> Tensor:
    """As a kernel of ours stores it: rounded as the dtype rounds, and saturated where it saturates."""
    if dtype.rounds_up:
        mantissa, exponent = value.clamp(dtype.least, dtype.largest).frexp()
        power = torch.ldexp(torch.ones_like(value), exponent - (mantissa == 0.5).int())
        value = torch.where(value >= 0, power, torch.nan)
    elif dtype.saturates:  # torch's own cast to e4m3 gives NaN beyond the largest number
        value = value.round() if dtype.is_integer else value
        value = value.nan_to_num(nan=0.0) if dtype.is_integer else value
        value = value.clamp(dtype.least, dtype.largest)
    return value.to(getattr(torch, dtype.torch))


def function_of(problem: Problem) -> Function:
    """The problem's program as a function of a set of tensors, which a compiler can trace.

    Raises NotOfferedError where it draws random numbers: torch's are others.
    """
    if written_program(problem).randoms:
        raise NotOfferedError("no random numbers of this kind")
    reads = [t for t in problem.tensors if not t.is_written]
    writes = [t for t in problem.tensors if t.is_written]
    # Before any tracing, which cannot follow the algebra.
    made = {device: replayed(problem, TorchFloat32(cols=problem.cols, device=device)) for device in ("cpu", "cuda")}

    def run(t: Tensors) -> Tensors:
        device = t[reads[0].name].device
        given = {use.name: _read(use, t[use.name], problem) for use in reads}
        given["row"] = torch.arange(problem.rows, device=device).unsqueeze(1)
        given["col"] = torch.arange(problem.cols, device=device).unsqueeze(0)
        values = made[device.type](given)
        return {use.name: _written(use, values[use.name], problem) for use in writes}

    return run


def _read(use: TensorUse, tensor: Tensor, problem: Problem) -> Tensor:
    """In the shape of its kind; whole numbers stay whole, so that labels are compared exactly."""
    value = tensor if use.dtype.is_integer else tensor.float()
    if use.kind.is_elem:
        return value
    if use.kind.by_batch:
        return value.repeat_interleave(problem.rows_per_batch, 0)[: problem.rows]
    return value.reshape(-1, 1) if use.kind.by_row else value.reshape(1, -1) if use.kind.by_col else value.reshape(())


def _written(use: TensorUse, value: Tensor, problem: Problem) -> Tensor:
    shape = use.kind.shape(problem.rows, problem.cols, use.group, problem.batches)
    if use.group:  # each column has its group's value
        value = value[:, :: use.group]
    elif not shape:
        value = value.reshape(shape)
    elif not use.kind.is_elem:
        value = value.expand(problem.rows, 1).squeeze(1) if use.kind.by_row else value.reshape(-1)
    return stored(value.expand(shape), use.dtype).contiguous()
