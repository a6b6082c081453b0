"""TOML -> Spec, strictly: every unknown key, name or value is an error with file, line and known names.

A spec needs `name`, `[tensors]` and `[formulas]`; everything else has a default (see `load`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from normgen.dtypes import F32, FLOATS
from normgen.dtypes import dtype as dtype_named
from normgen.errors import SpecError, UsageError, did_you_mean
from normgen.files.names import NamePart, is_plain, name_part
from normgen.files.shipped import shipped
from normgen.knobs import KNOBS, knob_value
from normgen.spec import checks
from normgen.spec.instead import instead_of_group, instead_of_key, instead_of_role
from normgen.spec.names import refusal
from normgen.spec.spec import GROUPED, ORDERS, ROW_FAMILIES, Formula, Ranges, Role, Spec, Tensor
from normgen.spec.toml_lines import KeyPath, key_lines, parse_toml, read_text

_TOP_KEYS = ("name", "summary", "paper", "tensors", "scalars", "formulas", "space", "backward", "accuracy")
_OWN = (  # float32 unless they say otherwise
    *(Role.ROW_INPUT, Role.BATCH_INPUT, Role.HEAD_INPUT, Role.SCALAR_INPUT, Role.SCALAR_PARAMETER),
    *(Role.ROW_OUTPUT, Role.SCALAR_OUTPUT, Role.GROUP_STATISTIC),
)
_FIXED = {
    Role.STATISTIC: ("f32", "statistics are always f32"),
    Role.SCALAR_OUTPUT: ("f32", "scalar outputs are always f32"),
    Role.SEED: ("i64", "a seed is always i64: all of its 64 bits are used"),
}
_BACKWARD = "backward"  # within [space]: what is searched for backward kernels
_TENSOR_KEYS = ("role", "axes", "group", "optional", "absent", "dtypes", "follows", "doc")
LARGEST_GROUP = 2**31 - 1  # as of cols
MOST_ENTRIES = 256  # of [tensors], [scalars], [formulas]; the largest spec that ships has 8


def builtin_folder() -> Path:
    """The specs that come with normgen."""
    return shipped("specs")


def list_specs(folders: Sequence[str | Path] = ()) -> dict[str, Path]:
    """Spec name -> file, sorted by name; an earlier folder wins, the built-in specs come last."""
    found: dict[str, Path] = {}
    for folder in (*map(Path, folders), builtin_folder()):
        for file in sorted(folder.glob("*.toml")):
            found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def list_presets() -> dict[str, Path]:
    """Spec name -> file of the specs with the bits of one library, sorted by name: `specs/presets`."""
    return {file.stem: file for file in sorted((builtin_folder() / "presets").glob("*.toml"))}


def _file_of(name: str, folders: Sequence[str | Path] = ()) -> Path | None:
    """As `list_specs` and then `list_presets` have it, without a look at all of them."""
    for folder in (*map(Path, folders), builtin_folder(), builtin_folder() / "presets"):
        if os.path.isfile(file := folder / f"{name}.toml"):  # Path.is_file raises for a name that is too long
            return file
    return None


def load(path_or_name: str | Path, folders: Sequence[str | Path] = ()) -> Spec:
    """The checked spec of a TOML file, or of the built-in (or `folders`') spec, or the preset, of that name.

    Short forms: `x = "input"` for `x = { role = "input" }`. Defaults: dtypes f32, f16 and bf16; a tensor without
    `dtypes` follows the first input; what has no columns is f32; a knob that [space], or for
    backward kernels [space.backward], does not name takes its default values.

    Errors: SpecError with file and line; UsageError when there is no such file or name.

    Raises UsageError for an unknown name, SpecError with file and line for a spec that is wrong.
    """
    is_path = isinstance(path_or_name, Path) or path_or_name.endswith(".toml") or "/" in path_or_name
    file = Path(path_or_name) if is_path else _file_of(str(path_or_name), folders)
    if file is None:
        name = str(path_or_name)
        if "." in name:
            hint = "a spec file ends in .toml, a spec's name has no dot"
            raise UsageError("no such spec, and no spec file", received=name, hint=hint)
        slip = did_you_mean(name, list_presets() | list_specs(folders)).partition("known names: ")[0]
        raise UsageError("unknown spec", received=name, hint=f"{slip}`normgen list` has all of them")
    spec = parse(read_text(file, what="spec"), file=str(file))
    if not is_path and spec.name != path_or_name:
        rule = "a spec that is found by name has the name of its file"
        raise SpecError(rule, file=str(file), line=1, received=spec.name, hint=f'name = "{path_or_name}"')
    return spec


def parse(text: str, *, file: str = "<spec>") -> Spec:
    """The checked spec of a TOML text; `file` is what error messages call it."""
    return _parsed(text.replace("\r\n", "\n"), file)


@lru_cache(maxsize=256)
def _parsed(text: str, file: str) -> Spec:
    """Most commands, and every call of an operator, ask for the same few specs again."""
    data = parse_toml(text, file=file)
    return replace(_Reader(data, key_lines(text), file).read(_digest(data)), text=text)


def _digest(data: Mapping[str, Any]) -> str:
    """sha256 of what a spec says of its kernels: without what is searched and what values of scalars are proven."""
    said = {key: value for key, value in data.items() if key != "space"}
    if isinstance(scalars := said.get("scalars"), dict):
        plain = {n: entry.get("default") if isinstance(entry, dict) else entry for n, entry in scalars.items()}
        said["scalars"] = plain
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()


def is_built_in(spec: Spec) -> bool:
    """Whether a spec of this name and meaning comes with normgen."""
    file = _file_of(spec.name)
    return file is not None and load(file).sha256 == spec.sha256


class _Reader:
    def __init__(self, data: dict[str, Any], lines: Mapping[KeyPath, int], file: str) -> None:
        self.data = data
        self.lines = lines
        self.file = file

    def read(self, sha256: str) -> Spec:
        self.known_keys((), self.data, _TOP_KEYS)
        spec = Spec(
            name=self.spec_name(),
            summary=self.text(("summary",), ""),
            paper=self.text(("paper",), ""),
            tensors=self.tensors(),
            scalars=self.scalars(),
            scalar_ranges=self.scalar_ranges(),
            formulas=self.formulas(),
            knobs=self.knobs(("space",)),
            backward_knobs=self.knobs(("space", _BACKWARD)),
            accuracy_rows=self.names_list("accuracy", "rows", ROW_FAMILIES),
            saved=self.saved(),
            file=self.file,
            sha256=sha256,
        )
        spec = replace(spec, group=checks.group_size(spec), rolls=checks.rolls(spec))
        spec = replace(spec, numbers_columns=checks.numbers_columns(spec))
        lines = {name: self.line(("scalars", name)) for name, _ in spec.scalars}
        kinds = checks.check_spec(spec, scalar_lines=lines)
        totals = (t.name for t in spec.tensors if t.role is Role.SCALAR_OUTPUT)
        return replace(spec, elem_totals=tuple(name for name in totals if kinds[name].by_col))

    # errors and plain values

    def line(self, path: KeyPath) -> int:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, rule: str, path: KeyPath, *, received: object = None, hint: str | None = None) -> SpecError:
        shown = None if received is None else str(received)
        return SpecError(rule, file=self.file, line=self.line(path), received=shown, hint=hint)

    def known_keys(self, path: KeyPath, table: Mapping[str, Any], known: Iterable[str]) -> None:
        for key in table:
            if key not in known:
                where = f" in [{'.'.join(path)}]" if path else ""
                hint = (instead_of_key(key) if path[:1] == ("tensors",) else None) or did_you_mean(key, known)
                raise self.error(f"unknown key '{key}'{where}", (*path, key), hint=hint)

    def table(self, name: str, *, required: bool = False) -> dict[str, Any]:
        found = self.data.get(name)
        if found is None and required:
            raise self.error(f"a spec has a table [{name}]", ())
        if found is not None and not isinstance(found, dict):
            raise self.error(f"[{name}] is a table", (name,), received=repr(found))
        if required and not found:
            raise self.error(f"[{name}] is not empty", (name,))
        if found and len(found) > MOST_ENTRIES:
            raise self.error(f"[{name}] has at most {MOST_ENTRIES} entries", (name,), received=str(len(found)))
        return found or {}

    def text(self, path: KeyPath, default: str) -> str:
        value: Any = self.data
        for key in path:
            value = value.get(key, default)
        return self.checked_text(value, path)

    def checked_text(self, value: Any, path: KeyPath) -> str:
        if not isinstance(value, str):
            raise self.error(f"'{path[-1]}' is a text", path, received=repr(value))
        if not is_plain(value, besides="\n\t"):
            raise self.error(f"'{path[-1]}' holds no control character", path, received=ascii(value))
        return value

    def checked_name(self, name: str, path: KeyPath) -> str:
        if rule := refusal(name):
            raise self.error(rule, path, received=name, hint="choose another name")
        return name

    # the parts of a spec, in file order

    def spec_name(self) -> str:
        if "name" not in self.data:
            raise self.error("a spec has a name", (), hint='the first line reads: name = "..."')
        name = self.text(("name",), "")
        try:
            return name_part(NamePart.OP, name)
        except UsageError as error:
            raise self.error(error.rule, ("name",), received=error.received) from None

    def tensors(self) -> tuple[Tensor, ...]:
        table = self.table("tensors", required=True)
        first_input = next((name for name, entry in table.items() if entry == "input" or _role(entry) == "input"), None)
        return tuple(self.tensor(name, entry, table, first_input) for name, entry in table.items())

    def tensor(self, name: str, entry: Any, table: Mapping[str, Any], first_input: str | None) -> Tensor:
        path = ("tensors", name)
        self.checked_name(name, path)
        fields = {"role": entry} if isinstance(entry, str) else entry
        if not isinstance(fields, dict):
            raise self.error("a tensor is a role or a table", path, received=repr(entry), hint='x = { role = "input" }')
        self.known_keys(path, fields, _TENSOR_KEYS)
        role = self.role(path, fields)
        for key, kind in {"optional": bool, "absent": str, "follows": str, "doc": str}.items():
            if key in fields and not isinstance(fields[key], kind):
                wanted = "true or false" if kind is bool else "a text"
                raise self.error(f"'{key}' is {wanted}", (*path, key), received=repr(fields[key]))
        self.check_optional(path, role, fields)
        return Tensor(
            name=name,
            role=role,
            optional=fields.get("optional", False),
            absent=self.formula_line((*path, "absent"), fields["absent"]) if "absent" in fields else None,
            dtypes=self.dtypes(path, role, fields),
            follows=self.follows(path, role, fields, table, first_input),
            doc=self.checked_text(fields.get("doc", ""), (*path, "doc")),
            line=self.line(path),
            group=self.group(path, role, fields),
            axes=self.axes(path, role, fields),
        )

    def axes(self, path: KeyPath, role: Role, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """The axes in the order of memory; () where they are the role's."""
        if "axes" not in fields:
            return ()
        said, where, orders = fields["axes"], (*path, "axes"), ORDERS.get(role, (role.kind.axes,))
        known = " or ".join(f"[{', '.join(order)}]" for order in orders)
        if not isinstance(said, list) or tuple(said) not in orders:
            raise self.error(f"the axes of a tensor with role {role} are {known}", where, received=repr(said))
        if "group" in fields:
            raise self.error("a value for each group of columns has the axes of its role", where, received=repr(said))
        return tuple(said) if tuple(said) != role.kind.axes else ()

    def group(self, path: KeyPath, role: Role, fields: Mapping[str, Any]) -> int:
        """Columns that share a value; 0 where nothing is said."""
        if "group" not in fields:
            return 0
        size, where = fields["group"], (*path, "group")
        if role not in GROUPED:
            hint = instead_of_group(role)
            raise self.error(f"only a parameter of columns has 'group', not a {role}", where, received=size, hint=hint)
        if type(size) is not int or not 0 < size <= LARGEST_GROUP:
            rule = f"'group' is a number of columns from 1 to {LARGEST_GROUP}"
            raise self.error(rule, where, received=repr(size), hint="group = 128")
        return size

    def role(self, path: KeyPath, fields: Mapping[str, Any]) -> Role:
        value = fields.get("role")
        if value is None:
            raise self.error("a tensor has a role", path, hint=did_you_mean("", Role))
        if value not in list(Role):
            hint = instead_of_role(str(value)) or did_you_mean(str(value), Role)
            raise self.error("unknown role", (*path, "role"), received=value, hint=hint)
        return Role(value)

    def check_optional(self, path: KeyPath, role: Role, fields: Mapping[str, Any]) -> None:
        optional, absent = fields.get("optional", False), fields.get("absent")
        if optional and role is Role.SEED:
            raise self.error("a seed is not optional: no formula stands for its bits", (*path, "optional"))
        if absent is not None and (role.is_written or not optional):
            raise self.error("only an optional tensor that is read has 'absent'", (*path, "absent"), received=absent)
        if optional and absent is None and not role.is_written:
            hint = 'absent = "1" for a factor, absent = "0" for a term'
            raise self.error("an optional tensor that is read says what it is when absent", path, hint=hint)

    def dtypes(self, path: KeyPath, role: Role, fields: Mapping[str, Any]) -> tuple[str, ...]:
        if role in _FIXED:
            dtype, rule = _FIXED[role]
            if fields.get("dtypes", [dtype]) != [dtype]:
                raise self.error(rule, (*path, "dtypes"), received=fields["dtypes"])
            return (dtype,)
        own = role in _OWN and "follows" not in fields
        listed = fields.get("dtypes", ["f32"] if own else [dtype.name for dtype in FLOATS])
        if not isinstance(listed, list) or not listed:
            raise self.error("'dtypes' is a list of dtypes", (*path, "dtypes"), received=repr(listed))
        names = []
        for value in listed:
            try:
                names.append(dtype_named(str(value)).name)
            except UsageError as error:
                raise self.error(error.rule, (*path, "dtypes"), received=repr(value), hint=error.hint) from None
        return tuple(dict.fromkeys(names))

    def follows(
        self,
        path: KeyPath,
        role: Role,
        fields: Mapping[str, Any],
        table: Mapping[str, Any],
        first_input: str | None,
    ) -> str | None:
        name, value = path[-1], fields.get("follows")
        if role in _FIXED:
            if value is not None:
                raise self.error(_FIXED[role][1], (*path, "follows"), received=value)
            return None
        if value is None:
            is_own = name == first_input or "dtypes" in fields or role in _OWN
            return None if is_own else first_input
        if value not in table:
            raise self.error(
                "'follows' names a tensor", (*path, "follows"), received=value, hint=did_you_mean(value, table)
            )
        is_leader = value != name and _role(table[value]) in ("input", None) and _follows(table[value]) is None
        if first_input is not None and not is_leader:
            hint = "follow an input that has its own dtypes"
            raise self.error("a tensor follows the dtype of an input", (*path, "follows"), received=value, hint=hint)
        return str(value)

    def scalars(self) -> tuple[tuple[str, float], ...]:
        found = []
        for name, entry in self.table("scalars").items():
            path = ("scalars", self.checked_name(name, ("scalars", name)))
            if isinstance(entry, dict):
                self.known_keys(path, entry, ("default", "ranges"))
            value = entry.get("default") if isinstance(entry, dict) else entry
            found.append((name, self.float32(value, path, "a scalar's default")))
        return tuple(found)

    def float32(self, value: Any, path: KeyPath, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            hint = "eps = 1e-6, or eps = { default = 1e-6, ranges = [[0, 1e-3]] }"
            raise self.error(f"{what} is a finite number", path, received=repr(value), hint=hint)
        if not F32.holds(value):
            raise self.error(f"{what} must fit float32", path, received=repr(value))
        return float(value)

    def scalar_ranges(self) -> tuple[tuple[str, Ranges], ...]:
        """The ranges of the scalars that have some: pairs of a least and a largest value."""
        found = []
        for name, entry in self.table("scalars").items():
            if not isinstance(entry, dict) or "ranges" not in entry:
                continue
            path, listed = ("scalars", name), entry["ranges"]
            if (
                not isinstance(listed, list)
                or not listed
                or not all(isinstance(r, list) and len(r) == 2 for r in listed)
            ):
                hint = "eps = { default = 1e-6, ranges = [[0, 1e-3]] }"
                rule = "'ranges' is a list of [least, largest]"
                raise self.error(rule, path, received=repr(listed), hint=hint)
            ranges = tuple(
                (self.float32(low, path, "the end of a range"), self.float32(high, path, "the end of a range"))
                for low, high in listed
            )
            if not all(low <= high for low, high in ranges):
                raise self.error("a range is [least, largest]", path, received=repr(listed))
            if not any(low <= entry["default"] <= high for low, high in ranges):
                rule = f"the default of '{name}' lies in one of its ranges"
                raise self.error(rule, path, received=f"{entry['default']!r} and {listed!r}")
            found.append((name, ranges))
        return tuple(found)

    def formulas(self) -> tuple[Formula, ...]:
        found = []
        for name, text in self.table("formulas", required=True).items():
            path = ("formulas", self.checked_name(name, ("formulas", name)))
            if not isinstance(text, str):
                raise self.error("a formula is a text", path, received=repr(text), hint='y = "x * rstd"')
            found.append(Formula(name=name, text=self.formula_line(path, text), line=self.line(path)))
        return tuple(found)

    def formula_line(self, path: KeyPath, text: str) -> str:
        """A formula as one line, whatever number of lines it has in the file.

        A comment is refused: in one line it would hide the rest of the formula.
        """
        if "#" in text or not is_plain(text, besides="\n\t"):
            hint = "say it in a comment of the spec file, above the formula"
            rule = "a formula holds no comment and no control character"
            raise self.error(rule, path, received=ascii(text), hint=hint)
        return " ".join(text.split("\n"))

    def knobs(self, where: KeyPath) -> dict[str, tuple[Any, ...]]:
        """The values of [space], or of [space.backward] within it."""
        space, known = self.table("space"), (*KNOBS, _BACKWARD)
        if where[1:]:
            space, known = space.get(_BACKWARD, {}), tuple(KNOBS)
            if not isinstance(space, dict):
                raise self.error(f"[{'.'.join(where)}] is a table", where, received=repr(space))
        self.known_keys(where, space, known)
        return {name: self.knob((*where, name), values) for name, values in space.items() if name in KNOBS}

    def knob(self, path: KeyPath, values: Any) -> tuple[Any, ...]:
        name = path[-1]
        listed = values if isinstance(values, list) else [values]
        if not listed:
            raise self.error(f"knob '{name}' has at least one value", path)
        try:
            return tuple(dict.fromkeys(knob_value(name, value) for value in listed))
        except UsageError as error:
            raise self.error(error.rule, path, received=error.received, hint=error.hint) from None

    def names_list(self, table_name: str, key: str, known: Iterable[str]) -> tuple[str, ...]:
        table, known = self.table(table_name), tuple(known)
        self.known_keys((table_name,), table, (key,))
        listed = table.get(key, [])
        if not isinstance(listed, list):
            raise self.error(f"'{key}' is a list of names", (table_name, key), received=repr(listed))
        for value in listed:
            if value not in known:
                hint = did_you_mean(str(value), known)
                raise self.error(f"unknown name in '{key}'", (table_name, key), received=repr(value), hint=hint)
        return tuple(dict.fromkeys(listed))

    def saved(self) -> tuple[str, ...]:
        written = {role.value for role in Role if role.is_written and not role.kind.is_groups}
        tensors = self.table("tensors")
        return self.names_list(
            "backward", "saved", [name for name, entry in tensors.items() if _role(entry) in written]
        )


def _role(entry: Any) -> str | None:
    found = entry.get("role") if isinstance(entry, dict) else entry
    return found if isinstance(found, str) else None


def _follows(entry: Any) -> Any:
    return entry.get("follows") if isinstance(entry, dict) else None
