"""The suite `models` has the widths of the models that `models.toml` lists, and no others."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from normgen.suites.suite import Entry, Suite, load_suite

LIST = Path(__file__).with_name("models.toml")
MODELS: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["model"]
KEYS = {"name", "seen", "norm", "hidden", "activation", "intermediate", "vocabulary", "heads", "latent"}

TOKENS = (1, 64, 4096)
FEW_AND_MANY = (64, 4096)  # where one token is a launch and little else
HEADS = 32  # of a token, in most models that normalise them
GROUP = 128  # columns that share a scale


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("models")


def widths(name: str, **which: str) -> set[int]:
    """Of the models that are such."""
    values = [m[name] for m in MODELS if name in m and which.items() <= m.items()]
    return {width for value in values for width in (value if isinstance(value, list) else [value])}


def by(rows: Iterable[int], cols: Iterable[int]) -> set[str]:
    return {f"{r}x{c}" for r in rows for c in sorted(cols)}


def shapes(entries: Iterable[Entry]) -> set[str]:
    return {entry.shape for entry in entries}


def test_every_model_says_where_its_widths_were_seen() -> None:
    assert len(MODELS) >= 30
    assert len({m["name"] for m in MODELS}) == len(MODELS)
    for model in MODELS:
        assert KEYS >= model.keys() >= {"name", "seen", "norm", "hidden"}, model["name"]
        assert model["seen"].startswith(("litgpt, ", "transformers, ", "https://github.com/")), model["name"]
        assert ("activation" in model) == ("intermediate" in model), model["name"]


def test_the_suite_has_each_width_of_each_model_and_no_other(suite: Suite) -> None:
    rms, gemma = widths("hidden", norm="rmsnorm"), widths("hidden", norm="gemma_rmsnorm")
    heads = {norm: by([HEADS * t for t in TOKENS], widths("heads", norm=norm)) for norm in ("rmsnorm", "gemma_rmsnorm")}
    expected = {
        "rmsnorm fwd": by(TOKENS, rms | widths("latent")) | heads["rmsnorm"],
        "gemma_rmsnorm fwd": by(TOKENS, gemma) | heads["gemma_rmsnorm"],
        "add_rmsnorm fwd": by(TOKENS, rms),
        "add_rmsnorm fwd in place": by([64], rms),
        "rmsnorm_to_fp8 fwd": by(FEW_AND_MANY, rms),
        "add_rmsnorm_to_fp8_group fwd": by(FEW_AND_MANY, {cols for cols in rms if cols % GROUP == 0}),
        "layernorm fwd": by(FEW_AND_MANY, widths("hidden", norm="layernorm")),
        "softmax fwd": by([64], widths("vocabulary")),
        "rmsnorm bwd": by([4096], rms),
        "layernorm bwd": by([4096], widths("hidden", norm="layernorm")),
    }
    for kind in sorted({m["activation"] for m in MODELS if "activation" in m}):
        expected[f"{kind} fwd"] = by(FEW_AND_MANY, widths("intermediate", activation=kind))

    found: dict[str, set[str]] = {}
    for entry in suite.entries:
        problem = entry.problem
        place = " in place" if problem.in_place else ""
        found.setdefault(f"{problem.spec.name} {problem.direction.short}{place}", set()).add(entry.shape)
    assert found == expected


def test_what_is_written_is_what_a_model_needs(suite: Suite) -> None:
    """Inference takes no statistics; training reads those that the forward pass saved."""
    for entry in suite.entries:
        problem = entry.problem
        written = {t.name for t in problem.tensors if t.is_written}
        assert problem.dtype.name == "bf16", entry.label
        if problem.direction == "forward":
            assert written <= {"y", "h", "q", "scale"}, entry.label
        else:
            assert "dx" in written, entry.label


def test_the_widths_that_most_models_share_come_first(suite: Suite) -> None:
    """A run that ends early has them."""
    first = suite.entries[:100]
    kinds = {e.problem.spec.name for e in first}
    assert kinds >= {"rmsnorm", "add_rmsnorm", "swiglu", "softmax", "layernorm", "add_rmsnorm_to_fp8_group"}
    each = Counter(width for m in MODELS if m["norm"] == "rmsnorm" for width in m["hidden"])
    most = [width for width, _ in each.most_common(4)]
    for op in ("rmsnorm", "add_rmsnorm"):
        assert shapes(e for e in first if e.op == op) >= by(TOKENS, most)
