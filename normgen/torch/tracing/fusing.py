"""`fused`: a function of row-wise torch operations as one kernel, in both directions, with nothing written twice."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.autograd import forward_ad

from normgen.errors import UsageError, VerificationError, did_you_mean
from normgen.spec.spec import Role
from normgen.torch.calls import autocast_dtype
from normgen.torch.operators import Operator, operator
from normgen.torch.tracing.comparing import Comparison, compared
from normgen.torch.tracing.cuts.cutting import Cut, CutPlan, CutPlans, results_of, smaller
from normgen.torch.tracing.cuts.pieces import CannotCutError
from normgen.torch.tracing.formulas import names_for
from normgen.torch.tracing.reasons import NO_NUMBER, NO_VALUE, OF_NUMBER
from normgen.torch.tracing.recording import COLS, INNER, recorded
from normgen.torch.tracing.values import Read, Traced
from normgen.torch.tracing.walk import traced

Tensor = Any
Facts = tuple[Any, ...]

ROUNDINGS = ("casts", "operations")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_UNKNOWN: Any = object()
_IS_TENSOR = "a tensor of the call"
_SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # no two of them, nor products of some, are the same
_MOST_SHAPES = 1024  # that a function remembers
_OF_MODULES = (bool, int, float, str, tuple, type(None), torch.dtype)  # attributes that a forward may depend on


class FusedPlan:
    """A traced function for tensors of some dtypes: an operator, and what torch does around it."""

    def __init__(self, found: Traced) -> None:
        self.traced = found
        self.operator: Operator = operator(found.spec, returns=found.returns)
        self._run = self.operator.function
        self._takes = tuple((read.place, _shaped(read, found)) for read in found.reads)
        self._rows_of, self._is_one = found.recorded.rows_of, len(found.returns) == 1
        self.comparison: Comparison | None = None

    @property
    def text(self) -> str:
        return self.traced.spec.text

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        given, tail = self.given(tensors), self.traced.tail
        results = self._run(*given)
        if tail is None:
            return results
        found = tail(*((results,) if self._is_one else results), *tensors)
        tree = self.traced.tree
        return found if tree is None else torch.utils._pytree.tree_unflatten(found, tree)

    def given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the kernel takes, of the function's tensors."""
        first = tensors[self._rows_of]
        return [tensors[place] if shaped is None else shaped(tensors[place], first) for place, shaped in self._takes]


def _shaped(read: Read, found: Traced) -> Callable[[Tensor, Tensor], Tensor] | None:
    """How an argument becomes what the kernel takes; None: it is."""
    last = INNER if INNER in read.axes else COLS
    plain = tuple((axis,) for axis in (*range(len(found.recorded.axes) - 1), last))
    if read.is_side:
        kept = [place for place, dim in enumerate(read.dims) if dim]
        whole = len(kept) == len(read.dims)
        return None if whole else lambda tensor, _: tensor.reshape([tensor.shape[place] for place in kept])
    if read.role is Role.PARAMETER:
        return None if len(read.dims) == 1 else lambda tensor, _: tensor.reshape(-1)
    if read.role in (Role.SCALAR_INPUT, Role.SCALAR_PARAMETER, Role.SEED):
        return None if not read.dims else lambda tensor, _: tensor.reshape(())
    if read.role in (Role.BATCH_PARAMETER, Role.HEAD_PARAMETER):
        is_flat = len(read.dims) == 2 and all(read.dims)
        return None if is_flat else lambda tensor, _: tensor.reshape(-1, tensor.shape[-1])
    wanted = plain if read.role is Role.INPUT else plain[:-1]
    if not read.spread:
        if read.dims == wanted:
            return None
        if read.role is Role.INPUT:
            at = read.dims.index((last,))
            return lambda tensor, first: tensor.reshape(*first.shape[:-1], tensor.shape[at])
        return lambda tensor, first: tensor.reshape(first.shape[:-1])
    has = [axis in {a for dim in read.dims for a in dim} for (axis,) in wanted]

    def spread(tensor: Tensor, first: Tensor) -> Tensor:
        width = [tensor.shape[read.dims.index((last,))]] if read.role is Role.INPUT else []
        shape = [*first.shape[:-1], *width]
        return tensor.reshape([n if there else 1 for n, there in zip(shape, has, strict=True)]).expand(shape)

    return spread


AnyCut = CutPlan | CutPlans
AnyPlan = FusedPlan | AnyCut


class Fused:
    """A function that runs as one kernel where its tensors are on a CUDA device, and as itself elsewhere.

    It is traced when it is first called with tensors of other dtypes, other roles, or other values of what is no
    tensor, which are constants of the kernel; sizes of rows are free. What cannot be traced is refused with its line.
    """

    def __init__(
        self, function: Callable[..., Any], bound: Any = None, *, rounding: str = "casts", is_cut: bool = False
    ) -> None:
        if rounding not in ROUNDINGS:
            raise UsageError("unknown rounding", received=str(rounding), hint=did_you_mean(str(rounding), ROUNDINGS))
        self.function, self.bound, self.rounding, self._is_cut = function, bound, rounding, is_cut
        self._plans: dict[Facts, AnyPlan] = {}  # by what decides the kernel
        self._kernels: dict[Facts, Fused] = {}  # of functions that are cut, by what these do
        self._for_one: set[Facts] = set()  # of these, there is one for each number of columns
        self._ready: dict[Facts, AnyPlan | None] = {}  # by all sizes; None: the function itself runs
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Fused:
        """As a method: a module's parameters are arguments of its kernel."""
        return self if instance is None else self._of(instance)

    def _of(self, instance: Any) -> Fused:
        found = copy.copy(self)
        found.bound = instance
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Fused:
        return self._of(copy.deepcopy(self.bound, memo))

    def __repr__(self) -> str:
        return f"<normgen.torch.fused {self._title}: {len(self._plans)} traced>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self.bound is not None:
            args = (self.bound, *args)
        if torch.compiler.is_compiling():
            return self._compiled(args, named)
        facts, tensors = _facts(args, named)
        if facts is None:
            return self.function(*args, **named)
        plan = self._ready.get(facts, _UNKNOWN)
        if plan is _UNKNOWN:
            plan = self._readied(facts, tensors, args, named)
        return self.function(*args, **named) if plan is None else plan(tensors)

    def spec(self, *args: Any, **named: Any) -> str:
        """The spec's text for these arguments; without arguments, of the last trace. Raises UsageError as a call."""
        return self._plan(args, named).text

    def operator(self, *args: Any, **named: Any) -> Operator:
        """The operator that a call with these arguments runs; without arguments, that of the last trace."""
        return self._plan(args, named).operator

    def comparison(self, *args: Any, **named: Any) -> Comparison:
        """How the spec compared with the function when it was traced: a comparison on rows, not a proof."""
        return cast(Comparison, self._plan(args, named).comparison)

    def _plan(self, args: Any, named: Mapping[str, Any]) -> AnyPlan:
        if args or named:
            args = args if self.bound is None else (self.bound, *args)
            facts, tensors = _facts(args, named)
            if facts is None or not tensors:
                hint = "pass tensors of torch one by one, of no subclass, and not in lists"
                raise UsageError("a function is traced with plain tensors", received=self._title, hint=hint)
            return self._traced(tensors, args, named)
        if not self._plans:
            hint = "call it with tensors on a CUDA device, or give example arguments here"
            raise UsageError("nothing is traced yet", received=self._title, hint=hint)
        return list(self._plans.values())[-1]

    def _readied(self, facts: Facts, tensors: Sequence[Tensor], args: Any, named: Any) -> AnyPlan | None:
        plan = self._traced(tensors, args, named) if takes_a_kernel(tensors) else None
        if len(self._ready) >= _MOST_SHAPES:
            self._ready.clear()
        self._ready[facts] = plan
        return plan

    def _traced(self, tensors: Sequence[Tensor], args: Any, named: Any) -> AnyPlan:
        sizes, dtypes = [tuple(t.shape) for t in tensors], tuple(t.dtype for t in tensors)
        rows_of = _rows_of(sizes, dtypes)
        if rows_of is None:
            rule = "a function that is traced takes a tensor [.., cols] of floating point"
            received = ", ".join(f"{str(t.dtype).partition('.')[2]} {list(t.shape)}" for t in tensors)
            raise UsageError(rule, received=received, hint="convert it, x.float(), or leave it to torch")
        statics, pattern = _statics(args, named), _pattern(sizes, rows_of)
        try:
            hash(statics)
        except TypeError as error:
            hint = "pass its tensors one by one, and numbers as they are"
            rule = "an argument is a tensor, a module, or a constant"
            raise UsageError(rule, received=str(error), hint=hint) from error
        try:
            for lasts in ((), _lasts(sizes, pattern, rows_of)):
                plan = self._planned(pattern, rows_of, dtypes, tensors[0].device, statics, args, named, lasts=lasts)
                if plan is not None:
                    return plan
            raise UsageError("a function that is traced takes rows of its arguments' sizes", received=self._title)
        except UsageError as error:
            if self._is_cut or error.rule.endswith((OF_NUMBER, NO_NUMBER, NO_VALUE)):
                raise
            key = (tuple(sizes), dtypes, tensors[0].device, statics, autocast_dtype(tensors[0].device.type))
            if key not in self._plans:
                self._plans[key] = self._cut(error, tensors, args, named)
            return self._plans[key]

    def _cut(self, error: UsageError, tensors: Sequence[Tensor], args: Any, named: Any) -> AnyCut:
        """The plan of a function that is none of rows as its tensors lie; else raises why it is none."""
        call, names = _call(self.function, args, named), _parameters(self.function, args, named)
        with torch.inference_mode(False):
            try:
                try:
                    return self._cut_of(call, tensors, names)
                except CannotCutError:
                    calls, tree = results_of(call, tensors)
                    return CutPlans([self._cut_of(one, tensors, names) for one in calls], tree)
            except CannotCutError:
                raise error from None

    def _cut_of(self, call: Callable[..., Any], tensors: Sequence[Tensor], names: Sequence[str]) -> CutPlan:
        cut = Cut(call, tensors, names, _spec_name(self._title))
        key = (cut.shape, cut.groups)
        if key not in self._kernels:
            if all(shape != cut.shape for shape, _ in self._kernels):
                smaller(call, tensors, names, cut).check(self._title)
            self._kernels[key] = Fused(cut.kernel, rounding=self.rounding, is_cut=True)
        return CutPlan(cut, self._kernels[key], tensors[0].device)

    def _planned(
        self,
        pattern: Facts,
        rows_of: int,
        dtypes: Facts,
        device: Any,
        statics: Facts,
        args: Sequence[Any],
        named: Mapping[str, Any],
        *,
        lasts: Facts = (),
    ) -> AnyPlan | None:
        """The plan for any number of columns, or for `_lasts`; None where there is but one for a number of them."""
        key = (pattern, dtypes, device.type, autocast_dtype(device.type), torch.get_default_dtype(), statics, lasts)
        if key in self._plans:
            return self._plans[key]
        if not lasts and (*key[:-1], None) in self._for_one:
            return None
        with torch.inference_mode(False):
            return self._made(key, rows_of, args, named)

    def _made(self, key: Facts, rows_of: int, args: Sequence[Any], named: Mapping[str, Any]) -> AnyPlan | None:
        pattern, dtypes, device, *_, lasts = key
        title, parameters = self._title, _parameters(self.function, args, named)
        call = _call(self.function, args, named)
        record = recorded(call, parameters, _stand_ins(pattern), dtypes, torch.device(device), rows_of, lasts)
        if record is None:
            self._for_one.add((*key[:-1], None))
            return None
        summary = f"Traced from the torch function {title}."
        is_every = self.rounding == "operations"
        found = traced(record, parameters, _spec_name(title), summary, every_rounding=is_every)
        plan = FusedPlan(found)
        plan.comparison = compared(found, plan.operator, plan.given, call)
        if not plan.comparison.holds:
            hint = "report it; until then, write a spec for normgen.torch.operator"
            rule = f"the spec that was traced of {title} differs from it"
            raise VerificationError(rule, received=str(plan.comparison), hint=hint)
        if any(groups := getattr(self.function, "groups", ())):
            # Compared on rows of a few columns, which need not be as long as a group.
            comparison = plan.comparison
            plan = FusedPlan(
                traced(record, parameters, _spec_name(title), summary, every_rounding=is_every, groups=groups)
            )
            plan.comparison = comparison
        self._plans[key] = plan
        return plan

    @property
    def _title(self) -> str:
        return _title(self.function, self.bound)

    def _compiled(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Under a compiler, which looks into this: the operator of a plan that is found while it compiles."""
        tensors: list[Tensor] = []
        for arg in (*args, *named.values()):
            if isinstance(arg, torch.Tensor):
                tensors.append(arg)
            elif arg is self.bound and arg is not None:
                tensors += _of_module(arg)
            elif isinstance(arg, torch.nn.Module):
                return self.function(*args, **named)
        if not takes_a_kernel(tensors):
            return self.function(*args, **named)
        sizes, dtypes = [t.shape for t in tensors], tuple([t.dtype for t in tensors])
        rows_of = _rows_of(sizes, dtypes)
        if rows_of is None:
            return self.function(*args, **named)
        constants = tuple([_IS_TENSOR if isinstance(a, torch.Tensor) else a for a in args[self.bound is not None :]])
        names = tuple(named)
        values = tuple([_IS_TENSOR if isinstance(a, torch.Tensor) else a for a in named.values()])
        pattern, device = _pattern(sizes, rows_of), tensors[0].device.type
        place = self._constant(pattern, rows_of, dtypes, device, constants, names, values, ())
        if not place:
            lasts = _lasts(sizes, pattern, rows_of)
            place = self._constant(pattern, rows_of, dtypes, device, constants, names, values, lasts)
        return getattr(self, place)(tensors)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _constant(
        self,
        pattern: Facts,
        rows_of: int,
        dtypes: Facts,
        device: str,
        constants: Facts,
        names: tuple[str, ...],
        values: Facts,
        lasts: Facts,
    ) -> str:
        """`_planned` of what a compiler knows of a call: run while it compiles, with tensors that are stand-ins.

        The name of the attribute that has the plan: a compiler looks it up there, as it does its other objects.
        """
        sizes = iter(zip(_stand_ins(pattern), dtypes, strict=True))
        args = [] if self.bound is None else [self.bound]
        for _ in [] if self.bound is None else _of_module(self.bound):
            next(sizes)

        def given(value: Any) -> Any:
            if value != _IS_TENSOR:
                return value
            shape, dtype = next(sizes)
            return torch.empty(shape, dtype=dtype, device="meta")

        with torch.utils._python_dispatch._disable_current_modes():
            positional = [*args, *[given(value) for value in constants]]
            keywords = {name: given(value) for name, value in zip(names, values, strict=True)}
            statics = _statics(positional, keywords)
            plan = self._planned(
                pattern, rows_of, dtypes, torch.device(device), statics, positional, keywords, lasts=lasts
            )
        if plan is None:
            return ""
        name = f"plan_{list(self._plans.values()).index(plan)}"
        setattr(self, name, plan)
        return name


def fused(function: Any = None, *examples: Any, rounding: str = "casts") -> Any:
    """One kernel for a function of row-wise torch operations, traced when it is called.

    A decorator of functions and of methods of modules; `fused(module)` and `fused(module.forward)` are the forward of
    a module, to call or to put in its place: `module.forward = fused(module.forward)`. With `examples`, arguments of
    a call, it is traced at once.

    rounding  where float16 and bfloat16 values are rounded: "casts", where the function converts them (`.to(dtype)`)
              and where results are stored, as torch.compile does; "operations", behind each operation too, as torch
              does when it runs them one by one

    On a CUDA device a kernel runs, forward and backward, also under autocast and torch.compile; on the CPU, in
    float64, and for subclasses of tensors the function itself does. Tensors are [.., cols], all of one shape; [cols];
    [batches, cols], by their first sizes, or [heads, cols], by their last; [..], values of rows; one number; or such
    that spread to the rows. Anything else is a constant of the kernel. Totals of all rows, and what follows from them,
    are part of it: `loss.mean()`.

    Raises UsageError with the line of what is not row-wise, asks for data, or is not in the language, and
    VerificationError where the spec and the function differ on the rows that compare them.
    """
    if function is None:
        return functools.partial(fused, rounding=rounding)
    bound = None
    if isinstance(function, torch.nn.Module):
        function, bound = type(function).forward, function
    elif isinstance(function, Fused):
        function, bound = function.function, function.bound
    elif isinstance(getattr(function, "__self__", None), torch.nn.Module):
        function, bound = function.__func__, function.__self__
    if isinstance(function, type):
        hint = "decorate its forward, or give an instance"
        raise UsageError("a function or a module is traced", received=f"the class {function.__name__}", hint=hint)
    if not callable(function):
        raise UsageError("a function or a module is traced", received=type(function).__name__)
    found = Fused(function, bound, rounding=rounding)
    if examples:
        found.spec(*examples)
    return found


# arguments


def _facts(args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Facts | None, list[Tensor]]:
    """What a call depends on but for values of tensors, and its tensors; None where only torch can run it."""
    facts: list[Any] = []
    tensors: list[Tensor] = []
    for arg in (*args, *named.values()) if named else args:
        if type(arg) in _PLAIN:
            facts += (arg.shape, arg.dtype, arg.get_device())
            tensors.append(arg)
        elif isinstance(arg, torch.nn.Module):
            for tensor in _of_module(arg):
                if type(tensor) not in _PLAIN:
                    return None, tensors
                facts += (tensor.shape, tensor.dtype, tensor.get_device())
                tensors.append(tensor)
            facts.append(_said(arg))
        elif isinstance(arg, torch.Tensor):
            return None, tensors
        else:
            facts += (type(arg), arg)
    if named:
        facts.append(tuple(named))
    if tensors and torch._C._is_any_autocast_enabled():
        facts.append(autocast_dtype(tensors[0].device.type))
    facts.append(torch.get_default_dtype())  # of tensors that the function makes, and of whole numbers divided
    is_seen = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None
    if is_seen or forward_ad._current_level >= 0:
        return None, tensors
    return tuple(facts), tensors


def _statics(args: Sequence[Any], named: Mapping[str, Any]) -> Facts:
    """What is no tensor."""
    facts: list[Any] = [tuple(named)]
    for arg in (*args, *named.values()):
        if isinstance(arg, torch.nn.Module):
            facts.append(_said(arg))
        elif isinstance(arg, torch.Tensor):
            facts.append(torch.Tensor)
        else:
            facts += (type(arg), arg)
    return tuple(facts)


def _of_module(module: Any) -> list[Tensor]:
    if not module._modules and not module._buffers:
        return [p for p in module._parameters.values() if p is not None]
    return [*module.parameters(), *module.buffers()]


def _said(module: Any) -> Facts:
    """What a module's forward may depend on beside its tensors."""
    own = (type(module), *[v for v in vars(module).values() if type(v) in _OF_MODULES])
    return own if not module._modules else (*own, *[_said(child) for child in module._modules.values() if child])


def _call(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of its tensors alone, in the order of `_facts`."""

    def call(*tensors: Tensor) -> Any:
        left = list(tensors)
        modules: list[tuple[Any, dict[str, Tensor]]] = []

        def given(arg: Any) -> Any:
            if isinstance(arg, torch.nn.Module):
                own = [n for n, _ in arg.named_parameters()] + [n for n, _ in arg.named_buffers()]
                modules.append((arg, {name: left.pop(0) for name in own}))
                return arg
            return left.pop(0) if isinstance(arg, torch.Tensor) else arg

        positional = [given(arg) for arg in args]
        keywords = {name: given(arg) for name, arg in named.items()}
        run = functools.partial(function, *positional, **keywords)
        for module, state in modules:
            run = functools.partial(torch.func.functional_call, _Held(module, run), _prefixed(state), ())
        return run()

    return call


class _Held(torch.nn.Module):
    """A call with a module whose state `functional_call` replaces."""

    def __init__(self, module: Any, run: Callable[[], Any]) -> None:
        super().__init__()
        self.module, self.run = module, run

    def forward(self) -> Any:
        return self.run()


def _prefixed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{name}": tensor for name, tensor in state.items()}


def _parameters(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """The names of the tensors, in the order of `_facts`."""
    if hasattr(function, "names"):  # of a cut
        return list(function.names)
    code = getattr(function, "__code__", None)
    known = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    known += [f"x{i}" for i in range(len(known), len(args))]
    found: list[str] = []
    for name, arg in (*zip(known, args, strict=False), *named.items()):
        if isinstance(arg, torch.nn.Module):
            found += [n for n, _ in arg.named_parameters()] + [n for n, _ in arg.named_buffers()]
        elif isinstance(arg, torch.Tensor):
            found.append(name)
    return found


def _title(function: Callable[..., Any], bound: Any) -> str:
    if bound is not None:
        return type(bound).__name__
    return str(getattr(function, "__qualname__", type(function).__name__)).rpartition("<locals>.")[2]


def _spec_name(title: str) -> str:
    """LlamaRMSNorm -> llama_rms_norm."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", title)
    return names_for(words).lower()


def _rows_of(sizes: Sequence[Any], dtypes: Sequence[Any]) -> int | None:
    """The tensor whose rows are the kernel's: of floating point, with the most sizes, then elements."""
    found, most = None, (0, 0)
    for i, (shape, dtype) in enumerate(zip(sizes, dtypes, strict=True)):
        count = 1
        for size in shape:
            count = count * size
        if dtype.is_floating_point and shape and (len(shape), count) > most:
            found, most = i, (len(shape), count)
    return found


def _pattern(sizes: Sequence[Any], rows_of: int) -> Facts:
    """Which sizes are the same as which of the rows' tensor, and which are 1."""
    first = sizes[rows_of]
    rows = 1
    for size in first[:-1]:
        rows = rows * size
    known = [1, *first, rows]
    found: list[Any] = []
    for shape in (first, *sizes):
        codes: list[int] = []
        for size in shape:
            code = -1
            for i, other in enumerate(known):
                if size == other:
                    code = i
                    break
            codes.append(code)
        found.append(tuple(codes))
    return tuple(found)


def _lasts(sizes: Sequence[Any], pattern: Facts, rows_of: int) -> Facts:
    """The last sizes that a trace may hold for alone: of the rows' tensor; where one has others, of all matrices."""
    has_others = False
    for codes in pattern:
        has_others = has_others or -1 in codes
    found: list[int] = []
    for place, shape in enumerate(sizes):
        is_asked = place == rows_of or (has_others and len(shape) > 1)
        found.append(len(range(shape[-1])) if is_asked else 0)  # int() would stay a compiler's symbol
    return tuple(found)


def _stand_ins(pattern: Facts) -> list[tuple[int, ...]]:
    """Sizes that are the same, and 1, where those of a pattern are."""
    first, *others = pattern
    known = [1, *_SIZES[: len(first)], 0]
    known[-1] = math.prod(known[code] for code in first[:-1])
    return [tuple(_SIZES[-1] if code < 0 else known[code] for code in codes) for codes in others]


def takes_a_kernel(tensors: Sequence[Tensor]) -> bool:
    return bool(tensors) and tensors[0].is_cuda and all(t.dtype != torch.float64 for t in tensors)
