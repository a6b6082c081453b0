"""How the names of a spec are spelled in emitted text, where none may meet an identifier of the text's own.

The emitter never sees a spec's name. `marked` puts every name of a problem and its program into a mark that no C text
contains, and the emitter builds its identifiers around the marks: þx!_row, row_þmean!, þx!_i. `Spelling` reads the
finished text and replaces the marks. Only then is it known which identifiers the text uses itself, so that no list of
them can be incomplete. A name stays as it is unless an identifier made of it is taken: `shift` becomes `spec_shift`
in the kernels that cut rows by a shift, and stays `shift` in the others.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.program.rewrites.renamed import renamed

# "!" sorts before letters, digits and "_": marked names have the order of the names, and sympy orders terms by names.
# "þ" is one byte of a Python text.
_OPEN, _CLOSE = "þ", "!"
_UNNAMED = "\u00a7"
_WITHIN_WORDS = frozenset(f"{string.ascii_letters}{string.digits}_{_OPEN}{_CLOSE}.")
_APART = {code: " " for code in range(256) if chr(code) not in _WITHIN_WORDS}

_CPP = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false final float for friend goto if import inline int long module
mutable namespace new noexcept not not_eq nullptr operator or or_eq override private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
xor_eq
"""
_CUDA = """
threadIdx blockIdx blockDim gridDim warpSize float16 bfloat16 half float2 float4 uint2 uint4 int2 int4 dim3 cg
cooperative_groups atomicAdd atomicMax atomicCAS min max abs exp exp2 log log2 sqrt rsqrt tanh erf pow floor ceil round
fma fmaf fmaxf fminf fabsf sqrtf rsqrtf expf exp2f logf log2f tanhf erff powf sin cos tan y0 y1 yn j0 j1 jn signal main
std assert linux unix i386
"""
_LANGUAGE = frozenset(f"{_CPP} {_CUDA}".split())

T = TypeVar("T")


def mark(name: str) -> str:
    """The name as it stands in text that is not spelled yet."""
    return f"{_OPEN}{name}{_CLOSE}"


def unnamed(name: str) -> str:
    """The name of a type, as it stands in text until the digest of the type is known."""
    return f"{_UNNAMED}{name}{_UNNAMED}"


def unmarked(text: str) -> str:
    """The text with the names themselves."""
    return _replaced(text, str).replace(_UNNAMED, "")


def _replaced(text: str, spelled: Callable[[str], str]) -> str:
    """The text with something in the place of each mark; one that is cut off stays."""
    first, *parts = text.split(_OPEN)
    halves = (part.partition(_CLOSE) for part in parts)
    return first + "".join(
        f"{spelled(name)}{behind}" if closed else f"{_OPEN}{name}" for name, closed, behind in halves
    )


def words(text: str) -> Iterator[tuple[str, bool]]:
    """The identifiers and numbers of C text, and whether a word is a member of what stands before its dot."""
    for joined in text.translate(_APART).split():
        for number, word in enumerate(joined.split(".")):
            if word := word.lstrip(_CLOSE):
                yield word, number > 0


@lru_cache(maxsize=32)
def marked(problem: Problem, program: RowProgram) -> tuple[Problem, RowProgram]:
    """Both with marks for names. Thousands of schedules share a problem and a few programs."""
    tensors = tuple(
        replace(
            t,
            name=mark(t.name),
            over=mark(t.over) if t.over else "",
            under=mark(t.under) if t.under else "",
            witness=mark(t.witness) if t.witness else "",
        )
        for t in problem.tensors
    )
    return replace(problem, tensors=tensors), renamed(program, mark)


class Spelling:
    """What each marked name of a text becomes: itself, or else spec_<name>, spec2_<name> ...

    All identifiers made of names differ from each other and from the text's own, and none is a word of C++ or CUDA.
    A name within a comment is spelled as in the code.
    """

    def __init__(self, text: str) -> None:
        taken: set[str] = set()
        uses: dict[str, set[tuple[str, str]]] = {}
        for word, is_member in set(words("\n".join(line.partition("//")[0] for line in text.split("\n")))):
            before, is_made, rest = word.partition(_OPEN)
            if is_made:
                name, _, behind = rest.partition(_CLOSE)
                uses.setdefault(name, set()).add((before, behind))
            elif not is_member:  # a member meets nothing outside of its struct
                taken.add(word.removesuffix(_CLOSE))
        self._stems: dict[str, str] = {}
        for name in sorted(uses, key=lambda name: (len(name), name)):
            stem = next(s for s in _stems(name) if _fits(s, uses[name], taken))
            taken |= {before + stem + behind for before, behind in uses[name]}
            self._stems[name] = stem

    def spelled(self, name: str) -> str:
        """What stands for the name where the text names it."""
        return self._stems.get(name, name)

    def within(self, value: T) -> T:
        """A text, or a tuple or dataclass of texts, with every mark replaced."""
        found: Any = value
        if isinstance(value, str):
            found = _replaced(value, self.spelled)
        elif isinstance(value, tuple):
            found = tuple(map(self.within, value))
        elif is_dataclass(value) and not isinstance(value, type):
            found = replace(value, **{f.name: self.within(getattr(value, f.name)) for f in fields(value)})
        return found  # type: ignore[no-any-return]


def _stems(name: str) -> Iterator[str]:
    yield name
    yield f"spec_{name}"
    yield from (f"spec{number}_{name}" for number in count(2))


def _fits(stem: str, uses: set[tuple[str, str]], taken: set[str]) -> bool:
    made = {before + stem + behind for before, behind in uses}
    return len(made) == len(uses) and not made & taken and not any(map(_is_foreign, made))


def _is_foreign(identifier: str) -> bool:
    """Whether the languages, a macro or the executor's shim may give the identifier a meaning in every text."""
    is_macro = identifier.isupper() and len(identifier) > 1
    return identifier in _LANGUAGE or is_macro or identifier.lower().startswith(("normgen", "cuda"))
