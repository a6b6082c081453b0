"""`replace`: the norms of a model that is there, found by what they compute, and by none of their names."""

from __future__ import annotations

import copy
import inspect
import itertools
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from normgen.errors import UsageError
from normgen.torch.functional import function, is_float32_under_autocast

Tensor = Any
Module = Any
Dtypes = tuple[Any, Any]  # of the rows and of the parameters

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
_SAME = 1e-4  # of a row's largest value: a module may compute in float32 what is compared in float64
_EQUAL = 0.99  # of the elements, where both sides round to a dtype: float32 sums in another order seldom show
_PLAIN = (type(None), bool, int, float, str, tuple, torch.Size, torch.dtype)  # values that are compared as such
_INTERNAL = frozenset(vars(torch.nn.Module())) - {"training"}
_LEFT_OPEN = _INTERNAL | {"training", "forward"}  # what torch sets on a module, and we do
_FIXED = (type, torch.nn.Module, torch.nn.Parameter, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_NONE: Any = object()
_LARGEST_EPS = torch.finfo(torch.float32).max
_PROBED = (0.0625, 1e-10, 100.0)  # values of eps: of a forward that takes one's maximum or minimum with a number, too
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

    @property
    def operator(self) -> Any:
        return function(self.function).operator  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(('x', *self.parameters))}, eps={self.eps:g})"


class Forward:
    """In the place of a module's forward: our function where it computes the same, else what the module did."""

    def __init__(self, module: Module, norm: Norm, *, name: str, opaque: bool | None) -> None:
        self.name = name
        self.module, self.norm, self.original, self.opaque = module, norm, module.forward, opaque
        self.operator = norm.operator
        # The operator's tensors as places among (the rows, the parameters), None of one that is absent.
        places, self.scalars, *_ = self.operator.bound(*range(1 + len(norm.parameters)), eps=norm.eps)
        self.places = None if places == tuple(range(len(places))) else places
        self.eps_at = [scalar for scalar, _ in self.operator.spec.scalars].index("eps")
        # What it computes while all of these are as they were: its own attributes, and those of its class.
        self.examined: dict[str, Any] = {name: value for name, value in vars(module).items() if name not in _LEFT_OPEN}
        self.held = tuple(name for name, value in self.examined.items() if _may_change(value))
        self.prints = [_print(self.examined[name]) for name in self.held]
        self.examined |= {name: getattr(module, name) for name in norm.reads}
        self.of_class = bool(norm.reads)
        # At the last call, whose scalars these are: how many attributes it had, and those that decide.
        self.size, self.seen = -1, ()  # type: tuple[int, tuple[tuple[str, Any], ...]]

    def __getstate__(self) -> dict[str, Any]:
        """All but the operator, which remembers loaded kernels and belongs to nobody: for copies and pickles."""
        return {name: value for name, value in self.__dict__.items() if name != "operator"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, operator=state["norm"].operator, size=-1, seen=())

    def __call__(self, *args: Any, **named: Any) -> Tensor:
        (x,) = (*args, *named.values()) if named else args
        norm, module, known, given = self.norm, self.module, self.module._parameters, [x]
        for name in norm.parameters:
            parameter = known.get(name)  # not so of one that is parametrized, or a part of a flat one
            if parameter is None and (parameter := getattr(module, name)) is None:
                return self.original(x)
            given.append(parameter)
        dtype = norm.dtypes.get((x.dtype, given[-1].dtype))
        scalars = self.scalars
        is_traced = torch.compiler.is_dynamo_compiling()  # which guards what it reads, by its value
        if is_traced:
            scalars = self.scalars_now()
        elif len(own := module.__dict__) != self.size or self.of_class or self.held:
            scalars = self.scalars_again()
        else:
            for name, value in self.seen:
                if own.get(name, _NONE) is not value:
                    scalars = self.scalars_again()
                    break
        if dtype is None or scalars is None:
            return self.original(x)
        if norm.in_float32 and torch._C._is_any_autocast_enabled() and x.is_cuda and torch.is_autocast_enabled("cuda"):
            dtype = None
        places = self.places
        tensors = (
            tuple(given) if places is None else tuple([None if place is None else given[place] for place in places])
        )
        if is_traced:
            for parameter in given[1:]:
                if parameter.shape != x.shape[-1:]:
                    return self.original(x)
            return self.operator.traced(*tensors, *scalars, dtype, self.opaque, self.name)
        try:
            found = self.operator.eager(tensors, scalars, dtype)
            return self.operator.run(tensors, scalars, dtype, self.opaque) if found is NotImplemented else found
        except UsageError:  # a parameter of another shape, say, that the module spreads
            return self.original(x)

    def scalars_again(self) -> tuple[float, ...] | None:
        """As `scalars_now`, remembered for calls behind which no attribute is set."""
        own = vars(self.module)
        if not self.is_held_as_it_was():
            return None
        added = own.keys() - self.examined.keys() - _LEFT_OPEN
        # What wraps a module, a compiler say, sets names with _, which no forward reads that did not ask for them.
        if any(not name.startswith("_") or name in self.norm.asks for name in added):
            return None
        scalars = self.scalars_now()
        if scalars is not None:
            seen = tuple((name, own[name]) for name in self.examined if name in own)
            self.size, self.seen, self.scalars = len(own), seen, scalars
        return scalars

    def is_held_as_it_was(self) -> bool:
        """Whether no object that the module holds was changed in place, or is another one that says something else."""
        own = vars(self.module)
        return all(name in own and _print(own[name]) == was for name, was in zip(self.held, self.prints, strict=True))

    def scalars_now(self) -> tuple[float, ...] | None:
        """As the module's attributes say now; None where another than eps changed, or eps is no number any more."""
        module, norm, eps = self.module, self.norm, self.norm.eps
        if torch.compiler.is_dynamo_compiling():
            if self.held:
                return None
            for name in norm.asks:
                if hasattr(module, name):
                    return None
            for name in norm.methods:
                if type(getattr(module, name)) is not types.MethodType:
                    return None
        for name, examined in self.examined.items():
            if name == norm.eps_of:
                said = getattr(module, name)
                if type(said) in (float, int):
                    eps = said if type(said) is float else float(said)
                elif said is not None or examined is not None:  # None: as torch does without one
                    return None
            elif name not in self.held and not _is_same(getattr(module, name, _NONE), examined):
                return None
        if not abs(eps) <= _LARGEST_EPS:
            return None
        return (*self.scalars[: self.eps_at], eps, *self.scalars[self.eps_at + 1 :])


def _may_change(value: Any) -> bool:
    """Whether what it says may be changed in place."""
    if isinstance(value, tuple):
        return any(map(_may_change, value))
    if type(value) in _PLAIN or isinstance(value, _FIXED):
        return False
    return isinstance(value, list | dict | set | torch.Tensor) or hasattr(value, "__dict__")


@dataclass(frozen=True, eq=False)
class _One:
    """An object that is compared as such: it is itself, and nothing else is."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _print(value: Any, depth: int = 5) -> Any:
    """What an object says, through what it holds."""
    if type(value) in _PLAIN and not isinstance(value, tuple):
        return value
    if isinstance(value, torch.Tensor):
        return _One(value), 0 if value.is_inference() else value._version
    if not depth or isinstance(value, _FIXED):
        return _One(value)
    if isinstance(value, list | tuple):
        return type(value), [_print(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return type(value), [(key, _print(one, depth - 1)) for key, one in value.items()]
    if isinstance(value, set):
        return type(value), set(value)
    if hasattr(value, "__dict__"):
        return type(value), [(key, _print(one, depth - 1)) for key, one in vars(value).items()]
    return _One(value)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) in _PLAIN and type(other) in _PLAIN and bool(one == other))


@dataclass(frozen=True, kw_only=True)
class Report:
    """replaced: module name -> what it computes; left: module name -> why it was left as it is."""

    replaced: Mapping[str, Norm]
    left: Mapping[str, str]

    def __str__(self) -> str:
        counts = Counter(f"replaced: {norm}" for norm in self.replaced.values())
        lines = [f"{count} x {what}" for what, count in counts.items()] or ["nothing is replaced"]
        return "\n".join((*lines, *(f"left: {name}: {why}" for name, why in self.left.items())))


def replace(model: Module, *, opaque: bool | None = None) -> Report:
    """Let the norms of a model compute by our kernels, and say which.

    A module is one of our norms if its forward, run in float64 on rows that tell formulas apart, gives what one of our
    formulas gives with its parameters and one of its numbers as eps, and if it rounds in bf16 where that one does. Its
    class, parameters, state and hooks stay as they are: its `forward` alone is another one, until `restore`. Pairs of
    dtypes in which a module rounds differently are left to it, call by call; so is a module whose attributes changed
    since. An eps that is set later is that of the next call. `opaque` is that of `operator`: what a
    compiler sees in their place, which `sites` says per module once it has compiled them.

    Looked at are modules without children and buffers whose parameters are [cols], and those called norms that have
    other ones, which are left.
    """
    known: dict[Any, Norm | str] = {}
    replaced: dict[str, Norm] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Forward) or not _may_be_one(module):
            continue
        found = _examined(module, known)
        if isinstance(found, str):
            left[name] = f"{type(module).__name__}: {found}"
        else:
            module.forward = Forward(module, found, name=name, opaque=opaque)
            replaced[name] = found
    return Report(replaced=replaced, left=left)


def restore(model: Module) -> int:
    """Give the modules that `replace` changed their own forward back; how many there were."""
    changed = [m for m in model.modules() if isinstance(m.__dict__.get("forward"), Forward)]
    for module in changed:
        del module.forward
    return len(changed)


def _may_be_one(module: Module) -> bool:
    if next(module.children(), None) is not None:
        return False
    shapes = {tuple(p.shape) for p in module.parameters(recurse=False)}
    return "norm" in type(module).__name__.lower() or (len(shapes) == 1 and len(next(iter(shapes))) == 1)


def _examined(module: Module, known: dict[Any, Norm | str]) -> Norm | str:
    """What a module computes, or why it is none of ours; modules alike in all they say are examined once."""
    said = {
        name: repr(value) if type(value) in _PLAIN else id(value)
        for name, value in vars(module).items()
        if name not in _INTERNAL
    }
    shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False))
    key = (type(module), shapes, tuple(sorted(said.items())))
    if key not in known:
        known[key] = _examine(module)
    return known[key]


def _examine(module: Module) -> Norm | str:
    """On the CPU, where a forward that makes tensors of its own is to make them too, and in no mode of the caller's."""
    with torch.device("cpu"), torch.inference_mode(False):
        return _told(module)


def _told(module: Module) -> Norm | str:
    if "forward" in vars(module):
        return "its forward is already another one than that of its class"
    if next(module.buffers(recurse=False), None) is not None:
        return "it has buffers"
    takes = list(inspect.signature(module.forward).parameters.values())
    if len(takes) != 1 or takes[0].kind not in (takes[0].POSITIONAL_OR_KEYWORD, takes[0].POSITIONAL_ONLY):
        return "its forward takes more than one tensor"
    names = tuple(name for name, _ in module.named_parameters(recurse=False))
    shapes = {tuple(p.shape) for p in module.parameters(recurse=False)} or {getattr(module, "normalized_shape", ())}
    if len(shapes) != 1 or len(shape := next(iter(shapes))) != 1 or shape[0] < 2:
        return "its parameters are not [cols], or nothing says how many columns there are"
    try:
        probe = _Probe(module, names, shape[0])
        return probe.found()
    except _FailedError as failure:
        return str(failure)


class _FailedError(Exception):
    """A module's forward does not do what a norm's does."""


class _Probe:
    """A copy of a module on the CPU with other parameters, and what it makes of rows."""

    def __init__(self, module: Module, names: tuple[str, ...], cols: int) -> None:
        self.module, self.names = copy.deepcopy(module), names
        generator = torch.Generator(device="cpu").manual_seed(cols)
        place = {"dtype": torch.float64, "device": "cpu"}
        self.values = {name: torch.randn(cols, generator=generator, **place) for name in names}
        self.rows = telling_rows(cols, generator)

    def found(self) -> Norm | str:
        got = self.run(self.rows, torch.float64)
        if got.shape != self.rows.shape:
            return f"its result has the shape {tuple(got.shape)} of rows {tuple(self.rows.shape)}"
        alike = [
            (name, parameters, eps)
            for name, parameters, eps, wide_eps in self.candidates()
            if _is_close(self.ours(name, parameters, wide_eps, self.rows, torch.float64), got)
        ]
        if not alike:
            return "its forward computes none of our norms"
        in_float32 = self.calls_torch()
        for name, parameters, eps in alike:
            dtypes = {pair: dtype for pair in _PAIRS if (dtype := self.rounded(name, parameters, eps, pair))}
            if (torch.bfloat16, torch.bfloat16) in dtypes:
                own = in_float32 and is_float32_under_autocast(name)
                eps_of, (reads, asks, methods) = self.eps_of(name, parameters), self.reads()
                return Norm(
                    function=name,
                    parameters=parameters,
                    eps=eps,
                    dtypes=dtypes,
                    in_float32=own,
                    eps_of=eps_of,
                    reads=tuple(attribute for attribute in reads if attribute != eps_of),
                    asks=asks,
                    methods=methods,
                )
        return f"its forward rounds elsewhere than our {', '.join(dict.fromkeys(c[0] for c in alike))}"

    def candidates(self) -> Iterator[tuple[str, tuple[str, ...], float, float]]:
        """Function, parameters, eps, and eps in float64: without one, torch takes that of the dtype it computes in."""
        numbers = {(v, v) for v in vars(self.module).values() if type(v) is float and 0 <= v < 1}
        if getattr(self.module, "eps", 0) is None:
            numbers.add((torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps))
        for (name, takes), eps in itertools.product(_CANDIDATES, sorted(numbers)):
            if len(takes) == len(self.names):
                for order in itertools.permutations(self.names):
                    yield name, order, *eps

    def run(self, rows: Tensor, dtype: Any) -> Tensor:
        """The module's own result, its parameters in `dtype`."""
        for name, value in self.values.items():
            setattr(self.module, name, torch.nn.Parameter(value.to(dtype)))
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # of dtypes that its caller may never mix
                got = self.module.forward(rows)
        except Exception as error:
            raise _FailedError(f"its forward does not take rows: {type(error).__name__}: {error}") from error
        if not isinstance(got, torch.Tensor):
            raise _FailedError(f"its forward returns a {type(got).__name__}")
        return got

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
        except _FailedError:
            return None
        want = self.ours(name, parameters, eps, rows, of_parameters, out=got.dtype)
        if got.dtype == torch.float32 == dtype:
            return got.dtype if _is_close(want, got) else None
        share = (got == want).double().mean()
        return got.dtype if share >= _EQUAL or (got.dtype == torch.float32 and _is_close(want, got)) else None

    def eps_of(self, name: str, parameters: tuple[str, ...]) -> str:
        """The attribute that our function's eps is: with another number there, the results are those of that eps."""
        for attribute, value in list(vars(self.module).items()):
            if attribute in _INTERNAL or not (type(value) is float or (value is None and attribute == "eps")):
                continue
            try:
                if all(self.is_eps(attribute, other, name, parameters) for other in _PROBED):
                    return str(attribute)
            except _FailedError:
                continue
            finally:
                setattr(self.module, attribute, value)
        return ""

    def is_eps(self, attribute: str, other: float, name: str, parameters: tuple[str, ...]) -> bool:
        setattr(self.module, attribute, other)
        got = self.run(self.rows, torch.float64)
        return _is_close(self.ours(name, parameters, other, self.rows, torch.float64), got)

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The attributes of its class, and `training`, that the module's forward reads; those it asks for in vain; the
        methods it calls. Its own ones are compared whether it reads them here or not.
        """
        seen: dict[str, None] = {}
        plain, own = type(self.module), vars(self.module)

        class Watched(plain):  # type: ignore[misc,valid-type]
            def __getattribute__(self, name: str) -> Any:
                seen[name] = None
                return super().__getattribute__(name)

        try:
            self.module.__class__ = Watched
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                self.run(self.rows[:, :4].to(dtype), dtype)
        except (TypeError, _FailedError):  # a class that has no other below it, or asks which it is
            seen.update(dict.fromkeys(own))
        finally:
            self.module.__class__ = plain
        known = {*_INTERNAL, *self.names, *dir(torch.nn.Module)} - {"training"}
        names = [name for name in seen if not name.startswith("__") and name not in known]
        found = [(name, getattr(self.module, name, _NONE)) for name in names if name not in own or name == "training"]
        reads = tuple(name for name, value in found if value is not _NONE and not callable(value))
        methods = tuple(name for name, value in found if isinstance(value, types.MethodType))
        return reads, tuple(name for name, value in found if value is _NONE), methods

    def calls_torch(self) -> bool:
        seen: list[Any] = []

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Watch():
            self.run(self.rows, torch.float64)
        return any(func in _OF_TORCH for func in seen)


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


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    scale = ours.abs().amax(-1, keepdim=True)
    return bool(((ours - theirs).abs() <= _SAME * scale + 1e-30).all())
