"""The operations that ship, by the names that frameworks and their users give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a spec is offered as a function.

    takes       the spec's names of the first parameters -> what they are called
    returns     as in `operator`
    """

    spec: str
    takes: Mapping[str, str] | tuple[str, ...] = ()
    returns: tuple[str, ...] | None = None
    defaults: Mapping[str, float] | None = None

    @property
    def called(self) -> Mapping[str, str]:
        """The names of the first parameters, in order."""
        return self.takes if isinstance(self.takes, Mapping) else {taken: taken for taken in self.takes}


_FLOAT32_EPS = 2.0**-23
_SUM = ("x", "residual", "weight")
TABLE: dict[str, Row] = {
    "rms_norm": Row(spec="rmsnorm", takes={"x": "input"}, defaults={"eps": _FLOAT32_EPS}),
    "layer_norm": Row(spec="layernorm", takes={"x": "input"}),
    "softmax": Row(spec="softmax", takes={"x": "input"}),
    "log_softmax": Row(spec="log_softmax", takes={"x": "input"}),
    "masked_softmax": Row(spec="masked_softmax", takes={"x": "input"}),
    "safe_masked_softmax": Row(spec="safe_masked_softmax", takes={"x": "input"}),
    "causal_softmax": Row(spec="causal_softmax", takes={"x": "input"}),
    "softmax_sink": Row(spec="softmax_sink", takes={"x": "input"}),
    "add_rms_norm": Row(spec="add_rmsnorm", returns=("y", "h")),
    "add_layer_norm": Row(spec="add_layernorm", takes=(*_SUM, "bias"), returns=("y", "h")),
    "dropout_add_rms_norm": Row(spec="dropout_add_rmsnorm", returns=("y", "h")),
    "llama_rms_norm": Row(spec="llama_rmsnorm", takes=("x", "weight")),
    "gemma_rms_norm": Row(spec="gemma_rmsnorm", takes=("x", "weight")),
    "add_llama_rms_norm": Row(spec="llama_rmsnorm", takes=_SUM, returns=("y", "h")),
    "add_gemma_rms_norm": Row(spec="gemma_rmsnorm", takes=_SUM, returns=("y", "h")),
    "rms_norm_gate": Row(spec="rmsnorm_gate"),
    "gate_rms_norm": Row(spec="gate_rmsnorm"),
    "ada_layer_norm": Row(spec="adaln"),
    "dyt": Row(spec="dyt"),
    "swiglu": Row(spec="swiglu"),
    "swiglu_clamped": Row(spec="swiglu_clamped"),
    "geglu": Row(spec="geglu"),
    "geglu_tanh": Row(spec="geglu_tanh"),
}
REDUCTIONS = ("mean", "sum", "none")  # of the losses of rows
