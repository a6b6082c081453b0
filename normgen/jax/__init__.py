"""normgen's operations for JAX: functions, and any spec as an operator. It imports jax; normgen does not.

y = normgen.jax.rms_norm(x, weight, 1e-6)               # under jit, vmap, grad, checkpoint and shard_map
mine = normgen.jax.operator("my_norm.toml")             # any spec, by name, file, text or as a Spec

On a CUDA device our kernels run, as calls of XLA on its own streams. Elsewhere, and for float64 anywhere, the same
formulas run as operations of jax.numpy, so that code can be tested without a GPU; no speed is promised there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normgen.jax.functional import cross_entropy, function
from normgen.jax.operators import Operator, operator
from normgen.jax.target import registered
from normgen.operators.table import TABLE

__all__ = ["TABLE", "Operator", "cross_entropy", "operator", *TABLE]

globals().update({name: function(name) for name in TABLE})
registered()  # before XLA loads an executable with our calls from its cache


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The functions of `TABLE`, which a type checker does not see."""
