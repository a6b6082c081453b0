"""Which names a spec may give to tensors, scalars and formulas: they reach the emitted CUDA unchanged."""

from __future__ import annotations

import re

_CPP = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return
short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef
typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_CUDA = """
threadIdx blockIdx blockDim gridDim warpSize float16 bfloat16 half float2 float4 uint2 uint4 int2 int4 cg
atomicAdd atomicMax atomicCAS min max abs exp exp2 log log2 sqrt rsqrt tanh erf pow floor ceil round fma fmaf fmaxf
fminf fabsf sqrtf rsqrtf expf exp2f logf log2f tanhf erff powf sin cos tan gamma y0 y1 yn j0 j1 jn signal main std
"""
_EMITTER = """
rows cols row col lane lanes warp warps thread threads block blocks cluster step steps tile tiles stage stages slot
slots shared vector vectors unroll offset index begin end element elements element_index value values state word words
head tail edge has_edge mask rank stream workspace partial partials identity lift combine normgen
load store params edges hold copy
"""
_FORMULA = "minimum maximum absmax sigmoid"


def _words(text: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(text.split(), reason)


RESERVED: dict[str, str] = {
    **_words(_EMITTER, "the emitted kernels use it"),
    **_words(_CUDA, "CUDA C or its maths library uses it"),
    **_words(_CPP, "it is a C++ keyword"),
    **_words(_FORMULA, "it is a function of the formula language"),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LONGEST_NAME = 40


def refusal(name: str) -> str | None:
    """The rule that `name` breaks, or None when a spec may use it."""
    if not _NAME.fullmatch(name):
        return "a name is letters, digits and single inner underscores, and starts with a letter"
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters"
    if name in RESERVED:
        return f"the name '{name}' is reserved: {RESERVED[name]}"
    return None
