"""What stands in the folder of a header already: headers and records of another spec of that name stay.

Two specs may have one name, and then their headers have one file name and one C++ symbol. A header says which spec it
was made from, in its banner; a file of the folder with the same include guard declares the same symbols, whatever the
file is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from normgen.errors import UsageError, needed
from normgen.records.record import Record
from normgen.spec.spec import Spec

RULE = "a folder has the headers and records of one spec of a name"
HINT = "--replace lets the new one take the place of the other; or choose another --output, or another name"
_GUARD = re.compile(r"^#ifndef (NORMGEN_\w+_CU_)$", re.MULTILINE)
_SPEC = re.compile(r"^// spec +\S+, sha256:([0-9a-f]{64})$", re.MULTILINE)


def require_own(guards: Collection[str], spec: Spec, folder: Path, *, before: Collection[str] = ()) -> None:
    """Raises UsageError where a file in the folder declares what these headers will, and is of another spec.

    guards   the include guards of the headers
    before   digests of older texts of the spec, whose headers may be replaced
    """
    with needed("the headers that are there must be readable", hint="choose another --output"):
        for path in sorted(folder.glob("*.cu*")):
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            guard, found = _GUARD.search(text), _SPEC.search(text)
            if guard and found and guard[1] in guards and found[1] not in (spec.sha256, *before):
                raise UsageError(RULE, received=_both(f"{path} is", found[1], spec.file, spec.sha256), hint=HINT)


def others_of(given: Sequence[Record], there: Iterable[Record]) -> list[Record]:
    """Records of a folder whose spec has the name, and another text, of one that is given.

    A built-in spec has one text at a time: what is there of an older one gives way by itself.
    """
    texts = {record.problem.op: (record.problem.spec_sha256, record.spec) for record in given}

    def is_other(record: Record) -> bool:
        sha256, text = texts.get(record.problem.op, (record.problem.spec_sha256, record.spec))
        return sha256 != record.problem.spec_sha256 and bool(text or record.spec)

    return [record for record in there if is_other(record)]


def require_none_of(others: Sequence[Record], given: Sequence[Record], *, files: Iterable[Path], folder: Path) -> None:
    """Raises UsageError that names the given files and the folder where this has records of another spec."""
    if others:
        op, named = others[0].problem.op, ", ".join(map(str, files))
        sha256 = next(record.problem.spec_sha256 for record in given if record.problem.op == op)
        there = f"{folder} has records of {op}"
        raise UsageError(RULE, received=_both(there, others[0].problem.spec_sha256, named, sha256), hint=HINT)


def _both(there: str, theirs: str, given: str, ours: str) -> str:
    return f"{there} of the spec sha256:{theirs[:12]}, {given} of sha256:{ours[:12]}"
