"""What stands in the place of a module's forward, and what has to stay as it was for that."""

from __future__ import annotations

import inspect
import types
from threading import get_ident
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

Module = Any

_TENSORS = (torch.nn.Parameter, torch.Tensor)
_LINEAR = torch.nn.Linear.forward
PLAIN = (type(None), bool, int, float, str, tuple, torch.Size, torch.dtype)  # values that are compared as such


class Patched:
    """In the place of a module's forward, until `restore`; `original` is that of its class.

    opened  while what it is a part of runs in this thread, and lets it give what is pending: what that is read by
    """

    def __init__(self, module: Module, *, name: str) -> None:
        self.module, self.name, self.kind, self.plain = module, name, type(module), type(module).forward
        self.opened_in: dict[int, Any] = {}  # by threads: another one that calls it gets tensors

    def __getstate__(self) -> dict[str, Any]:
        """With what the class's forward says, if that is `plain` still: it need not be a function to pickle."""
        return {**self.__dict__, "plain": _said(self.plain) if self.is_as_its_class() else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        now = state["kind"].forward  # which may be that of another release
        self.__dict__.update(state, plain=now if state["plain"] == _said(now) else None)

    @property
    def opened(self) -> Any:
        return self.opened_in.get(_thread())

    def open(self, reader: Any) -> None:
        self.opened_in[_thread()] = reader

    def close(self) -> None:
        self.opened_in.pop(_thread(), None)

    @property
    def __signature__(self) -> inspect.Signature:
        """What trainers ask to know which columns of a data set a model takes."""
        return inspect.signature(types.MethodType(type(self.module).forward, self.module))

    def original(self, *args: Any, **named: Any) -> Any:
        """Of the class that the module has now, as that has it now."""
        return type(self.module).forward(self.module, *args, **named)

    def is_as_its_class(self) -> bool:
        return type(self.module).forward is self.plain


def _thread() -> int:
    """A compiler traces one call from its begin to its end, and knows no threads."""
    return 0 if torch.compiler.is_dynamo_compiling() else get_ident()


def is_patched(module: Module) -> bool:
    return isinstance(module.__dict__.get("forward"), Patched)


def child_of(module: Module, name: str, kind: type) -> Module:
    """Its child; None where an attribute of the name hides it: its own, or one of another class than it had.

    kind  the class that the module had when the child was found
    """
    own = module.__dict__
    if name in own or (type(module) is not kind and hasattr(type(module), name)):
        return None
    return own["_modules"].get(name)


def is_bare(module: Module) -> bool:
    """Whether a call of it is its class's forward and no more: no hooks, no forward of its own that is not ours."""
    return isinstance(module.forward, types.MethodType | Patched) and not has_hooks(module)


def has_hooks(module: Module) -> bool:
    return bool(
        module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks
    )


def is_plain_linear(module: Module, *, biased: bool = False) -> bool:
    """Whether a call of it is the product with its weight, of torch's own tensors: no adapter or shard, no bias.

    biased  it may have one
    """
    if type(module) is not torch.nn.Linear or torch.nn.Linear.forward is not _LINEAR or not is_bare(module):
        return False
    own, known = module.__dict__, module._parameters  # nn.Module's attributes take ten times as long
    if "weight" in own or "bias" in own or "bias" not in known:
        return False
    weight, bias = known.get("weight"), known["bias"]
    return type(weight) in _TENSORS and weight.ndim == 2 and (bias is None or (biased and _is_bias(bias, weight)))


def _is_bias(bias: Any, weight: Any) -> bool:
    """Not one that torch spreads."""
    return type(bias) in _TENSORS and bias.shape == weight.shape[:1]


def is_looked_on() -> bool:
    """Whether somebody sees torch's operations one by one: global hooks, modes, transforms, tracers, tangents."""
    if torch.compiler.is_compiling():
        return bool(torch.compiler.is_exporting())
    return bool(
        torch.nn.modules.module._has_any_global_hook()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.jit.is_tracing()
        or (torch._C._len_torch_function_stack() and _has_function_modes())
    )


def _has_function_modes() -> bool:
    """Without those that say where new tensors lie."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(type(mode) is not DeviceContext for mode in modes)


def _said(function: Any) -> tuple[Any, ...]:
    """The code of a function; of what has none nothing."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, types.CodeType):
        return ()
    within = (_said(value) if isinstance(value, types.CodeType) else value for value in code.co_consts)
    return code.co_code, code.co_names, *(value for value in within if type(value) in PLAIN)


def is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) in PLAIN and type(other) in PLAIN and bool(one == other))
