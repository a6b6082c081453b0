"""What DTensor is told of our operators: `operators.sharing` says how a call may be shared out.

DTensor takes the way that its arguments are nearest to, and gathers what lies otherwise. torch has no stable interface
for operators that return a list; this is written for torch 2.11 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normgen.errors import UsageError
from normgen.operators.sharing import PARTIAL, REPLICATED, Share, shares
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse

Asked = tuple[Problem, Sequence[TensorUse], Sequence[TensorUse], Mapping[str, Any], Sequence[str]]


def is_loaded() -> bool:
    """Whether anybody has imported DTensor: none of its tensors is there before."""
    return "torch.distributed.tensor" in sys.modules


def has_shared(tensors: Sequence[Any]) -> bool:
    """Whether one of them is a DTensor."""
    if not is_loaded():
        return False
    kind = sys.modules["torch.distributed.tensor"].DTensor
    return any(isinstance(tensor, kind) for tensor in tensors)


def register(op: Any, asked: Callable[[Sequence[Any]], Asked], *, is_list: bool = False) -> None:
    """Tell DTensor how calls of an operator are shared out.

    asked    (the operator's arguments, tensors as shapes and dtypes) -> problem, what it reads and writes, the tensors
             that are there by name, and the names of the operator's tensor arguments that are no None, in order
    is_list  the operator returns a list of tensors

    Raises UsageError where this torch has another DTensor.
    """
    try:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
        from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
        from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

        add = DTensor._op_dispatcher.sharding_propagator.register_op_strategy
    except (AttributeError, ImportError) as error:
        rule = "sharded tensors need a DTensor of torch 2.11 to 2.13"
        raise UsageError(rule, received=str(error), hint="call the operator on local tensors") from None

    def placed(share: Share) -> Any:
        return Replicate() if share == REPLICATED else Partial() if share == PARTIAL else Shard(share)

    def strategy(schema: Any) -> Any:
        given = [arg.tensor_meta if isinstance(arg, OpStrategy) else arg for arg in schema.args_schema]
        problem, reads, writes, there, order = asked(given)
        shapes = {name: tuple(meta.shape) for name, meta in there.items()}
        ways = [
            [*(placed(stored[use.name]) for use in writes), *(placed(read.get(name, REPLICATED)) for name in order)]
            for read, stored in shares(problem, reads, writes, shapes)
        ]
        found = expand_to_full_mesh_op_strategy(schema.get_mesh_from_args(), schema, ways, input_index=len(writes))
        for one in found.strategies if is_list else ():
            if not isinstance(one.output_specs, tuple):
                one.output_specs = (one.output_specs,)
        return found

    # All arguments decide: which tensors are there, and a backward pass's form.
    add(op, strategy, RuntimeSchemaInfo(static_argnum=0, needs_pytree=True))
