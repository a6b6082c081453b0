"""The one place where handles are made for torch: which of them a call takes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from normgen.problem.question import Direction
from normgen.python.handle import Kernel, kernel
from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec


def handle(
    spec: Spec,
    direction: Direction,
    *,
    rows: int,
    cols: int,
    dtypes: Mapping[str, str],
    present: tuple[str, ...],
    gradients: tuple[str, ...],
    deterministic: bool,
    stable_parameters: bool,
    device: int,
) -> Kernel:
    """A kernel of the spec for these rows; it takes any other number of them too.

    Warns, and raises, as `normgen.kernel`.
    """
    return kernel(
        _named(spec),
        shape=(max(rows, 1), cols),
        dtype=dtypes[spec.inputs[0].name],
        dtypes=dtypes,
        direction=direction.value,
        present=present,
        gradients=gradients if direction is Direction.BACKWARD else None,
        deterministic=deterministic,
        stable_parameters=stable_parameters,
        device=device,
    )


def band(rows: int) -> int:
    """Calls of one band share a handle, whose schedule was made for the rows of the first: at most twice as many."""
    return (rows - 1).bit_length() if rows else -1


def _named(spec: Spec) -> str:
    """A name or a file, which is what `kernel` takes."""
    return spec.name if is_built_in(spec) else str(_file(spec))


@functools.cache
def _file(spec: Spec) -> Path:
    folder = _folder()
    file = Path(folder.name) / f"{spec.name}_{spec.sha256[:16]}.toml"
    file.write_text(spec.text, encoding="utf-8")
    return file


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="normgen_specs_")
