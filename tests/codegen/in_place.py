"""Which outputs of a problem may take the place of which inputs."""

from __future__ import annotations

from normgen.problem.problem import Problem


def pairs_of(problem: Problem) -> dict[str, str]:
    """As many as there are: each written tensor over the first read one that is alike, and that none has taken."""
    found: dict[str, str] = {}
    for written in (t for t in problem.elem_tensors if t.is_written):
        alike = (t.name for t in problem.elem_tensors if not t.is_written and t.dtype == written.dtype)
        read = next((name for name in alike if name not in found.values()), None)
        if read:
            found[written.name] = read
    return found
