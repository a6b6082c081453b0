"""What a module computes: which of our norms, of which of its parameters, over which axis of its tensors."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from normgen.torch.functional import function, is_float32_under_autocast
from normgen.torch.replacing.lying import CHANNELS, INSTANCES, Lying

Tensor = Any
Module = Any
Dtypes = tuple[Any, Any]  # of the rows and of the parameters

INTERNAL = frozenset(vars(torch.nn.Module())) - {"training"}
NONE: Any = object()
# What a norm may be: our function, and the names it gives its parameters. The first that computes the same is taken.
_CANDIDATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("rms_norm", ("weight",)),
    ("llama_rms_norm", ("weight",)),
    ("gemma_rms_norm", ("weight",)),
    ("layer_norm", ("weight", "bias")),
    ("layer_norm", ("weight",)),
    ("layer_norm", ()),
    ("rms_norm", ()),
)
_PAIRS: tuple[Dtypes, ...] = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
)
_WIDE, _HALF = _PAIRS[:2]
_SAME = 1e-4  # of a row's largest value: a module may compute in float32 what is compared in float64
_EQUAL = 0.99  # of the elements, where both sides round to a dtype: float32 sums in another order seldom show
_PROBED = (0.0625, 1e-10, 100.0)  # values of eps: of a forward that takes one's maximum or minimum with a number, too
_ANY_COLS = 48
CHANGES = "its forward changes what it is given"
OTHER_GRADIENTS = "its gradients are not those of what its forward computes"
_NO_COLUMNS = "its parameters are not [cols], or nothing says how many columns there are"
_OF_TORCH = {torch.nn.functional.layer_norm, torch.nn.functional.rms_norm, torch.layer_norm, torch.rms_norm}


@dataclass(frozen=True, kw_only=True)
class Norm:
    """What a module computes.

    function    the name of our function
    parameters  the module's, in the order in which the function takes them
    dtypes      of rows and parameters -> of the result, where ours rounds as the module does; others are left to it
    in_float32  the module calls torch's own norm, and its result is float32 under autocast on CUDA
    eps_of      the module's attribute that is eps, whatever it is set to later; "" of a forward that holds the number
    reads       the attributes of its class, and `training`, that its forward reads
    asks        the names that its forward asks for, and that it does not have; methods: those of its own that it calls
    lying       where its rows lie; None: along the last axis
    """

    function: str
    parameters: tuple[str, ...]
    eps: float
    dtypes: Mapping[Dtypes, Any]
    in_float32: bool
    eps_of: str = ""
    reads: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    lying: Lying | None = None

    @property
    def operator(self) -> Any:
        return function(self.function).operator  # type: ignore[attr-defined]

    def __str__(self) -> str:
        over = f" over {self.lying.over}" if self.lying else ""
        alone = "" if _HALF in self.dtypes else ", in float32 alone"
        return f"{self.function}({', '.join(('x', *self.parameters))}, eps={self.eps:g}){over}{alone}"


def told(module: Module) -> Norm | str:
    """What a module computes, or why it is none of our norms."""
    if "forward" in vars(module):
        return "its forward is already another one than that of its class"
    if next(module.buffers(recurse=False), None) is not None:
        return "it has buffers"
    takes = list(inspect.signature(module.forward).parameters.values())
    if len(takes) != 1 or takes[0].kind not in (takes[0].POSITIONAL_OR_KEYWORD, takes[0].POSITIONAL_ONLY):
        return "its forward takes more than one tensor"
    names = tuple(name for name, _ in module.named_parameters(recurse=False))
    shapes = {tuple(p.shape) for p in module.parameters(recurse=False)} or {getattr(module, "normalized_shape", ())}
    sizes, *others = shapes
    if others or len(sizes) > 1 or (sizes and sizes[0] < 2) or (names and not sizes):
        return _NO_COLUMNS
    # Without anything that says how many columns there are, it is a norm of any number of them.
    ways = (None, *CHANNELS) if sizes else (*CHANNELS, *INSTANCES)
    reasons = []
    for lying in ways:
        try:
            found = _Probe(module, names, sizes[0] if sizes else _ANY_COLS, lying).found()
        except FailedError as failure:
            found = str(failure)
        if isinstance(found, Norm):
            return found
        reasons.append(found)
    return reasons[0] if sizes else _NO_COLUMNS


class FailedError(Exception):
    """A module's forward does not do what a norm's does."""


def copied(what: Any, known: dict[int, Any]) -> Any:
    """A copy of a module, or its attributes; `known`, by their ids, stands for objects that it holds.

    Raises FailedError.
    """
    try:
        return copy.deepcopy(what, known)
    except Exception as error:  # of a lock, or a tensor with a gradient to come
        raise FailedError(f"it cannot be copied: {type(error).__name__}: {error}") from error


class _Probe:
    """A copy of a module on the CPU with other parameters, and what it makes of rows."""

    def __init__(self, module: Module, names: tuple[str, ...], cols: int, lying: Lying | None) -> None:
        self.module, self.names, self.lying = copied(module, {}), names, lying
        generator = torch.Generator(device="cpu").manual_seed(cols)
        place = {"dtype": torch.float64, "device": "cpu"}
        self.values = {name: torch.randn(cols, generator=generator, **place) for name in names}
        self.rows = telling_rows(cols, generator)

    def found(self) -> Norm | str:
        got = self.run(self.rows, torch.float64)
        close = [
            one for one in self.candidates() if is_close(self.ours(*one[:2], one[-1], self.rows, torch.float64), got)
        ]
        if not close:
            return "its forward computes none of our norms"
        theirs = self.recorded()
        alike = [
            one[:-1]
            for one in close
            if theirs is None or all(map(is_close, self.our_backward(*one[:2], one[-1]), theirs))
        ]
        if not alike:
            return OTHER_GRADIENTS
        dtypes = [{pair: dtype for pair in _PAIRS if (dtype := self.rounded(*one, pair))} for one in alike]
        # torch's own formulas over other axes are written out, and round in bf16 behind each operation.
        for needed in (_HALF, _WIDE) if self.lying else (_HALF,):
            for one, rounded in zip(alike, dtypes, strict=True):
                if needed in rounded:
                    return self.norm(*one, rounded)
        return f"its forward rounds elsewhere than our {', '.join(dict.fromkeys(c[0] for c in alike))}"

    def norm(self, name: str, parameters: tuple[str, ...], eps: float, dtypes: Mapping[Dtypes, Any]) -> Norm:
        eps_of, (reads, asks, methods) = self.eps_of(name, parameters), self.reads()
        left_out = {eps_of, *(["training"] if "training" in reads and self.is_same_in_training() else [])}
        return Norm(
            function=name,
            parameters=parameters,
            eps=eps,
            dtypes=dtypes,
            in_float32=self.calls_torch() and is_float32_under_autocast(name),
            eps_of=eps_of,
            reads=tuple(attribute for attribute in reads if attribute not in left_out),
            asks=asks,
            methods=methods,
            lying=self.lying,
        )

    def candidates(self) -> Iterator[tuple[str, tuple[str, ...], float, float]]:
        """Function, parameters, eps, and eps in float64: without one, torch takes that of the dtype it computes in."""
        numbers = {(v, v) for v in vars(self.module).values() if type(v) is float and 0 <= v < 1}
        if getattr(self.module, "eps", 0) is None:
            numbers.add((torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps))
        for (name, takes), eps in itertools.product(_CANDIDATES, sorted(numbers)):
            if len(takes) == len(self.names):
                for order in itertools.permutations(self.names):
                    yield name, order, *eps

    def our_backward(self, name: str, parameters: tuple[str, ...], eps: float) -> list[Tensor]:
        rows, leaves = self.recording_rows(), {n: value.clone().requires_grad_() for n, value in self.values.items()}
        made = function(name).operator  # type: ignore[attr-defined]
        with torch.enable_grad():
            ours = made.decomposition(rows, *(leaves[n] for n in parameters), eps=eps, dtype=None)
        return backward_of(ours, [rows, *leaves.values()])

    def recording_rows(self) -> Tensor:
        """Without level rows, where float32 gives gradients few digits."""
        return self.rows[:, :4].clone().requires_grad_()

    def recorded(self) -> list[Tensor] | None:
        """As `backward_of` the module; None of one that has no backward pass, and none that ours could contradict."""
        rows = self.recording_rows()
        try:
            found = self.run(rows, torch.float64, records=True)
            return backward_of(found, [rows, *(getattr(self.module, name) for name in self.names)])
        except FailedError:
            return None

    def run(self, rows: Tensor, dtype: Any, *, records: bool = False) -> Tensor:
        """The rows of the module's own result, its parameters in `dtype`; `records`: for a backward pass."""
        for name, value in self.values.items():
            setattr(self.module, name, torch.nn.Parameter(value.to(dtype)))
        with torch.set_grad_enabled(records):
            x = self.lying.made_of(rows) if self.lying else rows
            try:
                with warnings.catch_warnings(action="ignore"):  # of dtypes that its caller may never mix
                    got = self.module.forward(given := x.clone())
            except Exception as error:
                raise FailedError(f"its forward does not take rows: {type(error).__name__}: {error}") from error
            if not torch.equal(given, x):
                raise FailedError(CHANGES)
            if not isinstance(got, torch.Tensor):
                raise FailedError(f"its forward returns a {type(got).__name__}")
            if got.shape != x.shape:
                raise FailedError(f"its result has the shape {tuple(got.shape)} of rows {tuple(x.shape)}")
            return self.lying.rows(got).reshape(rows.shape) if self.lying else got

    def ours(
        self, name: str, parameters: tuple[str, ...], eps: float, rows: Tensor, dtype: Any, out: Any = None
    ) -> Tensor:
        """Our function's result, its parameters in `dtype`."""
        made = function(name).operator  # type: ignore[attr-defined]
        with torch.no_grad():
            return made.decomposition(rows, *(self.values[p].to(dtype) for p in parameters), eps=eps, dtype=out)

    def rounded(self, name: str, parameters: tuple[str, ...], eps: float, pair: Dtypes) -> Any:
        """The dtype of the module's result in a pair of dtypes, where ours is the same; else None."""
        dtype, of_parameters = pair
        if not self.names and dtype != of_parameters:
            return None
        rows = self.rows[:, :4].to(dtype)  # without those that overflow
        try:
            got = self.run(rows, of_parameters)
        except FailedError:
            return None
        want = self.ours(name, parameters, eps, rows, of_parameters, out=got.dtype)
        if got.dtype == torch.float32 == dtype:
            return got.dtype if is_close(want, got) else None
        share = (got == want).double().mean()
        return got.dtype if share >= _EQUAL or (got.dtype == torch.float32 and is_close(want, got)) else None

    def eps_of(self, name: str, parameters: tuple[str, ...]) -> str:
        """The attribute that our function's eps is: with another number there, the results are those of that eps."""
        for attribute, value in list(vars(self.module).items()):
            if attribute in INTERNAL or not (type(value) is float or (value is None and attribute == "eps")):
                continue
            try:
                if all(self.is_eps(attribute, other, name, parameters) for other in _PROBED):
                    return str(attribute)
            except FailedError:
                continue
            finally:
                setattr(self.module, attribute, value)
        return ""

    def is_eps(self, attribute: str, other: float, name: str, parameters: tuple[str, ...]) -> bool:
        setattr(self.module, attribute, other)
        got = self.run(self.rows, torch.float64)
        return is_close(self.ours(name, parameters, other, self.rows, torch.float64), got)

    def is_same_in_training(self) -> bool:
        """Whether the module's forward does in training what it does outside of it, and gives the same gradients."""
        found, recorded = [], []
        for is_training in (not self.module.training, self.module.training):
            self.module.training = is_training
            found.append(self.run(self.rows, torch.float64))
            recorded.append(self.recorded())
        one, other = recorded
        is_alike = one is other if one is None or other is None else all(map(is_close, one, other))
        return bool(torch.equal(*found)) and is_alike

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The attributes of its class, and `training`, that the module's forward reads; those it asks for in vain; the
        methods it calls. Its own ones are compared whether it reads them here or not.
        """
        own = vars(self.module)

        def runs() -> None:
            for dtype, is_training in itertools.product((torch.float64, torch.float32, torch.bfloat16), modes):
                self.module.training, rows = is_training, self.rows[:, :4].to(dtype)
                self.run(rows, dtype)
                with contextlib.suppress(FailedError):  # what it reads where a backward pass is recorded, if it can be
                    self.run(rows.clone().requires_grad_(), dtype, records=True)

        modes = not self.module.training, self.module.training
        seen = names_read(self.module, runs)
        known = {*INTERNAL, *self.names, *dir(torch.nn.Module)} - {"training"}
        names = [name for name in seen if not name.startswith("__") and name not in known]
        found = [(name, getattr(self.module, name, NONE)) for name in names if name not in own or name == "training"]
        reads = tuple(name for name, value in found if value is not NONE and not callable(value))
        methods = tuple(name for name, value in found if isinstance(value, types.MethodType))
        return reads, tuple(name for name, value in found if value is NONE), methods

    def calls_torch(self) -> bool:
        seen: list[Any] = []

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Watch():
            self.run(self.rows, torch.float64)
        return any(func in _OF_TORCH for func in seen)


def names_read(module: Module, runs: Callable[[], object]) -> Sequence[str]:
    """The names that a module is asked for while `runs` runs it; all of its own, if it cannot be watched or fails."""
    seen: dict[str, None] = {}
    plain = type(module)

    class Watched(plain):  # type: ignore[misc,valid-type]
        def __getattribute__(self, name: str) -> Any:
            seen[name] = None
            return super().__getattribute__(name)

    try:
        module.__class__ = Watched
        runs()
    except (TypeError, FailedError):  # a class that has no other below it, or asks which it is
        seen.update(dict.fromkeys(vars(module)))
    finally:
        module.__class__ = plain
    return [*seen]


def telling_rows(cols: int, generator: Any) -> Tensor:
    """[2, 8, cols] in float64: plain rows, rows where eps matters, far from 0, with an outlier, level, 0 and large."""
    rows = torch.randn(2, 8, cols, generator=generator, dtype=torch.float64, device="cpu")
    rows[:, 1] *= 1e-3
    rows[:, 2] += 3
    rows[:, 3, 0] = 50
    rows[:, 4] *= 1e-4
    rows[:, 5] = 0
    rows[:, 6] = 2.5
    rows[:, 7] *= 1e4
    return rows


def is_close(ours: Tensor, theirs: Tensor, share: float = _SAME) -> bool:
    scale = ours.abs().amax(-1, keepdim=True)
    return bool(((ours - theirs).abs() <= share * scale + 1e-30).all())


def backward_of(result: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """A result, and gradients of leaves towards some direction of it; 0 of what is not recorded. Raises FailedError."""
    if not result.requires_grad:
        return [result, *map(torch.zeros_like, leaves)]
    generator = torch.Generator(device="cpu").manual_seed(1)
    towards = torch.randn(result.shape, generator=generator, dtype=result.dtype, device="cpu")
    try:
        found = torch.autograd.grad(result, leaves, towards, allow_unused=True, materialize_grads=True)
    except Exception as error:
        raise FailedError(f"its backward pass does not run: {type(error).__name__}: {error}") from error
    return [result.detach(), *found]
