"""The source of kernels -> the pieces of a CUDA text: kernels, and the files of the device library that they need."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from normgen.codegen.config.alone import alone
from normgen.codegen.config.kernel_text import PLAIN, KernelText
from normgen.codegen.library import File, needed
from normgen.codegen.module import KernelEntry, Module, Param, Workspace
from normgen.codegen.spelling import Spelling, unmarked
from normgen.codegen.statements import (
    WIDTH,
    Do,
    Gap,
    Let,
    Statement,
    broken,
    identifiers,
    reads_of,
    text_of,
)
from normgen.codegen.templates import environment, tidy
from normgen.problem.problem import Problem


class KernelSource(Protocol):
    """The kernels of a problem under a schedule, before they are printed: the seam between classes of programs.

    chain      the library's type that knows where its kernels wait for those in front of them
    min_arch   lowest sm_NN that its texts build for
    workspace  scratch bytes that a call needs
    """

    @property
    def problem(self) -> Problem: ...

    @property
    def chain(self) -> str: ...

    @property
    def min_arch(self) -> int: ...

    @property
    def workspace(self) -> Workspace: ...

    def kernels(self) -> list[tuple[KernelEntry, KernelText]]:
        """In launch order. A text's name stands for the one that its digest makes of it."""
        ...

    def declared(self, param: Param) -> str:
        """A parameter of its kernels, as their texts declare it."""
        ...


_NAME = re.compile(r"(\w+)_[0-9a-f]{4}\b")  # of what has a digest of its text behind its own name


@dataclass(frozen=True)
class Config:
    """What makes a kernel of a strategy: the line that defines its sizes, and the name of the type."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A module before its pieces are printed: what a header needs to merge several modules into one text.

    library  the files of the device library that the kernels need
    legend   (constant, what it is) of each constant of templates that is not said by its name
    types    of each kernel, what stands before it: the states of its looks
    texts    of each kernel, a template of a Config: the same for all schedules of one strategy
    config   the one that the schedule asks for
    chain    of the Config, the part that the types of parameters depend on
    signatures  of each kernel, the types of its parameters
    """

    library: tuple[File, ...]
    legend: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...]
    config: Config
    kernels: tuple[KernelEntry, ...]
    chain: str
    signatures: tuple[tuple[str, ...], ...]
    min_arch: int
    workspace: Workspace

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def every_type(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for types in self.types for text in types))

    def names(self) -> Iterator[str]:
        """Of its kernels, their types and its Config: each ends with a digest of what it names."""
        yield from (kernel.name for kernel in self.kernels)
        yield from (text.split()[1] for text in self.every_type)
        yield self.config.name

    def renamed(self, names: Mapping[str, str]) -> Parts:
        """The same by other names."""

        def within(text: str) -> str:
            return _NAME.sub(lambda found: names.get(found[0], found[0]), text)

        return replace(
            self,
            types=tuple(tuple(map(within, types)) for types in self.types),
            texts=tuple(map(within, self.texts)),
            config=Config(name=within(self.config.name), text=within(self.config.text)),
            kernels=tuple(replace(k, name=within(k.name), config=within(k.config)) for k in self.kernels),
        )

    @property
    def named(self) -> list[tuple[str, str]]:
        """What has a name with a digest, and its text: kernels are behind what their texts name."""
        texts = [(text.split()[1], text) for text in self.every_type] + [(self.config.name, self.config.text)]
        return [*texts, *((kernel.name, text) for kernel, text in zip(self.kernels, self.texts, strict=True))]

    def told_apart(self, others: dict[str, str]) -> Parts:
        """By names that no other text of `others` has, which get its own: two texts in 65,536 have one digest."""
        parts = self
        for number in range(len(self.named)):
            while others.setdefault(*(named := parts.named[number])) != named[1]:
                stem = named[0].rpartition("_")[0]
                parts = parts.renamed({named[0]: f"{stem}_{digest(' '.join(named))}"})
        return parts

    def module(self) -> Module:
        return self.renamed(short_names([self]))._module()

    def _module(self) -> Module:
        hardware, portable = (
            "\n".join(file.text for file in self.library if file.is_hardware is is_hardware)
            for is_hardware in (True, False)
        )
        legend = legend_lines(self.legend)
        return Module(
            instructions=f"{tidy(hardware)}\n" if hardware else "",
            text=tidy("\n".join([portable, *legend, "", self.config.text, "", *self.every_type, self.text])),
            kernels=self.kernels,
            min_arch=self.min_arch,
            workspace=self.workspace,
        )


def short_names(every: Sequence[Parts]) -> dict[str, str]:
    """Names of one text without the digest that tells them apart, where nothing else there has the name."""
    texts = [text for p in every for text in (*p.texts, *p.every_type, p.config.text)]
    taken = frozenset[str]().union(*map(identifiers, dict.fromkeys(texts)))
    stems = {name: found[1] for p in every for name in p.names() if (found := _NAME.fullmatch(name))}
    counts = Counter(stems.values())
    return {name: stem for name, stem in stems.items() if counts[stem] == 1 and stem not in taken}


def parts_of(source: KernelSource, *, is_alone: bool = False) -> Parts:
    """The pieces of the text of a source whose problem and program have marks for names.

    is_alone  the kernels are no templates: what their Config settles is written out
    """
    return spelled_parts(marked_parts(source, is_alone=is_alone))


def spelled_parts(parts: Parts) -> Parts:
    """Parts whose text has marks for names, with the names spelled; arguments keep the spec's names as their keys."""
    pairs = list(zip(parts.types, parts.texts, strict=True))
    spellings = [Spelling("\n".join([*types, text])) for types, text in pairs]
    kernels = tuple(
        replace(
            kernel,
            params=tuple(replace(p, name=spelling.within(p.name), key=unmarked(p.key)) for p in kernel.params),
        )
        for kernel, spelling in zip(parts.kernels, spellings, strict=True)
    )
    spelled = [spelled_types(spelling, *pair) for spelling, pair in zip(spellings, pairs, strict=True)]
    return replace(parts, types=tuple(t for t, _ in spelled), texts=tuple(t for _, t in spelled), kernels=kernels)


def spelled_types(spelling: Spelling, types: tuple[str, ...], text: str) -> tuple[tuple[str, ...], str]:
    """A kernel and its types. Where kernels spell the members of a type in two ways, these are two types."""
    texts = [spelling.within(t) for t in types]
    kernel = spelling.within(text)
    for number, (marked_type, spelled) in enumerate(zip(types, texts, strict=True)):
        if spelled != unmarked(marked_type):
            name = spelled.split()[1]
            own = f"{name}_{digest(spelled)}"
            texts[number], kernel = (t.replace(name, own) for t in (spelled, kernel))
    return tuple(texts), kernel


def marked_parts(source: KernelSource, *, is_alone: bool = False) -> Parts:
    """The pieces of the text, built around whatever names the problem and the program have."""
    kernels, texts = zip(*source.kernels(), strict=True)
    if is_alone:
        texts = tuple(map(alone, texts))
        config = Config(name="", text="")
        types, printed = zip(*map(named_plainly, texts), strict=True)
    else:
        types, printed = zip(*(named_by_text(text) for text in texts), strict=True)
        config = config_of(source.problem, {k: number for t in texts for k, number in t.settings.items()})
    read = identifiers(config.text).union(
        *(reads_of((*t.types, *t.body)) | identifiers(" ".join(t.params)) for t in texts)
    )
    return Parts(
        library=tuple(needed(read)),
        legend=() if is_alone else tuple(found for text in texts for found in legend_of(text.body)),
        types=types,
        texts=tuple(text for _, text in printed),
        config=config,
        kernels=tuple(replace(k, name=n, config=config.name) for k, (n, _) in zip(kernels, printed, strict=True)),
        chain=source.chain,
        signatures=tuple(tuple(source.declared(replace(p, name="")).rstrip() for p in k.params) for k in kernels),
        min_arch=source.min_arch,
        workspace=source.workspace,
    )


def named_by_text(kernel: KernelText) -> tuple[tuple[str, ...], tuple[str, str]]:
    """(Its types, (its name, its text)): the same text has the same name, whatever its Config."""
    types, text = [], print_kernel(kernel)
    for struct in kernel.types:
        printed, plain = text_of([struct]), unmarked(struct.name)
        name = f"{plain}_{digest(' '.join(printed.replace(struct.name, plain).splitlines()))}"
        types.append(printed.replace(struct.name, name))
        text = text.replace(struct.name, name)
    name = f"{kernel.name}_{digest(text)}"
    return tuple(types), (name, text.replace(f"\n{kernel.name}(\n", f"\n{name}(\n"))


def named_plainly(kernel: KernelText) -> tuple[tuple[str, ...], tuple[str, str]]:
    """As `named_by_text`, of the only kernels of a text: their names, and those of their types, need no digest."""
    types, text = [text_of([struct]) for struct in kernel.types], print_kernel(kernel)
    for struct in kernel.types:
        plain = unmarked(struct.name)
        types = [one.replace(struct.name, plain) for one in types]
        text = text.replace(struct.name, plain)
    return tuple(types), (kernel.name, text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def config_of(problem: Problem, values: dict[str, int | str]) -> Config:
    """The type that tells a kernel its sizes and hints, named after the columns and what it says."""
    first = {name: values[name] for name in ("kCols", "kThreads") if name in values}
    numbers = [
        f"{name} = {value}"
        for name, value in (first | values).items()
        if isinstance(value, int) and value != PLAIN.get(name)
    ]
    chosen = {name: value for name, value in values.items() if isinstance(value, str) and value != PLAIN.get(name)}
    types = "".join(f" using {name} = {value};" for name, value in chosen.items())
    sizes = f"enum : int {{ {', '.join(numbers)} }};"  # constants without storage: NVRTC would give static members some
    name = f"{'AnyCols' if problem.any_cols else f'Cols{problem.cols}'}_{digest(types + sizes)}"
    line = f"struct {name} : Plain {{{types} {sizes} }};"
    if len(line) > WIDTH:
        lines = textwrap.wrap(sizes.replace(" = ", "\0=\0"), WIDTH, initial_indent="  ", subsequent_indent="      ")
        line = "\n".join([f"struct {name} : Plain {{{types}", *lines, "};"]).replace("\0", " ")
    return Config(name=name, text=line)


def print_kernel(kernel: KernelText) -> str:
    """The kernel in its frame."""
    frame = environment().get_template("kernel.cu.j2")
    comment = [line for text in kernel.comment for line in broken(f"// {text}", "// ")]
    params = list(kernel.params) if kernel.config else broken(f"    {', '.join(kernel.params)}", "")
    body = text_of(gathered(kernel.body) if kernel.config else listed(kernel.body), indent=2)
    return frame.render(kernel=kernel, comment=comment, params=params, body=body)


def legend_of(body: Sequence[Statement]) -> list[tuple[str, str]]:
    """What the constants of a kernel are, where one says so."""
    return [(s.name, s.comment) for s in constants_of(body) if s.comment]


def legend_lines(legend: Iterable[tuple[str, str]]) -> list[str]:
    """A comment with a line for each constant; kernels may differ in what one means to them."""
    said: dict[str, dict[str, None]] = {}
    for name, comment in legend:
        said.setdefault(name, {})[comment] = None
    width = max(map(len, said), default=0)
    lines = (f"// {name.ljust(width)}  {'; or '.join(comments)}" for name, comments in said.items())
    return [part for line in lines for part in broken(line, f"//{' ' * (width + 3)}")]


def constants_of(body: Sequence[Statement]) -> list[Let]:
    return [s for s in body if isinstance(s, Let) and s.is_constant]


def listed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The body with its constants first, one a line: what it is stands beside each."""
    constants = constants_of(body)
    return (*constants, Gap(), *(s for s in body if s not in constants))


def gathered(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The body with its constants side by side, without their comments, behind its types."""
    constants = constants_of(body)
    types = [replace(s, comment="") for s in constants if s.is_type]
    runs = groupby((s for s in constants if not s.is_type), lambda s: s.type)
    numbers = [Do(f"{kind} {', '.join(f'{s.name} = {s.value}' for s in run)}") for kind, run in runs]
    return (*types, *numbers, *(s for s in body if s not in constants))
