"""Calls that a handle has checked and launched once, repeated by the launcher in C (`launcher.c`) where it was built.

A repeated call compares the layouts of its arrays with those of the checked one and launches. What has not been seen,
and each wrong argument, comes back as NotImplemented: the handle then checks the call as without a launcher.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from normgen.codegen.module import Param, Source
from normgen.cuda.dlpack import contiguous_strides
from normgen.cuda.launch import MAP_CELLS
from normgen.problem.problem import Problem
from normgen.spec.checks import equal_to_whole

_launcher: ModuleType | None
try:
    from normgen.python import _launcher
except ImportError:
    _launcher = None

IS_BUILT = _launcher is not None
_MAP = 1 << 16  # added to the patch of a tensor map's first cell (launch.h)
_EXCHANGE = "__dlpack_c_exchange_api__"
_admitted: dict[type, bool] = {}
Refused = Callable[[int, int], object]


@runtime_checkable
class Launchable(Protocol):
    """One set of arguments of loaded kernels (`normgen.cuda.launch.BoundLaunch`): what a launch of them is made of."""

    def launches(self) -> Iterable[tuple[int, int, int, int, int, tuple[Param, ...]]]:
        """Of each kernel: function, threads, cluster, shared bytes, how it starts, parameters."""

    def packed(self) -> tuple[bytes, bytes]:
        """The arguments as they stand, 8 bytes each, and the grids (int64)."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A call that was checked and launched: by what, with which arguments.

    extents    bytes from the first to behind the last of each array, by name
    is_serial  it has a workspace
    """

    bound: Launchable
    cells: bytes
    grids: bytes
    extents: Mapping[str, int]
    is_serial: bool


class Repeater:
    """The known calls of one handle.

    call       (inputs, named, stream) -> the outputs, or NotImplemented
    is_serial  a known call has a workspace: `call` runs under the handle's lock
    """

    def __init__(self, problem: Problem, *, out: str, context: int, library: str, refused: Refused) -> None:
        assert _launcher is not None, "only where IS_BUILT"
        reads = [t for t in problem.tensors if not t.is_written]
        self._writes = [t for t in problem.passed_tensors if t.is_written]
        self._slots = [t.name for t in (*reads, *self._writes)]
        scalars, labels = dict(problem.spec.scalars), equal_to_whole(problem.spec)
        self._scalars = list(scalars)
        results = [self._slots.index(m) if m in self._slots else -1 for m in problem.results.values()]
        self._launcher = _launcher.Launcher(
            (*self._slots, *self._scalars),
            len(reads),
            self._slots.index(out) if out and "out" not in self._slots else -1,
            bytes(not t.is_const for t in (*reads, *self._writes)),
            array("q", results).tobytes(),
            array("d", scalars.values()).tobytes(),
            bytes(name in labels for name in self._scalars),
            context,
            library,
            refused,
        )
        self.call: Callable[..., Any] = self._launcher.call
        self.forget: Callable[[], None] = self._launcher.forget
        self.is_serial = False
        self._programs: dict[Launchable, int] = {}

    def learn(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        stream: int | None,
        fresh: Mapping[str, Any] | None,
        launched: Launched,
    ) -> bool:
        """Know a call from now on; whether it could be learnt. `fresh`: the outputs that were made for it."""
        outputs = how = None
        if fresh is not None:
            outputs = tuple(fresh.get(t.name) for t in self._writes)
            first = inputs[0] if inputs else named[self._slots[0]]
            how = tuple(None if made is None else _recipe(first, made) for made in outputs)
        program = self._program(launched)
        if program is None:
            return False
        extents = array("q", [launched.extents.get(name, 0) for name in self._slots]).tobytes()
        self.is_serial |= launched.is_serial
        learnt = self._launcher.learn(
            inputs, named, stream, outputs, how, program, launched.cells, launched.grids, extents
        )
        return bool(learnt)

    def _program(self, launched: Launched) -> int | None:
        if launched.bound not in self._programs:
            words = program_words(launched.bound, self._patch)
            try:
                self._programs[launched.bound] = self._launcher.program(launched.is_serial, words)
            except ValueError:  # more kernels or arguments than it has room for
                return None
        return self._programs[launched.bound]

    def _patch(self, param: Param) -> int:
        is_address = param.source in (Source.TENSOR, Source.TENSOR_MAP)
        if is_address and param.key in self._slots:  # else a statistic that this problem leaves out
            return self._slots.index(param.key)
        return -2 - self._scalars.index(param.key) if param.source is Source.SCALAR else -1


def program_words(bound: Launchable, patch: Callable[[Param], int]) -> bytes:
    """Kernels as the launcher reads them; `patch`: what an argument gets at a call."""
    words = array("q")
    for function, threads, cluster, shared, how, params in bound.launches():
        patches = [one for param in params for one in _patches(param, patch(param))]
        words.extend((function, threads, cluster, shared, how, len(patches), *patches))
    return words.tobytes()


def _patches(param: Param, patch: int) -> tuple[int, ...]:
    """Those of an argument's cells: of a tensor map the first is the address."""
    return (patch + _MAP, *[-1] * (MAP_CELLS - 1)) if param.boxes else (patch,)


def repeater(
    problem: Problem, *, out: str, context: int, refused: Refused, library: str = "libcuda.so.1"
) -> Repeater | None:
    """That of a handle whose calls have `context`; None where the launcher was not built or has no room for them.

    refused  raises what a launch that the driver refuses is: (the driver's code, number of the kernel)
    """
    if not IS_BUILT:
        return None
    try:
        return Repeater(problem, out=out, context=context, library=library, refused=refused)
    except (ValueError, OSError):
        return None


def is_readable(given: Any) -> bool:
    """Whether the launcher reads arrays of this object's type; not those of subclasses with a dispatch of their own."""
    kind = type(given)
    if kind not in _admitted:
        capsule, torch = getattr(kind, _EXCHANGE, None), sys.modules.get("torch")
        usual = getattr(getattr(torch, "Tensor", None), "__torch_dispatch__", None)
        is_plain = capsule is not None and getattr(kind, "__torch_dispatch__", None) in (None, usual)
        _admitted[kind] = is_plain and _launcher is not None and _launcher.admit(kind, capsule)
    return _admitted[kind]


def _recipe(first: Any, made: Any) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """How the next array like `made` is had: a function, its first argument, what follows it, and by name.

    Without a first argument it is the first input, of which the recipe then depends. For torch it is the function that
    programs of its compiler allocate with, on the current device, as a known call's is: in two thirds of the time.
    """
    torch: Any = sys.modules.get("torch")
    shape, strides = tuple(made.shape), tuple(made.stride())
    if torch is not None and isinstance(made, torch.Tensor):
        functions = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        strided = getattr(functions, f"_empty_strided_{made.device.type}", None)
        if strided is not None:
            return strided, shape, (strides, made.dtype), {}
    if strides != contiguous_strides(shape):  # scales in columns
        return type(first).new_empty_strided, None, (shape, strides), {"dtype": made.dtype}
    return type(first).new_empty, None, (shape,), {"dtype": made.dtype}
