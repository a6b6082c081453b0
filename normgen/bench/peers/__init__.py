"""Other libraries' kernels, each in a small module that is imported when it is asked for: none is a dependency.

A peer's module offers

    versions() -> {package: version}                what a result must name
    prepare(problem, sets, options) -> call         or raises NotOfferedError

where sets are the bench's buffer sets as torch tensors by name (elem [rows, cols], row [rows], col [cols]) and
call(i) queues one run on set i on torch's current stream and returns the written tensors by name. Statistics that
a library does not return may be missing. What `prepare` does (compilation, conversions) is not timed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from normgen.errors import NotOfferedError, UsageError, did_you_mean
from normgen.problem.problem import Problem

Tensors = Mapping[str, Any]  # torch tensors by name
Call = Callable[[int], Tensors]


@dataclass(frozen=True, kw_only=True)
class Options:
    """compile_mode: of torch.compile."""

    compile_mode: str = "max-autotune-no-cudagraphs"


class Peer(Protocol):
    def versions(self) -> dict[str, str]: ...

    def prepare(self, problem: Problem, sets: Sequence[Tensors], options: Options) -> Call: ...


# name -> (module here, the packages that must be there)
_MODULES = {
    "torch": ("torch_eager", ("torch",)),
    "compile": ("torch_compile", ("torch", "triton")),
    "liger": ("liger", ("torch", "liger_kernel")),
    "quack": ("quack", ("torch", "quack")),
    "flashinfer": ("engines.flashinfer", ("torch", "flashinfer")),
    "vllm": ("engines.vllm", ("torch", "vllm")),
    "transformers": ("transformers", ("torch", "transformers")),
    "helion": ("helion", ("torch", "helion")),
    "triton": ("triton_tutorial", ("torch", "flash_attn")),
}
NAMES: tuple[str, ...] = tuple(_MODULES)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names without repetitions. Raises UsageError for an unknown one."""
    for name in names:
        if name not in _MODULES:
            raise UsageError("unknown peer", received=name, hint=did_you_mean(name, NAMES))
    return tuple(dict.fromkeys(names))


def missing_packages(name: str) -> tuple[str, ...]:
    """The packages this peer needs that are not installed; nothing is imported."""
    return tuple(package for package in _MODULES[name][1] if importlib.util.find_spec(package) is None)


def require_packages(name: str) -> None:
    """Raises NotOfferedError if a package that this peer needs is not installed."""
    missing = missing_packages(name)
    if missing:
        raise NotOfferedError("not installed", received=", ".join(missing))


def load_peer(name: str) -> Peer:
    """Import a peer. Raises NotOfferedError if it is not installed or its import fails."""
    require_packages(name)
    try:
        module = importlib.import_module(f"normgen.bench.peers.{_MODULES[name][0]}")
    except Exception as error:  # a broken installation may raise anything
        raise NotOfferedError("does not import", received=f"{type(error).__name__}: {error}") from error
    return cast(Peer, module)
