"""A traced function beside its spec, on rows that tell formulas apart. A comparison, not a proof.

In float64 nothing is rounded on either side, neither by the function's conversions nor by the spec's casts: results and
gradients are those of torch's operations as they were recorded, and those of the spec's programs, forward and derived.
Where these are apart, as in rows in which the function saturates and then subtracts, it is asked what roundings alone
change there. As stored, in the dtypes of a call, the function itself runs beside the spec's formulas.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from normgen.errors import NormgenError, UsageError
from normgen.spec.spec import Role
from normgen.torch.calls import dtypes_of, name_of
from normgen.torch.operators import Operator
from normgen.torch.tracing.conditioning import Wide, moved_by_roundings, wide
from normgen.torch.tracing.sampling import randn, samples
from normgen.torch.tracing.values import Traced
from normgen.traced.torch_formulas import torch_function

Tensor = Any
Given = Callable[[Sequence[Tensor]], list[Tensor]]  # the kernel's tensors, of the function's

_SAME = 1e-8  # of a row's largest value, in float64
_ROOM = 16  # times what roundings alone change: a spec says the same in other operations
_GRADIENT = "gradient by "
_TIMES, _ROUNDINGS = 2, 4  # the formulas' error is at most so many times the function's, and so many roundings


@dataclass(frozen=True, kw_only=True)
class StoredShare:
    """One result in the dtypes of a call: the share of elements with the function's bits, and both largest errors.

    An error is one to float64, in roundings of a row's largest value.
    """

    dtype: str
    same: float
    ours: float
    theirs: float

    @property
    def holds(self) -> bool:
        return self.ours <= _TIMES * self.theirs + _ROUNDINGS


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far a spec and its function are apart.

    results, gradients  by name, in float64, as shares of the largest value of a row, or of a parameter's gradient; of
                        what its roundings change where they change more of it than is compared
    worst               where a result or a gradient differs, if one does
    no_gradients        of tensors that have none: why
    stored              of each result
    """

    rows: int
    results: tuple[tuple[str, float], ...]
    gradients: tuple[tuple[str, float], ...]
    no_gradients: str
    stored: tuple[StoredShare, ...]
    worst: str = ""

    @property
    def holds(self) -> bool:
        return all(share <= _SAME for _, share in (*self.results, *self.gradients)) and all(
            one.holds for one in self.stored
        )

    def __str__(self) -> str:
        lines = [f"on {self.rows} rows in float64, as a share of a row's largest value (a comparison, not a proof):"]
        lines += [f"  {name}: {share:.1e}" for name, share in self.results]
        lines += [f"  gradient by {name}: {share:.1e}" for name, share in self.gradients]
        lines += [f"  {self.worst}"] if self.worst else []
        lines += [f"  no gradient: {self.no_gradients}"] if self.no_gradients else []
        for one in self.stored:
            errors = f"off by {one.ours:.1f} roundings at most, the function by {one.theirs:.1f}"
            lines.append(f"as stored, {one.dtype}: {one.same:.1%} of the elements have the function's bits; {errors}")
        return "\n".join(lines)


def compared(found: Traced, made: Operator, given: Given, call: Callable[..., Any]) -> Comparison:
    """The comparison of a traced function, `call` of its tensors, with the operator of its spec."""
    dtypes = [n.meta["val"].dtype for n in found.recorded.raw.graph.nodes if n.op == "placeholder"]
    exact = _Exact(found, made, dtypes)
    asked = [read for read, is_asked in zip(found.reads, exact.asked, strict=True) if is_asked]
    torchs = widened(found.recorded.raw)
    sides: _Sides | None = None
    seen = _Seen()
    stored: list[StoredShare] = []
    refusals: list[str] = []
    generator = torch.Generator(device="cpu").manual_seed(len(dtypes))
    rows = 0
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.enable_grad():
        for tensors in samples(found, dtypes, generator):
            wide_ones = [t.double() if t.is_floating_point() else t for t in tensors]
            try:
                with torch.no_grad():
                    plain = torchs(*[t.clone() for t in wide_ones])
            except (IndexError, RuntimeError) as error:
                refusals.append(str(error).partition("\n")[0])
                continue  # it takes no labels outside the columns
            rows += math.prod(tensors[found.recorded.rows_of].shape[:-1])
            by = [randn(t.shape, generator) if _is_float(t) else None for t in plain]
            if sides is None:
                none = _without_gradient(torchs, wide_ones, by)
                places = tuple(read.place for read in asked if read.place not in none)
                sides = _Sides(
                    torchs=torchs,
                    call=_alike(call, torchs, wide_ones),
                    tail=None if found.tail is None else widened(found.tail),
                    exact=exact,
                    given=given,
                    places=places,
                    constants=frozenset(none),
                )
            names = [
                *(f"result {i}" for i in range(len(plain))),
                *(f"{_GRADIENT}{read.name}" for read in asked if read.place in sides.places),
            ]
            seen.add(names, sides, wide_ones, by, found.recorded.rows_of)
            stored += _stored(found, made, given, call, tensors, list(plain))
    if sides is None:
        rule = "a function that is traced is compared with its spec, and took none of the arguments that were tried"
        raise UsageError(rule, received=refusals[-1] if refusals else "no rows")
    no_gradients = [exact.refusal] if exact.refusal else []
    no_gradients += [f"torch has none by {read.name}" for read in asked if read.place in sides.constants]
    worst = {one.dtype: one for one in sorted(stored, key=lambda s: (s.holds, -s.ours), reverse=True)}
    shares = seen.shares.items()
    return Comparison(
        rows=rows,
        results=tuple((name, share) for name, share in shares if not name.startswith(_GRADIENT)),
        gradients=tuple((n.removeprefix(_GRADIENT), share) for n, share in shares if n.startswith(_GRADIENT)),
        worst=seen.worst,
        no_gradients="; ".join(no_gradients),
        stored=tuple(worst.values()),
    )


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """The function and its spec in float64: each gives its results, and behind them its gradients at `places`."""

    torchs: Any
    call: Any
    tail: Any
    exact: _Exact
    given: Given
    places: tuple[int, ...]
    constants: frozenset[int]

    def function(self, tensors: Sequence[Tensor], by: Sequence[Tensor | None]) -> list[Tensor]:
        """The results as recorded; the gradients of the function itself, where it gives these results in float64."""
        leaves = _leaves(tensors, self.constants)
        with Wide():
            if self.call is None:
                return self.with_gradients(self.torchs(*leaves), leaves, by)
            with torch.no_grad():
                results = self.torchs(*[leaf.detach() for leaf in leaves])
            try:
                found = self.with_gradients(self.call(*leaves), leaves, by)
            except (IndexError, RuntimeError):  # it asks what is in its labels
                found = self.with_gradients(self.torchs(*leaves), leaves, by)
            return [*results, *found[len(results) :]]

    def spec(self, tensors: Sequence[Tensor], by: Sequence[Tensor | None]) -> list[Tensor]:
        leaves = _leaves(tensors, self.constants)
        results = _finished(self.tail, _Applied.apply(self.exact, *self.given(leaves)), leaves)
        return self.with_gradients(results, leaves, by)

    def with_gradients(self, results: Any, leaves: Sequence[Tensor], by: Sequence[Tensor | None]) -> list[Tensor]:
        return [*results, *_gradients(results, [leaves[place] for place in self.places], by)]


class _Seen:
    """The largest shares so far, by the name of what is compared, and where the largest of all was seen."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self.largest, self.worst = _SAME, ""

    def add(
        self, names: Sequence[str], sides: _Sides, tensors: Sequence[Tensor], by: Sequence[Tensor | None], rows_of: int
    ) -> None:
        has_infinities = not bool(tensors[rows_of].isfinite().all())
        ours, theirs = sides.spec(tensors, by), sides.function(tensors, by)
        results = theirs[: len(names) - len(sides.places)]
        pairs: list[tuple[Tensor, Tensor]] = []
        kept = [i for i, other in enumerate(theirs) if isinstance(other, torch.Tensor)]
        for i in kept:
            one, other = ours[i].detach(), theirs[i].detach()
            if names[i].startswith(_GRADIENT):
                one, other = _where_finite(one, other, results)
            elif has_infinities and one.shape == other.shape:
                one = torch.where(other.isnan(), other, one) if other.ndim else other  # a total: of such rows too
            pairs.append((one, other))
        moved: list[Tensor | None] = [None] * len(kept)
        if any(_share(*pair)[0] > _SAME for pair in pairs):
            run = functools.partial(_picked, sides.function, tensors, by, kept)
            moved = list(moved_by_roundings(run, [theirs[i] for i in kept]))
        for i, pair, move in zip(kept, pairs, moved, strict=True):
            share, at = _share(*pair, move)
            self.shares[names[i]] = max(self.shares.get(names[i], 0.0), share)
            if share > self.largest:
                self.largest, self.worst = share, _place(names[i], *pair, at, tensors[rows_of])


def _picked(side: Any, tensors: Sequence[Tensor], by: Sequence[Tensor], kept: Sequence[int]) -> list[Tensor]:
    found = side(tensors, by)
    return [found[i] for i in kept]


def _place(name: str, ours: Tensor, theirs: Tensor, at: int, first: Tensor) -> str:
    """Where a difference is, and what the function was given there."""
    if ours.shape != theirs.shape:
        return f"{name} has the shape {list(ours.shape)}, the function's {list(theirs.shape)}"
    place = torch.tensor(at, dtype=torch.int64, device="cpu")
    index = [int(i) for i in torch.unravel_index(place, theirs.shape)] if theirs.ndim else []
    values = f"{float(ours.reshape(-1)[at]):.6g}, the function's {float(theirs.reshape(-1)[at]):.6g}"
    has_row = len(index) >= first.ndim - 1 and theirs.shape[: first.ndim - 1] == first.shape[:-1] and first.ndim > 1
    if not has_row:
        return f"{name} differs most at {index}: it is {values}"
    place = tuple(index[: first.ndim - 1])
    row = first.detach()[place]
    return f"{name} differs most in row {list(place)}, of values {row.min():.3g} to {row.max():.3g}: it is {values}"


def _finished(tail: Any, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if tail is None:
        return results
    found = tail(*results, *tensors)
    return found if isinstance(found, tuple) else (found,)


def _leaves(tensors: Sequence[Tensor], constants: Collection[int] = ()) -> list[Tensor]:
    """Tensors to ask gradients by, all of floating point but the constants."""
    return [t.detach().requires_grad_(t.is_floating_point() and i not in constants) for i, t in enumerate(tensors)]


def _is_float(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def _without_gradient(torchs: Any, tensors: Sequence[Tensor], by: Sequence[Tensor | None]) -> set[int]:
    """The tensors by which torch has no gradient of the function, such as the weights of classes of a loss."""
    floats = {i for i, t in enumerate(tensors) if t.is_floating_point()}

    def has_one(*places: int) -> bool:
        leaves = _leaves(tensors, {*range(len(tensors))} - {*places})
        try:
            with Wide():
                _gradients(torchs(*leaves), [leaves[i] for i in places], by)
        except RuntimeError:  # so are those that say that a derivative is not implemented
            return False
        return True

    return set() if has_one(*floats) else {i for i in floats if not has_one(i)}


def _alike(call: Callable[..., Any], torchs: Any, tensors: Sequence[Tensor]) -> Callable[..., list[Tensor]] | None:
    """The function itself, where it computes in float64 what was recorded of it in other dtypes; else None."""

    def run(*given: Tensor) -> list[Tensor]:
        return list(torch.utils._pytree.tree_leaves(call(*given)))

    try:
        with Wide(), torch.no_grad():
            one, other = run(*[t.clone() for t in tensors]), torchs(*[t.clone() for t in tensors])
    except Exception:  # whatever it says of tensors of float64, on the CPU
        return None
    pairs = zip(one, other, strict=False)
    same = (
        not isinstance(b, torch.Tensor) or (isinstance(a, torch.Tensor) and _share(a, b)[0] <= _SAME) for a, b in pairs
    )
    return run if len(one) == len(other) and all(same) else None


def _has_gradient(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.requires_grad


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor], by: Sequence[Tensor | None]) -> list[Tensor]:
    ends = [(t, one) for t, one in zip(results, by, strict=True) if _has_gradient(t) and one is not None]
    if not ends or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad([t for t, _ in ends], leaves, [one for _, one in ends], allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


def _where_finite(ours: Tensor, theirs: Tensor, results: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Two gradients, 0 in rows whose results are not finite, and where the function's own gradient is not."""
    good = theirs.isfinite()
    for result in results:
        is_of_rows = isinstance(result, torch.Tensor) and result.ndim > 1
        if is_of_rows and result.ndim == theirs.ndim and result.shape[:-1] == theirs.shape[:-1]:
            good = good & result.isfinite().all(-1, keepdim=True)
    return torch.where(good, ours, 0), torch.where(good, theirs, 0)


class _Exact:
    """The spec's programs in float64, with no rounding.

    asked  of each tensor that the kernel reads, whether its gradient is; `refusal`: why some are not
    """

    def __init__(self, found: Traced, made: Operator, dtypes: Sequence[Any]) -> None:
        self.operators, self.calls = made.operators, made.operators.calls
        # Tensors of the call's dtypes: forms follow from these, not from float64.
        self.stand_ins = tuple(torch.empty((), dtype=dtypes[read.place], device="cpu") for read in found.reads)
        elems = [t.dtype for t, read in zip(self.stand_ins, found.reads, strict=True) if read.role is Role.INPUT]
        self.dtype = elems[0]
        for dtype in elems[1:]:
            self.dtype = torch.promote_types(self.dtype, dtype)
        self.places = [self.operators.written.index(name) for name in found.returns]
        self.names = [tensor.name for tensor in self.calls.reads]
        uses = self.calls.forward(self.operators.written, dtypes_of(self.stand_ins), self.dtype)
        self.written = [use.name for use in uses.writes]
        self.forward = torch_function(uses.problem, is_exact=True)
        every = [
            tensor.has_gradient and dtype.is_floating_point
            for tensor, dtype in zip(self.calls.reads, (t.dtype for t in self.stand_ins), strict=True)
        ]
        self.asked, self.refusal = every, ""
        try:
            if any(every):
                self.operators.kept(every, self.stand_ins, self.dtype)
        except NormgenError as error:
            self.asked, self.refusal = [False] * len(every), error.rule

    def results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            found = self.forward(dict(zip(self.names, tensors, strict=True)))
        return [found[name] for name in self.operators.written]

    def gradients(self, known: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        kept = self.operators.kept(self.asked, self.stand_ins, self.dtype)
        given = {name: known[place] for name, place in zip(kept.saved, kept.places, strict=True)}
        given |= {f"d{name}": t for name, t in zip(self.operators.outputs, cotangents, strict=False)}
        with torch.no_grad():
            found = torch_function(kept.uses.problem, is_exact=True)(given)
        by_name = {name: found[use.name] for use in kept.uses.writes for name in (use.of, *use.also)}
        shapes = dict(zip(self.names, (t.shape for t in known), strict=False))
        return [
            by_name[n].reshape(shapes[n]) if n in by_name and a else None
            for n, a in zip(self.names, self.asked, strict=True)
        ]


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: _Exact, *tensors: Tensor) -> Any:
        results = exact.results(tensors)
        ctx.exact = exact
        ctx.save_for_backward(*tensors, *results)
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        return tuple(results[place] for place in exact.places)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        exact, known = ctx.exact, ctx.saved_tensors
        if not any(exact.asked):
            return None, *[None] * len(exact.asked)
        by_name = dict(zip((exact.operators.written[place] for place in exact.places), cotangents, strict=True))
        return None, *exact.gradients(known, [by_name[name] for name in exact.operators.outputs])


def _share(ours: Tensor, theirs: Tensor, moved: Tensor | None = None) -> tuple[float, int]:
    """The largest difference, as a share of its row's largest value, and its place; infinite where one is another
    infinity, or NaN, than the other.

    moved  by how much roundings alone move each element: a share is one of what they move in a row, where that is more
    """
    ours, theirs = torch.atleast_1d(ours.double()), torch.atleast_1d(theirs.double())
    if ours.shape != theirs.shape:
        return math.inf, 0
    kinds = [t.nan_to_num(3.0, 1.0, -1.0).where(~t.isfinite(), 0) for t in (ours, theirs)]
    if not torch.equal(*kinds):
        return math.inf, int((kinds[0] != kinds[1]).reshape(-1).int().argmax())
    if not theirs.numel():
        return 0.0, 0
    difference = (ours - theirs).nan_to_num(0.0, 0.0, 0.0).abs()
    scale = theirs.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1, keepdim=True)
    if moved is not None:
        scale = scale + torch.atleast_1d(moved).amax(-1, keepdim=True) * (_ROOM / _SAME)
    shares = (difference / (scale + 1e-30)).reshape(-1)
    return float(shares.max()), int(shares.argmax())


def _stored(
    found: Traced,
    made: Operator,
    given: Given,
    call: Callable[..., Any],
    tensors: Sequence[Tensor],
    exact: Sequence[Tensor],
) -> list[StoredShare]:
    def function() -> Sequence[Tensor]:
        return cast(Sequence[Tensor], torch.utils._pytree.tree_leaves(call(*[t.clone() for t in tensors])))

    with torch.no_grad():
        try:
            theirs = function()
        except (RuntimeError, NotImplementedError):
            return []  # torch has an operation of it on other devices only
        tail = None if found.tail is None else _moved(found.tail)
        results = made.decomposition(*given(tensors))
        ours = _finished(tail, results if isinstance(results, tuple) else (results,), tensors)
    shown = []
    moved: list[Tensor] | None = None
    for i, (one, other, want) in enumerate(zip(ours, theirs, exact, strict=True)):
        if not (isinstance(other, torch.Tensor) and other.is_floating_point() and other.numel()):
            continue
        if one.dtype != other.dtype:
            return [StoredShare(dtype=f"{one.dtype}, not {other.dtype}", same=0.0, ours=math.inf, theirs=0.0)]
        shown_one = _stored_one(one, other, want)
        if not shown_one.holds:
            moved = moved_by_roundings(function, theirs) if moved is None else moved
            shown_one = _stored_one(one, other, want, moved[i])
        shown.append(shown_one)
    return shown


def _stored_one(one: Tensor, other: Tensor, want: Tensor, moved: Tensor | None = None) -> StoredShare:
    name, eps = name_of(one.dtype), torch.finfo(one.dtype).eps
    one, other, want = (torch.atleast_1d(t.detach()).double() for t in (one, other, want))
    good = other.isfinite().all(-1, keepdim=True) & want.isfinite().all(-1, keepdim=True)
    scale = want.abs().amax(-1, keepdim=True) * eps + 1e-30
    if moved is not None:
        scale = scale + torch.atleast_1d(moved).amax(-1, keepdim=True)
    errors = [float(torch.where(good, (t - want).abs() / scale, 0).max()) for t in (one, other)]
    same = float((one == other)[good.expand(one.shape)].double().mean()) if good.any() else 1.0
    return StoredShare(dtype=name, same=same, ours=errors[0], theirs=errors[1])


def widened(graph: Any) -> Any:
    """The same operations, in float64 wherever they say another floating-point dtype, on the CPU."""
    found = _moved(graph)
    for node in found.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, wide)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, wide)
    found.recompile()
    return found


def _moved(graph: Any) -> Any:
    found = copy.deepcopy(graph)
    for node in found.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    found.recompile()
    return found
