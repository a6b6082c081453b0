"""A question: what is asked for, as plain values. Each fact of it stands here, and every list of the facts follows.

Asked     how a fact is asked for: the keywords of `kernel`, `tune` and `make_problem`, the command line's options
Question  how it is kept: the key of a record, its line, the names of files
A promise (`PROMISES`) is a keyword in `Asked` and a field of `Terms`; the module that keeps it reads the field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypedDict, cast, get_type_hints

from normgen.errors import UsageError

PLAIN_ALIGN = 16  # bytes; what allocators give


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"

    @property
    def short(self) -> str:
        return {"forward": "fwd", "backward": "bwd"}[self.value]


class Option(NamedTuple):
    """A fact on the command line, and its default anywhere.

    kind     str; int; bool, a flag; tuple, names joined by commas; dict, pairs of names
    help     None: the option's values say it
    example  of a pair
    several  the option is said once for each pair, not once for all
    option   the one that says it, where that has another name, and other values
    """

    kind: type
    default: Any
    help: str | None
    example: str = ""
    several: bool = False
    option: str = ""


Names = Collection[str]
Stored = Mapping[str, Any] | None
Pairs = Mapping[str, str] | None
Size = int | None
_IN_PLACE = "h=residual: the output h overwrites that input."
_LAYOUT = "scale=column_major, packed, swizzled: how an output of groups lies; w=cols_inner: a matrix."
_AXIS = "Reduce this axis of --shape, 0 the first: the last one if left out."
_INNER = "inner=4096: the length of the axis that a product sums."


class Asked(TypedDict, total=False):
    """What may be asked of a problem besides its spec and shape; what is left out is as in `make_problem`.

    dtype      stored dtype of the first input, by name or a library's object for it
    dtypes     of tensors, by name, where others differ
    direction  forward | backward
    without    optional tensors that are not there
    gradients  backward only: the tensors to differentiate with respect to (default: every input and parameter)
    in_place   written tensor -> the read tensor whose memory it takes: {"h": "residual"}
    layout     written tensor of groups -> how it lies in memory (`ScaleLayout`): {"scale": "column_major"};
               matrix -> the order of its axes: {"w": "cols_inner"}
    inner      length of the axis inner, where a tensor has it
    col_stride  elements from one of a row to its next, where another axis lies behind that of the columns (`Terms`)
    batches    of equally many rows, where a tensor has a row for each (default: the first size of three or more);
               heads, where one has a row for each of those (default: the last size but one of three or more)
    The other facts are those of `Terms`.
    """

    dtype: Annotated[Any, Option(str, "f32", "f32, f16 or bf16, or fp32, half, ...: of the first input.")]
    dtypes: Annotated[Stored, Option(dict, None, "Where others differ: weight=f32,bias=f32.", "weight=f32")]
    direction: Annotated[str, Option(Direction, Direction.FORWARD.value, None)]
    without: Annotated[Names, Option(tuple, (), "Optional tensors that are absent: bias,mean.")]
    gradients: Annotated[Names | None, Option(tuple, None, "Backward: differentiate by these only: x, or weight,bias.")]
    accumulate: Annotated[bool, Option(bool, False, "Backward: add to the gradients instead of overwriting them.")]
    deterministic: Annotated[bool, Option(bool, False, "The same bits in every run: no atomics on sums.")]
    batch_invariant: Annotated[bool, Option(bool, False, "A row's bits depend on no other row, nor on where it lies.")]
    in_place: Annotated[Pairs, Option(dict, None, _IN_PLACE, "h=residual", True)]
    layout: Annotated[Pairs, Option(dict, None, _LAYOUT, "w=cols_inner", True)]
    col_stride: Annotated[int, Option(int, 1, _AXIS, "", False, "axis")]
    inner: Annotated[Size, Option(int, None, _INNER, "", True, "size")]
    pitch: Annotated[Size, Option(int, None, "Elements from row start to row start (default: cols).")]
    batches: Annotated[Size, Option(int, None, "How many; or heads (default: first, or last, size of rows).")]
    align: Annotated[int, Option(int, PLAIN_ALIGN, "Bytes that divide base pointers.")]
    stable_parameters: Annotated[bool, Option(bool, False, "Promise: no kernel still running writes parameters.")]


ASKED: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Asked, include_extras=True).items()
}
PROMISES = tuple(name for name, option in ASKED.items() if option.kind is bool)
_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    tuple: ("names of tensors", lambda value: isinstance(value, Collection) and _are_names(value)),
    dict: ("a mapping of a tensor's name", lambda value: isinstance(value, Mapping) and _are_names(value)),
    Direction: ("forward or backward", lambda value: isinstance(value, str)),
}
_EXAMPLES = {
    "dtypes": '{"weight": "float32"}',
    "in_place": '{"h": "residual"}, where h overwrites residual',
    "layout": '{"scale": "column_major"}',
}


def whole(question: Mapping[str, Any], function: str) -> Asked:
    """A question with every fact, as it is asked or by default.

    Raises TypeError for a keyword that is no fact, UsageError as `check_kinds`.
    """
    if unknown := [name for name in question if name not in ASKED]:
        raise TypeError(f"{function}() got an unexpected keyword argument '{unknown[0]}'")
    check_kinds(question)
    return cast(Asked, {name: question.get(name, option.default) for name, option in ASKED.items()})


def check_kinds(question: Mapping[str, Any]) -> None:
    """Raise UsageError for a fact that is no flag, names or mapping where it has to be: "no" would promise something.

    Sizes and dtypes are checked where they are read, against the spec.
    """
    for name, value in question.items():
        option = ASKED.get(name)
        if option is None or option.kind not in _KINDS or (value is None and option.default is None):
            continue
        what, fits = _KINDS[option.kind]
        values = value.values() if name in ("in_place", "layout") and isinstance(value, Mapping) else ()
        if not fits(value) or not _are_names(values):
            raise UsageError(f"{name} is {what}", received=repr(value), hint=_EXAMPLES.get(name))


def _are_names(found: Collection[Any]) -> bool:
    return all(isinstance(one, str) for one in found)


def _promise(description: str, said: str = "") -> Any:
    """A field that is left out of a record's line unless it is promised, with its words in the schema of records."""
    return field(default=False, metadata={"description": f"promised: {description}", "said": said})


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a question and its problem have in the same words.

    pitch     distance between row starts of every tensor of rows or batches, in elements; >= cols. Of rows side by side
              that between one col_stride of them and the next; >= cols * col_stride
    align     bytes every base pointer is a multiple of; one of row values of its element's size
    any_cols  cols is a run-time argument of the kernel (the general fallback), not a constant; such a kernel takes null
              for optional tensors whose `absent` formula is a number, and writes no gradient of them then
    accumulate  the written gradients are added to, not overwritten
    deterministic  the same bits in every run: no atomics on sums. Only set where there are sums over rows; all else
                is summed in a fixed order anyway
    batch_invariant  a row's bits depend neither on how many rows there are nor on which of them it is
    stable_parameters  the caller promises that no kernel which may still run at the launch writes the column
                       parameters (weights at inference): a dependent launch may read them before it waits
    inner     length of the axis inner, which a product of matrices sums; 0: no tensor of the spec has it
    col_stride  elements from one of a row to its next. 1: they lie side by side. Else so many rows lie side by side,
              and element (r, c) at r // col_stride * pitch + c * col_stride + r % col_stride: an axis in the middle is
              reduced, or the first one
    """

    direction: Direction = Direction.FORWARD
    rows: int
    cols: int
    pitch: int
    align: int = PLAIN_ALIGN
    any_cols: bool = False
    accumulate: bool = False
    deterministic: bool = _promise("the same bits in every run")
    batch_invariant: bool = _promise(
        "a row's bits depend neither on how many rows there are nor on which of them it is", "batch-invariant"
    )
    stable_parameters: bool = _promise("no kernel that may still run at the launch writes the column parameters")
    inner: int = 0
    col_stride: int = 1

    @property
    def promises(self) -> tuple[str, ...]:
        """Those that are made."""
        return tuple(name for name in PROMISES if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Question(Terms):
    """One kernel that somebody wants, as its records say it.

    op        the spec's name, and spec_sha256 the digest of its text
    dtypes    of every tensor of the launch, in ABI order, and beside a gradient those that it stands for as well
    in_place  (written tensor, the read tensor whose memory it takes)
    layout    (tensor of groups, its layout), of those that are not row-major, and (matrix, its order) where another
              than the spec's
    batches   of equally many rows, or heads; 1 where no tensor has a row for each
    """

    op: str
    spec_sha256: str
    dtypes: tuple[tuple[str, str], ...]
    in_place: tuple[tuple[str, str], ...] = ()
    layout: tuple[tuple[str, str], ...] = ()
    batches: int = 1

    @staticmethod
    def of(line: Mapping[str, Any]) -> Question:
        """That of a record's parsed line, or of a sweep's header."""
        facts = {name: line[name] for name in LINE if name in line}
        facts |= {name: tuple(line[name].items()) for name in _PAIRS if name in line}
        return Question(**facts | {"direction": Direction(line["direction"])})

    def as_dict(self) -> dict[str, Any]:
        """In a record's line: a promise only where it is made, batches, inner and places only where there are some."""
        plain = {name: self._plain(name) for name in LINE if name not in _LEFT_OUT or self._is_said(name)}
        return plain | {"direction": self.direction.value}

    def slot(self) -> tuple[Any, ...]:
        """Everything but the spec's hash: a new text of a built-in spec replaces the lines of the old one."""
        head = (self.op, self.direction.value, self.cols, self.rows)
        return (*head, *(getattr(self, name) for name in LINE[len(_FIRST) :]))

    def arguments(
        self, *, dtype: str, dtypes: Mapping[str, str], without: Collection[str], gradients: Collection[str] | None
    ) -> dict[str, Any]:
        """The arguments of `problem_for` behind the spec, and of `tune` behind `op`: values that JSON has.

        The tensors of `dtypes` are those that take part, by the spec's names; the other three are as in `Asked`.
        """
        asked = {
            "shape": f"{self.rows}x{self.cols}",
            "dtype": dtype,
            "dtypes": dict(dtypes),
            "direction": self.direction.value,
            "without": list(without),
            "gradients": None if gradients is None else list(gradients),
            "pitch": self.pitch,
            "align": self.align,
        }
        return asked | {name: self._plain(name) for name in _UNUSUAL if self._is_said(name)}

    @property
    def flags(self) -> list[str]:
        """What is true of it, in words."""
        return [words for name, words in _FLAGS.items() if getattr(self, name)]

    @property
    def present(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.dtypes)

    @property
    def packed(self) -> bool:
        return self.pitch == self.cols * self.col_stride

    def _plain(self, name: str) -> Any:
        value = getattr(self, name)
        return dict(value) if name in _PAIRS else value

    def _is_said(self, name: str) -> bool:
        return bool(getattr(self, name) != _DEFAULTS[name])


TERMS = tuple(fact.name for fact in fields(Terms))
_PAIRS = ("dtypes", "in_place", "layout")
# A record's line keeps the order in which the first records had their facts, and later ones behind them.
_FIRST = ("op", "spec_sha256", "direction", "rows", "cols")
_LAST = ("in_place", "layout", "batches", "inner", "col_stride")
LINE = (*_FIRST, "dtypes", *(name for name in TERMS if name not in {*_FIRST, *_LAST}), *_LAST)
DESCRIBED = {fact.name: fact.metadata["description"] for fact in fields(Terms) if fact.metadata}
_DEFAULTS = {fact.name: fact.default for fact in fields(Question)}
_LEFT_OUT = {*DESCRIBED, *_LAST}  # of a line, where they have their defaults
_UNUSUAL = (*("batches", "inner", "col_stride"), *PROMISES, *("in_place", "layout", "any_cols"))
_FLAGS = {
    fact.name: fact.metadata.get("said") or fact.name.replace("_", " ")
    for fact in fields(Terms)
    if fact.default is False
}
