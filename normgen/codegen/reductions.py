"""The row reductions of one look: one packed state, its combine function, its step per element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from normgen.codegen.printer import FormulaPrinter, Printer
from normgen.codegen.spelling import unnamed
from normgen.codegen.statements import Do, For, Let, Set, Statement, Struct
from normgen.program.frozen import OWN
from normgen.program.ir import Reduce
from normgen.program.monoid import LOWEST, SUM, Recipe
from normgen.program.trees import operands, sum_of
from normgen.spec.formula import Expression, Name

CONSTANTS = {LOWEST.name: "-3.402823466e+38f"}


@dataclass(frozen=True, kw_only=True)
class State:
    """The packed state of all row reductions of one look, exchanged in one tree."""

    type: str  # Pass1
    variable: str  # pass1
    doc: str
    components: tuple[str, ...]
    identity: tuple[str, ...]
    lets: tuple[Let, ...]  # of combine
    combined: tuple[str, ...]
    added: tuple[str, ...]  # components that elements are only added to
    are_largest: bool  # whether all components are largest absolute values

    @property
    def is_sums(self) -> bool:
        """Whether all that elements do is to be added to its components."""
        return self.added == self.components

    def struct(self, *, shuffled: bool, short: bool) -> Struct:
        """The type; the library's trees call its `combine`, those of lanes `shuffle_xor`, short ones `of_warp`."""
        members: list[Statement] = [Do(f"float {', '.join(self.components)}")]
        combined = Do(f"return {{{', '.join(self.combined)}}}")
        members.append(self._function("combine(const {0}& a, const {0}& b)", *self.lets, combined))
        if shuffled and not (short and self.are_largest):
            words = ", ".join(f"__shfl_xor_sync(mask, s.{name}, offset)" for name in self.components)
            head = "shuffle_xor(const {0}& s, int offset, unsigned mask)"
            members.append(self._function(head, Do(f"return {{{words}}}")))
        if short and self.are_largest:  # in the fewest steps
            largest = ", ".join(f"largest_of_warp(s.{name})" for name in self.components)
            members.append(self._function("of_warp(const {0}& s)", Do(f"return {{{largest}}}")))
        return Struct(self.type, tuple(members), f"state of {self.doc}")

    def _function(self, head: str, *body: Statement) -> For:
        """One that gives a state; {0} in its head is the type of that."""
        return For(f"static __device__ __forceinline__ {self.type} {head.format(self.type)}", body)

    def start(self, *, declares: bool) -> list[Statement]:
        """Before the look: the running sums of a thread; the state of no element, of sums alone if `declares`."""
        lowest = "the lowest finite number: -inf - -inf is NaN" if CONSTANTS[LOWEST.name] in self.identity else ""
        state = Do(f"{self.type} {self.variable} = {{{', '.join(self.identity)}}}", lowest)
        why = "several: shorter chains of additions, fewer roundings each"
        sums = [Do(f"float {', '.join(f'{self.sums(name)}[kRunningSums] = {{}}' for name in self.added)}", why)]
        return [*([state] if declares or not self.is_sums else []), *(sums if self.added else [])]

    def sums(self, component: str) -> str:
        """The running sums of one component."""
        return f"{self.variable}_{component}"

    def end(self, *, declared: bool) -> list[Statement]:
        """After the look: what a thread has added up; `declared`: as in `start`."""
        if not self.is_sums:
            return [Set(f"{self.variable}.{name}", f"sum_in_pairs({self.sums(name)})") for name in self.added]
        totals = f"{{{', '.join(f'sum_in_pairs({self.sums(name)})' for name in self.added)}}}"
        return [Set(self.variable, totals) if declared else Let(self.type, self.variable, totals)]


def state_of(look: int, reduces: tuple[Reduce, ...]) -> State:
    """Struct, identity and combine of the packed state; `look` counts from 1."""
    author = FormulaPrinter()
    lets: list[Let] = []
    combined: list[str] = []
    for reduce in reduces:
        names = {f"{side}_{part}": f"{side}.{name}" for side in "ab" for part, name in _parts(reduce)}
        recipe = _renamed(reduce.monoid.combine, names, {}, _let_prefix(reduce, reduces))
        lets += recipe.lets
        combined += recipe.texts
    printer = Printer(CONSTANTS)
    return State(
        type=unnamed(f"Pass{look}"),
        variable=f"pass{look}",
        doc=f"pass {look}: " + ", ".join(f"{r.monoid.name}({', '.join(map(author.text, r.args))})" for r in reduces),
        components=tuple(name for r in reduces for name in r.names),
        identity=tuple(printer.text(e) for r in reduces for e in r.monoid.identity),
        lets=tuple(lets),
        combined=tuple(combined),
        added=tuple(name for r in reduces for name in r.names if r.monoid.name == SUM.name),
        are_largest=all(r.monoid.name == "absmax" for r in reduces),
    )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the elements of a vector enter the state of a look.

    before  once per vector
    peek    once per element, in a pass of its own; empty: no reduction of this look needs it
    move    once per vector, between the passes
    elem    once per element
    after   once per vector, behind its elements
    """

    before: tuple[Statement, ...] = ()
    peek: tuple[Statement, ...] = ()
    move: tuple[Statement, ...] = ()
    elem: tuple[Statement, ...]
    after: tuple[Statement, ...] = ()


def steps_of(
    state: State, reduces: tuple[Reduce, ...], names: Mapping[str, str], index: str, *, by_vector: bool
) -> Steps:
    """Statements that add a vector of elements to the state, or (not `by_vector`) a single one.

    `names` prints the values an argument reads, `index` is the element's in its vector: 0 of a single one at an edge.
    """
    before: list[Statement] = []
    peek: list[Statement] = []
    move: list[Statement] = []
    elem: list[Statement] = []
    after: list[Statement] = []
    running = "0" if index == "0" else f"{index} % kRunningSums"
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        own = {
            part: f"{state.sums(name)}[{running}]" if name in state.added else f"{state.variable}.{name}"
            for part, name in _parts(reduce)
        }
        vector = reduce.monoid.vector_step if by_vector else None
        if vector is None:
            elem += _renamed(reduce.monoid.step, own, names, prefix).statements(own)
            continue
        reference = f"{prefix}{vector.reference}"
        known = {**own, vector.reference: reference}
        before.append(Do(f"float {reference} = {_renamed(vector.start, own, names, prefix).texts[0]}"))
        peeked = _renamed(vector.peek, known, names, prefix)
        peek += [*peeked.lets, Set(reference, peeked.texts[0])]
        move += _renamed(vector.move, known, names, prefix).assignments(own)
        in_vector = dict(own)
        if vector.added:
            sums = f"{prefix}{vector.added}s"
            in_vector[vector.added] = f"{sums}[i % kRunningSums]"
            before.append(Do(f"float {sums}[kRunningSums] = {{}}"))
            after.append(Set(own[vector.added], f"sum_in_pairs({sums})", "+="))
        elem += _renamed(vector.step, in_vector, names, prefix).statements(in_vector)
    return Steps(before=tuple(before), peek=tuple(peek), move=tuple(move), elem=tuple(elem), after=tuple(after))


def single_step(reduce: Reduce, variable: str, names: Mapping[str, str], *, prefix: str) -> list[Statement]:
    """One more element enters the variable of a monoid of one component; locals of several need a prefix each."""
    [part] = reduce.monoid.state
    return _renamed(reduce.monoid.step, {part: variable}, names, prefix).statements({part: variable})


def single_combine(reduce: Reduce, variable: str, other: str) -> list[Statement]:
    """Another state enters the variable of a monoid of one component."""
    return combine_into(reduce, [variable], [other])


def combine_into(reduce: Reduce, variables: Sequence[str], others: Sequence[str]) -> list[Statement]:
    """Another state enters the variables of a state's components."""
    parts = reduce.monoid.state
    own = {f"a_{part}": variable for part, variable in zip(parts, variables, strict=True)}
    names = own | {f"b_{part}": other for part, other in zip(parts, others, strict=True)}
    return _renamed(reduce.monoid.combine, names, {}, f"{reduce.names[0]}_").statements(own)


def single_identity(reduce: Reduce) -> str:
    """The state of no element, of a monoid of one component."""
    [identity] = identities(reduce)
    return identity


def identities(reduce: Reduce) -> list[str]:
    """The state of no element, component by component."""
    return [Printer(CONSTANTS).text(one) for one in reduce.monoid.identity]


class Run:
    """The elements of a run of a row, which enter the state of one reduction; `ending` of its variables' names.

    A monoid with a reference for many elements finds that in a pass of its own over the run, in front of the other one.
    """

    def __init__(self, reduce: Reduce, ending: str) -> None:
        self.reduce, self.vector, self.prefix = reduce, reduce.monoid.vector_step, f"{reduce.names[0]}_"
        self.own = {part: f"{name}{ending}" for part, name in _parts(reduce)}
        self.reference = f"{self.prefix}{self.vector.reference}" if self.vector else ""

    def start(self) -> list[Statement]:
        """The state of no element."""
        return [Do(f"float {own} = {one}") for own, one in zip(self.own.values(), identities(self.reduce), strict=True)]

    def reset(self) -> list[Statement]:
        """The same of variables that are there."""
        return [Set(own, one) for own, one in zip(self.own.values(), identities(self.reduce), strict=True)]

    def before_peeks(self) -> list[Statement]:
        assert self.vector is not None
        start = _renamed(self.vector.start, self.own, {}, self.prefix).texts[0]
        return [Do(f"float {self.reference} = {start}")]

    def peek(self, names: Mapping[str, str]) -> list[Statement]:
        """The reference sees an element."""
        assert self.vector is not None
        peeked = _renamed(self.vector.peek, self.own | {self.vector.reference: self.reference}, names, self.prefix)
        return [*peeked.lets, Set(self.reference, peeked.texts[0])]

    def after_peeks(self) -> list[Statement]:
        """The state moves to the reference."""
        assert self.vector is not None
        moved = _renamed(self.vector.move, self.own | {self.vector.reference: self.reference}, {}, self.prefix)
        return moved.assignments(self.own)

    def step(self, names: Mapping[str, str]) -> list[Statement]:
        """An element enters."""
        recipe = self.vector.step if self.vector else self.reduce.monoid.step
        return _renamed(recipe, self.own, names, self.prefix).statements(self.own)


def _parts(reduce: Reduce) -> Iterable[tuple[str, str]]:
    """(Component of the state, the value that it becomes)."""
    return zip(reduce.monoid.state, reduce.names, strict=True)


def _let_prefix(reduce: Reduce, group: tuple[Reduce, ...]) -> str:
    """Locals of two monoids with lets in one look must not collide."""
    return f"{reduce.names[0]}_" if len(group) > 1 else ""


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """A recipe whose names stand for C text: its lets, its results, and who prints them."""

    lets: tuple[Let, ...]
    results: tuple[Expression, ...]
    printer: Printer

    @property
    def texts(self) -> list[str]:
        return [self.printer.text(e) for e in self.results]

    def statements(self, targets: Mapping[str, str]) -> list[Statement]:
        return [*self.lets, *self.assignments(targets)]

    def assignments(self, targets: Mapping[str, str]) -> list[Statement]:
        """The results replace the targets; one that reads another target comes while that has its old value."""
        own = {f"{OWN}{name}": text for name, text in targets.items()}
        found = list(zip(own.items(), self.results, strict=True))
        statements: list[Statement] = []
        for (name, text), result in sorted(found, key=lambda one: not one[1].names & own.keys() - {one[0][0]}):
            terms = operands(result, "+-")
            if len(terms) > 1 and ("+", Name(name)) in terms:
                terms.remove(("+", Name(name)))
                statements.append(Set(text, self.printer.text(sum_of(terms)), "+="))
            elif result != Name(name):
                statements.append(Set(text, self.printer.text(result)))
        return statements


def _renamed(recipe: Recipe, own: Mapping[str, str], names: Mapping[str, str], prefix: str) -> Renamed:
    """The recipe in C: `own` has the texts of the recipe's own names, `names` those of the program's values."""
    printed = CONSTANTS | {f"{OWN}{name}": text for name, text in own.items()} | dict(names)
    lets: list[Let] = []
    for let, tree in recipe.lets:
        lets.append(Let("const float", f"{prefix}{let}", Printer(printed).text(tree)))
        printed[f"{OWN}{let}"] = f"{prefix}{let}"
    return Renamed(lets=tuple(lets), results=recipe.results, printer=Printer(printed))
