"""What the package remembers of shapes is bounded: a program that meets new ones all day must not fill its memory."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import normgen
from normgen.operators.forms import Uses
from normgen.program import source
from normgen.program.source import problem_for
from normgen.python.remembered import Remembered
from normgen.schedule import legality, policy
from normgen.spec.reader import load

SHAPES = 5000
# The only memories without a bound: of what there are few, however many shapes are asked for.
UNBOUNDED = {
    "the package's own files, and what this machine has": {
        "choice/ranker.py", "codegen/library.py", "codegen/templates/__init__.py", "cost/constants.py",
        "cpu/compiler.py",
        "cuda/captured.py", "cuda/driver.py", "cuda/nvrtc.py", "export/header.py", "jax/functional.py",
        "measure/chains/kernels.py", "measure/chains/matmul.py", "records/validity.py", "report/*",
        "suites/jobs.py", "torch/functional.py",
    },
    "dtypes": {"jax/calls.py"},
    "specs that are operators, which torch and JAX never forget": {
        "jax/operators.py", "torch/gated.py", "torch/operators.py",
    },
    "kernels that an executable of XLA may call": {"jax/target.py"},
}  # fmt: skip


def unbounded(tree: ast.AST) -> list[int]:
    """Lines of `@cache`, `functools.cache(..)` and `lru_cache(maxsize=None)`."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="functools"), attr="cache"):
                lines.append(node.lineno)
            case ast.FunctionDef() if any(isinstance(d, ast.Name) and d.id == "cache" for d in node.decorator_list):
                lines.append(node.lineno)
            case ast.keyword(arg="maxsize", value=ast.Constant(value=None)):
                lines.append(node.lineno)
    return lines


def test_a_memory_without_a_bound_is_one_of_those_that_have_a_reason() -> None:
    root = Path(normgen.__file__).parent
    known = [name for names in UNBOUNDED.values() for name in names]
    met = set()
    for file in root.rglob("*.py"):
        text = file.read_text()
        lines = unbounded(ast.parse(text)) if "cache" in text else []
        found = [name for name in known if file.relative_to(root).match(name)]
        assert not lines or found, f"{file.relative_to(root)}:{lines[0]}: a memory that grows without a bound"
        met.update(found if lines else ())
    assert met == set(known)


def test_what_follows_from_a_problem_is_kept_of_the_last_1024_of_5000() -> None:
    problem = problem_for(load("layernorm"), shape="8x64")
    memories = (
        source.written_program,
        source.stages_of,
        legality.has_variance,
        legality.has_softmax,
        legality.reduces_rows,
        policy._is_short_norm,
    )
    cheap = [source.written_program, legality.reduces_rows]
    for rows in range(1, SHAPES + 1):
        asked = replace(problem, rows=rows)
        for memory in cheap:
            memory(asked)
    for memory in memories:
        assert memory.cache_info().maxsize == 1024
        assert memory.cache_info().currsize <= 1024
    assert all(memory.cache_info().currsize == 1024 for memory in cheap)


def test_the_oldest_shape_makes_room_for_a_new_one() -> None:
    known = Remembered()
    for shape in range(SHAPES):
        known[shape] = f"{shape}"
    assert list(known) == list(range(SHAPES - known.most, SHAPES))
    known[SHAPES - 1] = "again"
    assert (len(known), known[SHAPES - 1], known.get(0)) == (4096, "again", None)


def test_what_is_made_once_is_made_again_when_it_was_forgotten() -> None:
    known, made = Remembered(most=2), []

    def double(number: int) -> int:
        made.append(number)
        return 2 * number

    assert [known.once(double, number) for number in (1, 2, 1, 3, 1)] == [2, 4, 2, 6, 2]
    assert made == [1, 2, 3, 1]


def test_5000_shapes_leave_4096_entries_of_an_operator_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both directions; what a call computes is no matter here."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import gc

    import normgen.torch as ng
    from normgen.torch.calls import Ready
    from normgen.torch.eager import EagerCall
    from normgen.traced.torch_formulas import TorchFunction

    def nothing(self: TorchFunction, tensors: dict[str, object], _: object) -> dict[str, object]:
        return {use.name: tensors[self.reads[0].name].clone() for use in self.writes}  # type: ignore[attr-defined]

    monkeypatch.setattr(TorchFunction, "__call__", nothing)
    text = 'name = "squared"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "x * x"\n'
    made = ng.operator(text)
    kinds = (Ready, EagerCall, Uses)
    before = [sum(type(o) is kind for o in gc.get_objects()) for kind in kinds]
    for cols in range(1, SHAPES + 1):
        y = made(torch.empty(1, cols, requires_grad=True))
        if cols % 4 == 0:
            y.backward(torch.empty(1, cols))
    del y
    after = [sum(type(o) is kind for o in gc.get_objects()) for kind in kinds]
    calls, steps, uses = (now - then for now, then in zip(after, before, strict=True))
    assert len(made.operators.calls.known) == 4096
    assert 1024 < steps <= 4096 - 1024  # a call has a step and what is ready for it, every fourth a gradient too
    assert 1024 < calls <= 4096
    assert 0 < uses <= 4  # of each direction, and those that what was made before they were forgotten still holds
