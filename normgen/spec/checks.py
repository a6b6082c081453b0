"""What must hold between the parts of a spec: names known, no cycles, nothing unused, kinds that fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from functools import partial

from normgen.dtypes import CASTS, DTYPES, instead_of_dtype
from normgen.errors import SpecError, did_you_mean
from normgen.spec.formula import (
    DEEPEST_SPEC,
    Call,
    Cast,
    Expression,
    Name,
    children,
    depth_of,
    group_of,
    names_in,
    nodes,
    parse_formula,
    roll_of,
    totalled,
)
from normgen.spec.functions import CONDITIONS, CONSTANTS, INNER, PICKS, POSITIONS, RANDOM, TERM
from normgen.spec.instead import instead_of_name
from normgen.spec.kinds import checked_kinds, is_draw
from normgen.spec.spec import Formula, Kind, Role, Spec


def check_spec(spec: Spec, *, scalar_lines: Mapping[str, int]) -> dict[str, Kind]:
    """The kind of every name, of a scalar output that of what it adds up.

    Raises SpecError at the first line that breaks a rule between tensors, scalars and formulas.
    """
    _check_name_clashes(spec, scalar_lines)
    trees = parse_all(spec)
    _check_names(spec, trees)
    _check_casts(spec, trees)
    _check_groups(spec)
    _check_shares(spec)
    _check_seeds(spec, trees)
    _check_totals(spec, trees)
    order = sorted_formulas(spec, trees)
    _check_all_used(spec, trees, scalar_lines)
    _check_depth(spec, trees, order)
    return checked_kinds(spec, dict(_all_formulas(spec)), trees, order)


def parse_all(spec: Spec) -> dict[str, Expression]:
    """Every formula by name; an optional read tensor's `absent` formula under `absent(<tensor>)`."""
    return {name: parse_formula(f.text, file=spec.file, line=f.line) for name, f in _all_formulas(spec)}


def absent_key(name: str) -> str:
    """The key of tensor `name`'s absent formula in `parse_all`."""
    return f"absent({name})"


def _all_formulas(spec: Spec) -> Iterator[tuple[str, Formula]]:
    for formula in spec.formulas:
        yield formula.name, formula
    for tensor in spec.tensors:
        if tensor.absent is not None:
            yield absent_key(tensor.name), Formula(name=tensor.name, text=tensor.absent, line=tensor.line)


def _check_name_clashes(spec: Spec, scalar_lines: Mapping[str, int]) -> None:
    read = {t.name: t.line for t in spec.tensors if not t.role.is_written}
    gradients = {f"d{t.name}": t.name for t in spec.tensors if t.role is not Role.STATISTIC}
    tensors = {t.name: t.line for t in spec.tensors}
    for formula in spec.formulas:
        if formula.name in read:
            rule = f"'{formula.name}' is read (line {read[formula.name]}), so no formula defines it"
            hint = "give the formula a name of its own, and store that as an output, or leave the tensor out"
            raise SpecError(rule, file=spec.file, line=formula.line, hint=hint)
    for name, line in scalar_lines.items():
        if name in tensors or any(f.name == name for f in spec.formulas):
            rule = f"'{name}' names a scalar and something else"
            raise SpecError(rule, file=spec.file, line=line, hint="choose another name for one of them")
    lines = {**{f.name: f.line for f in spec.formulas}, **tensors, **scalar_lines}
    for name, line in lines.items():
        if name in gradients:
            rule = f"the name '{name}' is kept for the gradient of '{gradients[name]}'"
            raise SpecError(rule, file=spec.file, line=line, hint="choose another name")
    if not spec.inputs:
        hint = 'the tensor [rows, cols] that is worked on: x = "input"'
        rule = "a spec has at least one tensor with role input"
        raise SpecError(rule, file=spec.file, line=spec.tensors[0].line, hint=hint)
    if spec.inputs[0].optional:
        hint = "list another input first: its dtype is that of the others"
        raise SpecError("the first input is not optional", file=spec.file, line=spec.inputs[0].line, hint=hint)
    if all(t.optional for t in (*spec.outputs, *spec.statistics)):
        rule = "a spec has at least one output or statistic that is not optional"
        raise SpecError(rule, file=spec.file, line=spec.tensors[0].line, hint='such as y = "output"')


def _check_names(spec: Spec, trees: Mapping[str, Expression]) -> None:
    known = {t.name for t in spec.tensors} | {n for n, _ in spec.scalars} | {f.name for f in spec.formulas}
    known |= CONSTANTS.keys() - (set() if spec.has_inner else {INNER, TERM})
    for key, formula in _all_formulas(spec):
        for used in names_in(trees[key]):
            if used.name not in known:
                rule = f"unknown name '{used.name}' in the formula of '{formula.name}' (column {used.column + 1})"
                hint = instead_of_name(used.name) or did_you_mean(used.name, known)
                raise SpecError(rule, file=spec.file, line=formula.line, received=formula.text, hint=hint)
    defined = {f.name for f in spec.formulas}
    for tensor in (*spec.outputs, *spec.statistics):
        if tensor.name not in defined:
            rule = f"{tensor.role.value} '{tensor.name}' has no formula"
            raise SpecError(rule, file=spec.file, line=tensor.line, hint=f"add {tensor.name} = ... under [formulas]")


def group_size(spec: Spec) -> int:
    """The columns of the groups that the spec's formulas reduce; 0 if none does. SpecError where they differ."""
    sizes: dict[int, Formula] = {}
    for _, formula in _all_formulas(spec):
        tree = parse_formula(formula.text, file=spec.file, line=formula.line)
        sizes.update({size: formula for node in nodes(tree) if (size := group_of(node))})
    if len(sizes) > 1:
        line = list(sizes.values())[-1].line
        rule, hint = "all groups of a spec have one size", "a spec of its own has the other one"
        raise SpecError(rule, file=spec.file, line=line, received=str(sorted(sizes)), hint=hint)
    return next(iter(sizes), 0)


def rolls(spec: Spec) -> tuple[tuple[Fraction, int], ...]:
    """By how much the spec's formulas roll rows: each a share of cols, and columns beside it."""
    trees = (parse_formula(f.text, file=spec.file, line=f.line) for _, f in _all_formulas(spec))
    found = (roll_of(node) for tree in trees for node in nodes(tree))
    return tuple(dict.fromkeys((roll.share, roll.by) for roll in found if roll))


def numbers_columns(spec: Spec) -> bool:
    """Whether a formula finds a column, or takes the element of one."""
    trees = (parse_formula(f.text, file=spec.file, line=f.line) for _, f in _all_formulas(spec))
    by_number = POSITIONS | PICKS
    return any(isinstance(node, Call) and node.function in by_number for tree in trees for node in nodes(tree))


def compared_with_whole(spec: Spec, conditions: Collection[str] = CONDITIONS) -> frozenset[str]:
    """The scalars that a formula compares with a read tensor of whole numbers, as labels are, by such conditions."""
    whole = {t.name for t in spec.tensors if t.dtypes and all(DTYPES[name].is_integer for name in t.dtypes)}
    scalars = {name for name, _ in spec.scalars}
    if not (whole and scalars):
        return frozenset()
    compared = (
        {part.name for part in node.args if isinstance(part, Name)}
        for tree in parse_all(spec).values()
        for node in nodes(tree)
        if isinstance(node, Call) and node.function in conditions
    )
    return frozenset(name for names in compared if names & whole for name in names & scalars)


def equal_to_whole(spec: Spec) -> frozenset[str]:
    """The scalars that a formula holds to be, or not to be, such a number: no fraction and no NaN is one."""
    return compared_with_whole(spec, ("==", "!="))


def _check_groups(spec: Spec) -> None:
    for tensor in spec.tensors:
        if tensor.kind.is_groups and not spec.group:
            rule = f"{tensor.role} '{tensor.name}' has a value for each group of columns, and no formula has groups"
            hint = "reduce them: absmax(y, 128); a parameter that is read has group = 128"
            raise SpecError(rule, file=spec.file, line=tensor.line, hint=hint)


def _check_shares(spec: Spec) -> None:
    """Rows are shared out in one way: a kernel that sums them walks the rows of one share after the other."""
    of_heads = next((t for t in spec.tensors if t.kind.by_head), None)
    other = next((t for t in spec.tensors if t.kind.by_batch and not t.kind.by_head), None)
    if of_heads and other:
        rule = "the rows of a spec are those of batches or of heads, not both"
        received = f"{of_heads.role} '{of_heads.name}', {other.role} '{other.name}'"
        hint = "a row_input, or an input, has a value for each row whatever its batch and its head"
        raise SpecError(rule, file=spec.file, line=max(of_heads.line, other.line), received=received, hint=hint)


def draws(spec: Spec) -> dict[tuple[str, int], int]:
    """The number of each random(seed) in the spec, by its formula's (or absent tensor's) name and its column there."""
    trees = ((f.name, parse_formula(f.text, file=spec.file, line=f.line)) for _, f in _all_formulas(spec))
    calls = [(name, node.column) for name, tree in trees for node in nodes(tree) if is_draw(node)]
    return {call: number for number, call in enumerate(calls)}


def _check_seeds(spec: Spec, trees: Mapping[str, Expression]) -> None:
    """A seed's bits are no number: they stand in random(seed) alone."""
    seeds = {t.name for t in spec.seeds}
    for key, formula in _all_formulas(spec):
        drawn = [child for node in nodes(trees[key]) if is_draw(node) for child in children(node)]
        for node in (*drawn, *names_in(trees[key])):
            is_seed, is_drawn = isinstance(node, Name) and node.name in seeds, any(node is child for child in drawn)
            if is_seed is not is_drawn:
                rule = f"{RANDOM}(seed) takes a tensor with the role seed, which stands nowhere else"
                where = f"{rule} (column {node.column + 1} of the formula)"
                hint = f'of seed = "seed" write {RANDOM}(seed); another number of the call is a scalar_input'
                raise SpecError(where, file=spec.file, line=formula.line, received=formula.text, hint=hint)


def _check_totals(spec: Spec, trees: Mapping[str, Expression]) -> None:
    """A total is known once all rows are: it is stored by itself, and no formula of the same kernel reads it."""
    outputs = {t.name for t in spec.tensors if t.role is Role.SCALAR_OUTPUT}
    for key, formula in _all_formulas(spec):
        tree, error = trees[key], partial(SpecError, file=spec.file, line=formula.line, received=formula.text)
        inner = totalled(tree) if key in outputs else tree
        if inner is None:
            hint = "write its factors within: total(loss * scale)"
            raise error(f"scalar_output '{formula.name}' is one total(...)", hint=hint)
        if any(totalled(node) is not None for node in nodes(inner)):
            hint = "give it a tensor of its own with role scalar_output"
            raise error(f"total(...) is the whole formula of a scalar output, not part of '{formula.name}'", hint=hint)
        for used in names_in(inner):
            if used.name in outputs:
                rule = f"'{used.name}' is known once all rows are, so the formula of '{formula.name}' cannot read it"
                raise error(rule, hint="a kernel behind this one can, as a scalar_input")


def _check_casts(spec: Spec, trees: Mapping[str, Expression]) -> None:
    known = {t.name: t for t in spec.tensors}
    for key, formula in _all_formulas(spec):
        for node in nodes(trees[key]):
            if isinstance(node, Cast) and node.to not in CASTS and node.to not in known:
                rule = f"cast(e, to) names a dtype or a tensor (column {node.column + 1} of the formula)"
                hint = instead_of_dtype(node.to, aliases=True) or did_you_mean(node.to, [*CASTS, *known])
                raise SpecError(rule, file=spec.file, line=formula.line, received=node.to, hint=hint)


def sorted_formulas(spec: Spec, trees: Mapping[str, Expression]) -> tuple[str, ...]:
    """The keys of `trees`, each after what it reads, otherwise in the author's order.

    Errors: SpecError that names the cycle.

    Raises SpecError for formulas that depend on themselves.
    """
    lines = {key: formula.line for key, formula in _all_formulas(spec)}
    order: list[str] = []
    path: list[str] = []

    def visit(key: str) -> None:
        if key in order:
            return
        if key in path:
            cycle = " -> ".join([*path[path.index(key) :], key])
            rule, hint = "formulas must not depend on themselves", "what is there before needs a name of its own"
            raise SpecError(rule, file=spec.file, line=lines[key], received=cycle, hint=hint)
        path.append(key)
        for used in names_in(trees[key]):
            for candidate in (used.name, absent_key(used.name)):
                if candidate in trees:
                    visit(candidate)
        order.append(path.pop())

    for key in trees:
        visit(key)
    return tuple(order)


def _check_all_used(spec: Spec, trees: Mapping[str, Expression], scalar_lines: Mapping[str, int]) -> None:
    reached: set[str] = set()
    waiting = [t.name for t in (*spec.outputs, *spec.statistics)]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for key in (name, absent_key(name)):
            if key in trees:
                waiting.extend(used.name for used in names_in(trees[key]))
    for tensor in spec.tensors:
        if tensor.name not in reached:
            rule = f"{tensor.role.value} '{tensor.name}' is not used by any output"
            hint = f"take it out, or name it in a formula: {tensor.name}"
            raise SpecError(rule, file=spec.file, line=tensor.line, hint=hint)
    for formula in spec.formulas:
        if formula.name not in reached:
            rule = f"formula '{formula.name}' is not used by any output"
            raise SpecError(rule, file=spec.file, line=formula.line, hint="declare it as a statistic to store it")
    for name, line in scalar_lines.items():
        if name not in reached:
            hint = f"take it out, or name it in a formula: {name}"
            raise SpecError(f"scalar '{name}' is not used by any output", file=spec.file, line=line, hint=hint)


def _check_depth(spec: Spec, trees: Mapping[str, Expression], order: tuple[str, ...]) -> None:
    """Lowering, derivatives and references recurse through the formulas that a formula names."""
    formulas = dict(_all_formulas(spec))
    depths: dict[str, int] = {}
    for key in order:
        below = (depths.get(k, 0) for used in names_in(trees[key]) for k in (used.name, absent_key(used.name)))
        depths[key] = depth_of(trees[key]) + max(below, default=0)
        if depths[key] > DEEPEST_SPEC:
            hint = "store a part as an output: a spec of its own reads it as an input"
            rule = f"the formulas of a spec nest at most {DEEPEST_SPEC} levels through the names in them"
            raise SpecError(
                rule, file=spec.file, line=formulas[key].line, received=f"{depths[key]} in '{key}'", hint=hint
            )
