"""What stands in the place of a library, and how torch is told that there is no GPU."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch
from torch.overrides import TorchFunctionMode

calls: Counter[str] = Counter()  # of each of our functions, by the name that the library gives it


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library whose own tests are run.

    files           of its checkout, with tests
    modules         name of a module that they import -> what it has
    left_out        pattern of a test's name -> why it is not run: what we do not offer
    has_conftest    whether its conftest.py is read: false where that serves the library's own machinery alone
    only            pattern of the names of the tests that are run, where files have others too
    mode            what takes the place of torch's own functions
    calls_each      whether a test shows nothing that calls nothing of ours: it is then left out
    """

    files: Sequence[str]
    modules: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str] = field(default_factory=dict, hash=False)
    has_conftest: bool = True
    only: str = ""
    mode: TorchFunctionMode | None = None
    calls_each: bool = False

    def put_in_place(self) -> None:
        """From here on `import` finds our modules by the library's names."""
        for name, names in self.modules.items():
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                path = ".".join(parts[:depth])
                if path not in sys.modules or not getattr(sys.modules[path], "is_ours", False):
                    sys.modules[path] = _package(path)
                    if depth > 1:
                        setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[path])
            vars(sys.modules[name]).update(names)
        if self.mode is not None:
            self.mode.__enter__()

    def why_left_out(self, test: str) -> str | None:
        return next((reason for pattern, reason in self.left_out.items() if re.search(pattern, test)), None)


def _package(path: str) -> ModuleType:
    made = ModuleType(path)
    made.__path__ = []
    vars(made)["is_ours"] = True
    return made


def ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose calls are counted: a run in which none was called shows nothing."""

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            calls[function.__qualname__] += 1
        return function(*args, **kwargs)

    return counted


def not_offered(reason: str) -> NoReturn:
    """Ends the test as skipped: what it asks for is not ours to do."""
    pytest.skip(f"not offered: {reason}")


def left_out(reason: str) -> Callable[..., NoReturn]:
    """A function that we do not have: a test that calls it is skipped."""
    return lambda *_, **__: not_offered(reason)


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on a GPU are made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.cuda or (
            function is torch.Tensor.to and any(isinstance(a, int) for a in args[1:2])
        ):
            return args[0]
        given = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return function(*(_moved(value) for value in args), **given)


def _moved(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def without_gpu() -> None:
    """Tests that ask torch for a GPU are told of one and get the CPU."""
    OnCpu().__enter__()
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.mem_get_info = lambda *_: (0, 0)
    torch.cuda.current_device = lambda: 0
    torch._C._cuda_setDevice = lambda _: None  # torch's helpers of tests call it themselves
    for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_: None)
