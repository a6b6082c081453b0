"""normgen's operations for torch: functions, modules, and any spec as an operator. It imports torch; normgen does not.

y = normgen.torch.rms_norm(x, (4096,), weight, 1e-6)   # with autograd, under autocast, torch.compile and dispatch modes
norm = normgen.torch.RMSNorm(4096, device="cuda")       # in the place of torch.nn.RMSNorm
mine = normgen.torch.operator("my_norm.toml")           # any spec, by name, file, text or as a Spec
own = normgen.torch.fused(function)                     # a kernel of a function of torch operations, no spec written
report = normgen.torch.replace(model, products=True)    # norms, gated MLPs and loss of a model that is there

On a CUDA device our kernels run. On the CPU, and for float64 anywhere, the same formulas run as torch operations, so
that code can be tested without a GPU; no speed is promised there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normgen.operators.table import TABLE
from normgen.torch.choosing import Site, sites
from normgen.torch.functional import cross_entropy, function
from normgen.torch.linear_loss import LinearCrossEntropy, linear_cross_entropy
from normgen.torch.modules import LayerNorm, RMSNorm, Softmax
from normgen.torch.operators import Operator, operator
from normgen.torch.replacing.gating import GatedMlp
from normgen.torch.replacing.heads import HeadLoss
from normgen.torch.replacing.patching import Report, replace, restore
from normgen.torch.replacing.probing import Norm
from normgen.torch.tracing.comparing import Comparison
from normgen.torch.tracing.fusing import Fused, fused

__all__ = [
    "TABLE",
    "Comparison",
    "Fused",
    "GatedMlp",
    "HeadLoss",
    "LayerNorm",
    "LinearCrossEntropy",
    "Norm",
    "Operator",
    "RMSNorm",
    "Report",
    "Site",
    "Softmax",
    "cross_entropy",
    "fused",
    "linear_cross_entropy",
    "operator",
    "replace",
    "restore",
    "sites",
    *TABLE,
]

globals().update({name: function(name) for name in TABLE})


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The functions of `TABLE`, which a type checker does not see."""
