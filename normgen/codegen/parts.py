"""Plan -> the pieces of a CUDA text: kernels, and the files of the device library that they need."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from normgen.codegen.access import asking, policy
from normgen.codegen.chain import CHAINS, chain_of
from normgen.codegen.kernel import KernelText, MainKernel
from normgen.codegen.library import File, needed
from normgen.codegen.module import Kernel, Launch, Module
from normgen.codegen.spelling import Spelling, marked, unmarked
from normgen.codegen.statements import WIDTH, Do, Let, Statement, broken, identifiers, pruned, reads_of, text_of
from normgen.codegen.templates import environment, tidy
from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.schedule.knobs import DependentLaunch
from normgen.schedule.knobs import Load as LoadHint
from normgen.schedule.knobs import Store as StoreHint
from normgen.schedule.plan import Plan, plan_of
from normgen.schedule.schedule import Schedule

# library/plain.cuh
PLAIN: dict[str, str | int] = {
    "Load": policy(LoadHint.DEFAULT),
    "Store": policy(StoreHint.DEFAULT),
    "Chain": CHAINS[DependentLaunch.OFF],
    "Params": asking(Schedule().params),
    "kCluster": 1,
}


@dataclass(frozen=True)
class Config:
    """What makes a kernel of a strategy: the line that defines its sizes, and the name of the type."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A module before its pieces are printed: what a header needs to merge several modules into one text.

    library  the files of the device library that the kernels need
    legend   (constant, what it is) of each constant of the kernels that is not said by its name
    types    of each kernel, what stands before it: the states of its looks
    texts    of each kernel, a template of a Config: the same for all schedules of one strategy
    config   the one that the schedule asks for
    """

    library: tuple[File, ...]
    legend: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...]
    config: Config
    kernels: tuple[Kernel, ...]
    min_arch: int
    workspace_fixed_bytes: int
    workspace_column_bytes: int
    workspace_block_bytes: int
    workspace_batch_bytes: int

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def every_type(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for types in self.types for text in types))

    def module(self) -> Module:
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
            workspace_fixed_bytes=self.workspace_fixed_bytes,
            workspace_column_bytes=self.workspace_column_bytes,
            workspace_block_bytes=self.workspace_block_bytes,
            workspace_batch_bytes=self.workspace_batch_bytes,
        )


def strategy_name(plan: Plan) -> str:
    """For example layernorm_fwd_bf16_without_bias_team_per_row; absent tensors are named."""
    problem = plan.problem
    cols = "_any_cols" if problem.any_cols else ""
    absent = "".join(f"_without_{name}" for name in problem.absent)
    strategy = "team_per_row" if plan.has_team else plan.schedule.strategy
    return f"{problem.name}{cols}{absent}_{strategy}"


def parts_of(problem: Problem, program: RowProgram, schedule: Schedule) -> Parts:
    """The pieces of the text of a program that is already rewritten for `schedule`."""
    return spelled_parts(marked_parts(plan_of(*marked(problem, program), schedule)))


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
            texts[number], kernel = (re.sub(rf"\b{name}\b", own, t) for t in (spelled, kernel))
    return tuple(texts), kernel


def marked_parts(plan: Plan) -> Parts:
    """The pieces of the text, built around whatever names the problem and the program have."""
    plain = strategy_name(plan)
    main = MainKernel(plan, plain)
    texts, kernels = [main.text()], [Kernel(name=plain, params=main.params, launch=launch_of(plan))]
    second = main.columns.second_kernel(f"{plan.problem.name}_finish")
    chain = {"Chain": chain_of(plan)}  # the parameters' types ask for it
    if second is not None:
        kernels.append(second.kernel)
        texts.append(
            KernelText(
                name=second.kernel.name,
                comment=(second.comment,),
                params=second.declared,
                bounds=str(second.kernel.launch.threads),
                config=chain,
                body=pruned(second.body),
            )
        )
    sums = plan.sums
    types, printed = zip(*(named_by_text(text) for text in texts), strict=True)
    config = config_of(plan.problem, {k: number for t in texts for k, number in t.settings.items()})
    read = identifiers(config.text).union(
        *(reads_of((*t.types, *t.body)) | identifiers(" ".join(t.params)) for t in texts)
    )
    return Parts(
        library=tuple(needed(read)),
        legend=tuple(found for text in texts for found in legend_of(text.body)),
        types=types,
        texts=tuple(text for _, text in printed),
        config=config,
        kernels=tuple(replace(k, name=n, config=config.name) for k, (n, _) in zip(kernels, printed, strict=True)),
        min_arch=plan.min_arch,
        workspace_fixed_bytes=sums.fixed_bytes if sums else 0,
        workspace_column_bytes=sums.column_bytes if sums else 0,
        workspace_block_bytes=sums.block_bytes if sums else 0,
        workspace_batch_bytes=sums.batch_bytes if sums else 0,
    )


def named_by_text(kernel: KernelText) -> tuple[tuple[str, ...], tuple[str, str]]:
    """(Its types, (its name, its text)): the same text has the same name, whatever its Config."""
    types, text = [], print_kernel(kernel)
    for struct in kernel.types:
        plain = struct.lines[0].split()[1]
        name = f"{plain}_{digest(' '.join(struct.lines))}"
        types.append(re.sub(rf"\b{plain}\b", name, text_of([struct])))
        text = re.sub(rf"\b{plain}\b", name, text)
    name = f"{kernel.name}_{digest(text)}"
    return tuple(types), (name, re.sub(rf"\b{kernel.name}\(", f"{name}(", text))


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
    return frame.render(kernel=kernel, comment=comment, body=text_of(gathered(kernel.body), indent=2))


def legend_of(body: Sequence[Statement]) -> list[tuple[str, str]]:
    """What the constants of a kernel are, where one says so."""
    return [(s.name, s.comment) for s in body if isinstance(s, Let) and s.is_constant and s.comment]


def legend_lines(legend: Iterable[tuple[str, str]]) -> list[str]:
    """A comment with a line for each constant; kernels may differ in what one means to them."""
    said: dict[str, dict[str, None]] = {}
    for name, comment in legend:
        said.setdefault(name, {})[comment] = None
    width = max(map(len, said), default=0)
    lines = (f"// {name.ljust(width)}  {'; or '.join(comments)}" for name, comments in said.items())
    return [part for line in lines for part in broken(line, f"//{' ' * (width + 3)}")]


def gathered(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The body with its constants side by side, without their comments, behind its types."""
    constants = [s for s in body if isinstance(s, Let) and s.is_constant]
    types = [replace(s, comment="") for s in constants if s.declaration.startswith("using ")]
    runs = groupby((s for s in constants if not s.declaration.startswith("using ")), lambda s: s.declaration.split()[1])
    numbers = [Do(f"constexpr {kind} {', '.join(f'{s.name} = {s.value}' for s in run)}") for kind, run in runs]
    return (*types, *numbers, *(s for s in body if s not in constants))


def launch_of(plan: Plan) -> Launch:
    s = plan.schedule
    return Launch(
        blocks=plan.blocks,
        threads=s.threads,
        rows_per_block=plan.rows_per_tile,
        cluster=s.cluster,
        parts=s.parts,
        persistent=s.persistent,
        shared_bytes=plan.shared_bytes,
        period=plan.period,
        min_blocks=1 if plan.sums else 0,
        by_batch=plan.walks_batches,
        dependent=s.chained,
    )
