"""Products as other libraries ask for them: by what stands around `x @ w` a spec, and of that an operator of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import normgen.torch as ng
from tests.peers.place import not_offered

Tensor = torch.Tensor
Maybe = Tensor | None
OFFERED = (torch.float32, torch.float16, torch.bfloat16)

_ANY = 'dtypes = ["f32", "f16", "bf16"]'
_GELU = "0.7978845608028654 * ({z} + 0.044715 * {z} * {z} * {z})"
_SILU = ("{z} * sigmoid({z})", "sigmoid({z}) * (1 + {z} * (1 - sigmoid({z})))")
# Of each activation its value and its slope.
ACTIVATIONS: dict[str | None, tuple[str, str]] = {
    None: ("{z}", "1"),
    "silu": _SILU,
    "silu-tanh": _SILU,
    "silu_of_1.702": (
        "{z} * sigmoid(1.702 * {z})",
        "sigmoid(1.702 * {z}) * (1 + 1.702 * {z} * (1 - sigmoid(1.702 * {z})))",
    ),
    "sigmoid": ("sigmoid({z})", "sigmoid({z}) * (1 - sigmoid({z}))"),
    "relu": ("maximum({z}, 0)", "where({z} > 0, 1, 0)"),
    "relu_sq": ("maximum({z}, 0) * maximum({z}, 0)", "2 * maximum({z}, 0)"),
    "gelu_tanh_approx": (
        f"0.5 * {{z}} * (1 + tanh({_GELU}))",
        f"0.5 * (1 + tanh({_GELU})) + 0.5 * {{z}} * (1 - tanh({_GELU}) * tanh({_GELU}))"
        " * 0.7978845608028654 * (1 + 0.134145 * {z} * {z})",
    ),
    "tanh": ("tanh({z})", "1 - tanh({z}) * tanh({z})"),
}
# The gate's activation, and what it multiplies.
GATED = {
    "swiglu": ("silu", "{u}"),
    "swiglu-tanh": ("silu", "{u}"),
    "swiglu_oai": ("silu_of_1.702", "({u} + 1)"),
    "swiglu_oai-tanh": ("silu_of_1.702", "({u} + 1)"),
    "reglu": ("relu", "{u}"),
    "geglu": ("gelu_tanh_approx", "{u}"),
    "glu": ("sigmoid", "{u}"),
}


class _Functions:
    """Of each spec the operator's function, as an attribute: of a dictionary a compiler keeps what it saw first."""


_functions = _Functions()


@torch._dynamo.assume_constant_result
def _make(text: str, written: tuple[str, ...]) -> bool:
    """Apart, since a compiler is to look at what an operator does, not at how it is made."""
    if not hasattr(_functions, _named(text)):
        setattr(_functions, _named(text), ng.operator(text, returns=written).function)
    return True


def _named(text: str) -> str:
    """A compiler takes no name of an attribute that has a dot, as numbers have."""
    return text.replace(".", "'")


def operator(
    tensors: dict[str, str], formulas: dict[str, str], *, scalars: Sequence[str] = (), saved: str = ""
) -> Callable[..., Any]:
    """Of a spec the operator's function, which returns all that it writes."""
    lines = [*(f"{name} = {{ {entry} }}" for name, entry in tensors.items())]
    lines += ["[scalars]", *(f"{name} = 1" for name in scalars)] if scalars else []
    lines += ["[formulas]", *(f'{name} = "{text}"' for name, text in formulas.items())]
    lines += ["[backward]", f"saved = [{saved}]"] if saved else []
    written = tuple(name for name, entry in tensors.items() if "output" in entry)
    text = "\n".join(['name = "product"', "[tensors]", *lines])
    _make(text, written)
    function: Callable[..., Any] = getattr(_functions, _named(text))
    return function


def _scaled(name: str, factor: float | Tensor, term: str, parts: dict[str, Any]) -> str:
    """factor * term: a number is one of the call, a tensor is read where it lies."""
    parts[name] = factor.float() if isinstance(factor, Tensor) else float(factor)
    return f"{name} * {term}"


def _matrix(w: Tensor) -> tuple[Tensor, str]:
    """The matrix as it lies, [inner, cols] or [cols, inner], one for each batch where there are three sizes."""
    is_turned = w.stride(-1) != 1 and w.stride(-2) == 1
    axes = '"cols", "inner"' if is_turned else '"inner", "cols"'
    role = (
        f'role = "batch_parameter", axes = ["batches", {axes}]'
        if w.ndim == 3
        else f'role = "parameter", axes = [{axes}]'
    )
    return w.mT if is_turned else w, f'{role}, follows = "x"'


def offered(x: Tensor, *matrices: Tensor) -> None:
    if any(t.dtype not in OFFERED or t.dtype != x.dtype for t in matrices):
        not_offered("products of matrices of one of f32, f16 and bf16")
    if any(0 in t.shape[-2:] for t in matrices):
        not_offered("a product has columns and terms: sizes of 0 are refused, but of rows")


_READS = {"c": "input", "bias": "parameter", "lift": "row_input", "factor": "row_input"}


def product(
    x: Tensor,
    w: Tensor,
    c: Maybe = None,
    *,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    bias: Maybe = None,
    lift: Maybe = None,
    factor: Maybe = None,
    activation: str | None = None,
    with_sum: bool = False,
    dtype: Any = None,
) -> Any:
    """activation((alpha * x @ w + beta * c + bias + lift) * factor); `with_sum`: what is activated too, before it.

    w       [inner, cols] or [batches, inner, cols], in either order of memory
    c       [.., cols], bias [cols], lift and factor [..]: of each row
    """
    offered(x, w)
    own, entry = _matrix(w)
    parts: dict[str, Any] = {"x": x, "w": own, "c": c, "bias": bias, "lift": lift, "factor": factor}
    is_plain = c is None and not isinstance(alpha, Tensor) and alpha == 1
    terms = ["x @ w" if is_plain else _scaled("alpha", alpha, "(x @ w)", parts)]
    terms += [_scaled("beta", beta, "c", parts)] if c is not None else []
    terms += [name for name in ("bias", "lift") if parts[name] is not None]
    given = {name: value for name, value in parts.items() if value is not None}
    z = " + ".join(terms)
    z = f"({z}) * factor" if factor is not None else z
    tensors = {"x": f'role = "input", axes = ["rows", "inner"], {_ANY}', "w": entry}
    tensors |= {name: f'role = "{role}", {_ANY}' for name, role in _READS.items() if name in given}
    tensors |= {name: 'role = "scalar_input"' for name in ("alpha", "beta") if isinstance(given.get(name), Tensor)}
    written = 'role = "output", follows = "x"'
    value = ACTIVATIONS[activation][0].format(z="z")
    formulas = {"z": z, "y": value} if with_sum or activation else {"y": z}
    tensors |= {"z": written, "y": written} if with_sum else {"y": written}
    numbers = [name for name in ("alpha", "beta") if isinstance(given.get(name), float)]
    function = operator(tensors, formulas, scalars=numbers, saved='"z"' if with_sum else "")
    return function(**given, dtype=x.dtype if dtype is None else dtype, opaque=True)


def gated_product(
    x: Tensor,
    w: tuple[Tensor, Tensor],
    bias: tuple[Tensor, Tensor] | None = None,
    *,
    factor: Maybe = None,
    activation: str,
    with_sums: bool = False,
) -> Any:
    """act(gate) * up of gate, up = (x @ w + bias) * factor; `with_sums`: (gate, up, y)."""
    offered(x, *w)
    (w_gate, entry), (w_up, entry_up) = (_matrix(each) for each in w)
    act, other = GATED[activation]
    given = {"x": x, "w_gate": w_gate, "w_up": w_up}
    tensors = {"x": f'role = "input", axes = ["rows", "inner"], {_ANY}', "w_gate": entry, "w_up": entry_up}
    behind = ""
    if bias is not None:
        given |= {"b_gate": bias[0], "b_up": bias[1]}
        tensors |= dict.fromkeys(("b_gate", "b_up"), f'role = "parameter", {_ANY}')
    if factor is not None:
        given["factor"], tensors["factor"], behind = factor, f'role = "row_input", {_ANY}', " * factor"
    sums = {name: f"(x @ w_{name}{f' + b_{name}' if bias is not None else ''}){behind}" for name in ("gate", "up")}
    written = 'role = "output", follows = "x"'
    tensors |= dict.fromkeys(("gate", "up", "y") if with_sums else ("y",), written)
    formulas = {**sums, "y": f"{ACTIVATIONS[act][0].format(z='gate')} * {other.format(u='up')}"}
    function = operator(tensors, formulas, saved='"gate", "up"' if with_sums else "")
    return function(**given, dtype=x.dtype, opaque=True)


def product_behind(
    dy: Tensor,
    w: Tensor,
    z: tuple[Tensor, ...],
    activation: str | None,
    *,
    scale: Maybe = None,
    with_total: bool = False,
) -> list[Tensor]:
    """What an activation does to its gradient dy @ w: (dz, y), or (dgate, dup, y) of z = (gate, up).

    scale       [..]: a factor of each row's results
    with_total  and the sum of y * (dy @ w) over each row
    """
    offered(dy, w)
    own, entry = _matrix(w)
    given = {"x": dy, "w": own, **dict(zip(("z", "u"), z, strict=False))}
    tensors = {"x": f'role = "input", axes = ["rows", "inner"], {_ANY}', "w": entry}
    tensors |= dict.fromkeys(("z", "u")[: len(z)], f'role = "input", {_ANY}')
    act, other = GATED[activation] if len(z) == 2 and activation is not None else (activation, "1")
    value, slope = (text.format(z="z") for text in ACTIVATIONS[act])
    other = other.format(u="u")
    formulas = {"d": "x @ w", "value": value, "back": f"d * ({slope}) * {other}"}
    formulas |= {"back_up": "d * value"} if len(z) == 2 else {}
    formulas["y"] = f"value * {other}"
    results = [name for name in ("back", "back_up", "y") if name in formulas]
    if with_total:
        formulas["total"] = f"sum(value * {other} * d)"
    if scale is not None:
        given["scale"], tensors["scale"] = scale, 'role = "row_input"'
        formulas |= {name: f"({formulas[name]}) * scale" for name in results}
    tensors |= dict.fromkeys(results, 'role = "output", follows = "x"')
    tensors |= {"total": 'role = "row_output"'} if with_total else {}
    return list(operator(tensors, formulas)(**given, dtype=dy.dtype, opaque=True))
