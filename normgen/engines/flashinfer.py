"""FlashInfer's exchange format: definitions, solutions and workloads, for its Trace Apply and for flashinfer-bench.

A definition is one operation at one number of columns, named as FlashInfer names it (`rmsnorm_h4096`), any number of
rows. Its solution is a TVM-FFI library with machine code, whose source is in the JSON: any C++ compiler makes it. A
workload is a tuned number of rows. Trace Apply knows definitions by their names, not by dtypes: a solution holds the
kernels of all dtypes that there are records of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from normgen.engines.source import ExportSource, require_one_arch, written
from normgen.engines.tvm_ffi import LibraryFunction, described, of_machine_code
from normgen.errors import NothingValidError
from normgen.export.groups import groups_of
from normgen.export.header import Halves, halves
from normgen.export.proof import require_all
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.records.record import Record
from normgen.spec.reader import is_built_in
from normgen.spec.spec import READ, Spec

EPS = 1e-6  # of all its definitions


@dataclass(frozen=True, kw_only=True)
class Definition:
    """How FlashInfer names an operation, and which of ours has its values.

    inputs     its names, in the order of a call -> the spec's
    outputs    likewise; `over` names the input whose memory an output takes where FlashInfer calls it in place
    reference  body of the reference, float32 values of the inputs at hand; `eps` is there

    An input that is one number, such as a scale, is a tensor of one element to FlashInfer.
    """

    prefix: str
    spec: str
    fi_api: str
    summary: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    over: Mapping[str, str]
    reference: str

    def fits(self, problem: Problem) -> bool:
        """Whether a problem is this operation: forward, in place as FlashInfer is, with the tensors of its call."""
        there = {t.name for t in problem.tensors}
        needed = {*self.outputs.values(), *self.inputs.values()}
        optional = {t.name for t in problem.spec.tensors if t.optional and t.role in READ}
        in_place = {self.outputs[out]: self.inputs[source] for out, source in self.over.items()}
        return (
            problem.direction is Direction.FORWARD
            and needed <= there <= needed | optional | _statistics(problem)
            and dict(problem.in_place) == in_place
            and is_built_in(problem.spec)
            and self._stores(problem)
        )

    def reads(self, record: Record, spec: Spec) -> bool:
        """Whether a record's kernel reads what a call hands over, all of it and nothing else."""
        read = {t.name for t in spec.tensors if t.role in READ}
        return {name for name, _ in record.problem.dtypes} & read == set(self.inputs.values())

    def _stores(self, problem: Problem) -> bool:
        """FlashInfer's parameters are stored as the input, but a layer normalisation's, which are float32."""
        wanted = "f32" if self.prefix == "layernorm" else problem.tensor("x").dtype.name
        return all(problem.tensor(name).dtype.name == wanted for name in ("weight", "bias") if name in problem.present)


_NORM = "rstd = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)\n"
_TO_FP8 = "(x * rstd * weight.float() * (1 / scale.float())).clamp(-448, 448).to(torch.float8_e4m3fn)"
DEFINITIONS = (
    Definition(
        prefix="rmsnorm",
        spec="rmsnorm",
        fi_api="flashinfer.norm.rmsnorm",
        summary="Root mean square normalisation; eps is 1e-6.",
        inputs={"hidden_states": "x", "weight": "weight"},
        outputs={"output": "y"},
        over={},
        reference=f"x = hidden_states.float()\n{_NORM}return (x * rstd * weight.float()).to(hidden_states.dtype)\n",
    ),
    Definition(
        prefix="fused_add_rmsnorm",
        spec="add_rmsnorm",
        fi_api="flashinfer.norm.fused_add_rmsnorm",
        summary="A residual added, then root mean square normalisation; eps is 1e-6. FlashInfer calls it in place.",
        inputs={"hidden_states": "x", "residual": "residual", "weight": "weight"},
        outputs={"output": "y", "residual_out": "h"},
        over={"output": "hidden_states", "residual_out": "residual"},
        reference=f"x = hidden_states.float() + residual.float()\n{_NORM}"
        "y = x * rstd * weight.float()\nreturn y.to(hidden_states.dtype), x.to(residual.dtype)\n",
    ),
    Definition(
        prefix="gemma_rmsnorm",
        spec="gemma_rmsnorm",
        fi_api="flashinfer.norm.gemma_rmsnorm",
        summary="Root mean square normalisation by 1 + weight; eps is 1e-6.",
        inputs={"hidden_states": "x", "weight": "weight"},
        outputs={"output": "y"},
        over={},
        reference=f"x = hidden_states.float()\n{_NORM}"
        "return (x * rstd * (1 + weight.float())).to(hidden_states.dtype)\n",
    ),
    Definition(
        prefix="rmsnorm_quant",
        spec="flashinfer_rmsnorm_to_fp8",
        fi_api="flashinfer.norm.rmsnorm_quant",
        summary="Root mean square normalisation, times 1 / scale in float8_e4m3fn; eps is 1e-6.",
        inputs={"hidden_states": "x", "weight": "weight", "scale": "scale"},
        outputs={"out": "q"},
        over={},
        reference=f"x = hidden_states.float()\n{_NORM}return {_TO_FP8}\n",
    ),
    Definition(
        prefix="fused_add_rmsnorm_quant",
        spec="flashinfer_add_rmsnorm_to_fp8",
        fi_api="flashinfer.norm.fused_add_rmsnorm_quant",
        summary="A residual added in place, then root mean square normalisation, times 1 / scale in float8_e4m3fn; "
        "eps is 1e-6.",
        inputs={"hidden_states": "x", "residual": "residual", "weight": "weight", "scale": "scale"},
        outputs={"out": "q", "residual_out": "h"},
        over={"residual_out": "residual"},
        reference=f"x = hidden_states.float() + residual.float()\n{_NORM}return {_TO_FP8}, x.to(residual.dtype)\n",
    ),
    Definition(
        prefix="layernorm",
        spec="layernorm",
        fi_api="flashinfer.norm.layernorm",
        summary="Layer normalisation with float32 parameters; eps is 1e-6.",
        inputs={"hidden_states": "x", "weight": "weight", "bias": "bias"},
        outputs={"output": "y"},
        over={},
        reference="x = hidden_states.float()\nmean = x.mean(dim=-1, keepdim=True)\n"
        "rstd = torch.rsqrt((x - mean).pow(2).mean(dim=-1, keepdim=True) + eps)\n"
        "return ((x - mean) * rstd * weight + bias).to(hidden_states.dtype)\n",
    ),
)


def _statistics(problem: Problem) -> set[str]:
    return {t.name for t in problem.tensors if t.nullable}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A definition at some columns: the libraries that its solution holds, that of the first dtype first."""

    definition: Definition
    cols: int
    rows: tuple[int, ...]
    halves: tuple[Halves, ...]

    @property
    def name(self) -> str:
        return f"{self.definition.prefix}_h{self.cols}"

    def files(self) -> Iterator[tuple[str, str]]:
        """Names below the folder, and texts."""
        place = f"rmsnorm/{self.name}" if "rms" in self.definition.prefix else f"layernorm/{self.name}"
        yield f"definitions/{place}.json", _json(self.described())
        yield f"solutions/{place}/normgen_{self.name}.json", _json(self.solution())
        yield f"workloads/{place}.jsonl", "".join(json.dumps(one) + "\n" for one in self.workloads())

    def described(self) -> dict[str, Any]:
        """The definition: its dtypes are those of the first library."""
        one, dtypes = self.definition, {t.name: t.dtype.torch for t in self.halves[0].group.problem.tensors}
        body = "".join(f"    {line}\n" for line in one.reference.splitlines())
        run = f"import torch\n\n\n@torch.no_grad()\ndef run({', '.join(one.inputs)}):\n    eps = {EPS!r}\n{body}"

        def said(names: Mapping[str, str]) -> dict[str, Any]:
            return {name: {"shape": _shape(self, ours), "dtype": dtypes[ours]} for name, ours in names.items()}

        return {
            "name": self.name,
            "description": one.summary,
            "op_type": "rmsnorm" if "rmsnorm" in one.prefix else one.prefix,
            "tags": ["status:verified", f"fi_api:{one.fi_api}"],
            "axes": self._axes(),
            "inputs": said(one.inputs),
            "outputs": said(one.outputs),
            "reference": run,
        }

    def _axes(self) -> dict[str, Any]:
        axes: dict[str, Any] = {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": self.cols}}
        return axes | ({"one": {"type": "const", "value": 1}} if _numbers(self.definition, self.halves[0]) else {})

    def solution(self) -> dict[str, Any]:
        """Its source is all libraries, and a function that picks among them by the dtype of the first input."""
        entry, arch = f"normgen_{self.name}", self.halves[0].group.arch
        libraries = "\n".join(of_machine_code(one)[1] for one in self.halves)
        return {
            "name": entry,
            "definition": self.name,
            "author": "normgen",
            "description": f"{self.definition.summary} Tuned for sm_{arch}.",
            "spec": {
                "language": "cpp",
                "target_hardware": [f"sm{arch}"],
                "entry_point": f"kernel.cc::{entry}",
                "dependencies": [],
                "destination_passing_style": True,
                "binding": "tvm-ffi",
            },
            "sources": [{"path": "kernel.cc", "content": f"{libraries}\n{self._entry(entry)}"}],
        }

    def workloads(self) -> Iterator[dict[str, Any]]:
        """The rows that were tuned for."""
        for rows in self.rows:
            inputs = {name: {"type": "random"} for name in self.definition.inputs}
            uuid = f"normgen-{self.name}-{rows}"
            yield {
                "definition": self.name,
                "workload": {"uuid": uuid, "axes": {"batch_size": rows}, "inputs": inputs},
                "solution": None,
                "evaluation": None,
            }

    def _entry(self, name: str) -> str:
        """Inputs, then outputs, as a definition's destination-passing style is."""
        one = self.definition
        parameters = ", ".join(f"DLTensor* {p}" for p in (*one.inputs, *one.outputs))
        *others, last = [described(part, file_name="") for part in self.halves]
        numbers = _numbers(one, self.halves[0])
        lines = [f"  DLTensor {n}_number = normgen::ffi::number({n});" for n in numbers]
        beside = [out for out in one.outputs if out not in one.over]
        lines += [f"  if ({out}->data == {b}->data) {out} = {s};" for out, s in one.over.items() for b in beside]
        lines += [f"  normgen::ffi::put({source}, {out});" for out, source in one.over.items()]
        lines += [f"  if ({_is_stored(one, f)}) return {_call(one, f, numbers)};" for f in others]
        lines += [f"  return {_call(one, last, numbers)};"]
        return (
            f"{_NUMBER if numbers else ''}{_PUT if one.over else ''}\nnamespace {{\n\n"
            + (f"{_BOUND_TWICE}" if one.over and beside else "")
            + f"inline void {name}(\n    {parameters}) {{\n"
            + "\n".join(lines)
            + f"\n}}\n\n}}  // namespace\n\nTVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});\n"
        )


# Trace Apply of 0.7.2 gives an output without a parameter of its own the memory of `out`.
_BOUND_TWICE = "// An output that lies where another one does was given no memory: it takes its input's.\n"
_NUMBER = """
namespace normgen {
namespace ffi {
namespace {

// A tensor of one element as the number that it holds.
inline DLTensor number(const DLTensor* given) {
  DLTensor found = *given;
  bool is_one = true;
  for (int d = 0; d < found.ndim; ++d) is_one = is_one && found.shape[d] == 1;
  if (is_one) found.ndim = 0;
  return found;
}

}  // namespace
}  // namespace ffi
}  // namespace normgen
"""

# In place, an output is its input. A caller with other memory for it gets a copy first: contiguous tensors alone.
_PUT = """
namespace normgen {
namespace ffi {
namespace {

inline void put(const DLTensor* from, const DLTensor* to) {
  char* source = static_cast<char*>(from->data) + from->byte_offset;
  char* target = static_cast<char*>(to->data) + to->byte_offset;
  if (source == target || from->device.device_type != kDLCUDA || to->device.device_type != kDLCUDA) return;
  std::size_t bytes = (from->dtype.bits + 7) / 8;
  bool alike = from->ndim == to->ndim && from->dtype.bits == to->dtype.bits;
  int64_t step = 1;
  for (int d = from->ndim - 1; alike && d >= 0; --d) {
    const bool packed = (!from->strides || from->strides[d] == step) && (!to->strides || to->strides[d] == step);
    alike = from->shape[d] == to->shape[d] && (packed || from->shape[d] == 1);
    step *= from->shape[d];
    bytes *= static_cast<std::size_t>(from->shape[d]);
  }
  if (!alike) TVM_FFI_THROW(ValueError) << "an output beside its input is contiguous, of the input's shape and dtype";
  const OnDevice there(from->device.device_id);
  check("copy", there.status());
  check("copy", cudaMemcpyAsync(target, source, bytes, stream_of(from->device.device_id)));
}

}  // namespace
}  // namespace ffi
}  // namespace normgen
"""


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _shape(made: Made, ours: str) -> list[str]:
    kind = made.halves[0].group.problem.tensor(ours).kind
    return ["batch_size", "hidden_size"] if kind.by_row else ["hidden_size"] if kind.by_col else ["one"]


def _numbers(one: Definition, part: Halves) -> list[str]:
    """FlashInfer's names of the inputs that are one number."""
    kinds = {name: part.group.problem.tensor(ours).kind for name, ours in one.inputs.items()}
    return [name for name, kind in kinds.items() if not kind.by_row and not kind.by_col]


def _is_stored(one: Definition, function: LibraryFunction) -> str:
    name, ours = next(iter(one.inputs.items()))
    code, bits = next(t for t in function.tensors if t.name == ours).dtype.dlpack
    return f"{name}->dtype.code == {code} && {name}->dtype.bits == {bits}"


def _call(one: Definition, function: LibraryFunction, numbers: Sequence[str]) -> str:
    """That of a library's function: an output in place is passed under the input's name."""
    theirs = {ours: name for name, ours in (*one.inputs.items(), *one.outputs.items())}
    theirs |= {one.inputs[source]: out for out, source in one.over.items()}
    theirs |= {one.inputs[name]: f"&{name}_number" for name in numbers}
    named = [theirs.get(t.name, "tvm::ffi::Optional<DLTensor*>()") for t in function.tensors]
    return f"normgen::ffi::{function.name}({', '.join([*named, *(repr(EPS) for _ in function.scalars)])})"


def made_of(records: Sequence[Record], spec_of: Callable[[Record], Spec]) -> Iterator[Made]:
    """A definition for each operation and number of columns that there are records of."""
    for definition in DEFINITIONS:
        ours = [r for r in records if r.problem.op == definition.spec and r.problem.pitch == r.problem.cols]
        ours = [r for r in ours if definition.reads(r, spec_of(r))]
        for cols, some in groupby(sorted(ours, key=lambda r: r.problem.cols), key=lambda r: r.problem.cols):
            kept = list(some)
            groups = [group for group in groups_of(kept, spec_of) if definition.fits(group.problem)]
            if groups:
                groups.sort(key=lambda g: ("bf16", "f16", "f32").index(g.problem.tensor("x").dtype.name))
                rows = sorted({entry.problem.rows for group in groups for entry in group.entries})
                yield Made(definition=definition, cols=cols, rows=tuple(rows), halves=tuple(map(halves, groups)))


def write_flashinfer(source: ExportSource, folder: Path) -> Iterator[Path]:
    """Definitions, solutions and workloads of the records, as FlashInfer and flashinfer-bench read them.

    Raises NothingValidError where no record is of an operation of FlashInfer; UsageError for records of several GPU
    architectures at one number of columns; CompileError; VerificationError at the end, for records that do not leave.
    """
    found = source.records()
    made = list(made_of(found.records, source.spec_of))
    if not made:
        wanted = ", ".join(sorted({one.spec for one in DEFINITIONS}))
        rule = "FlashInfer's definitions are of forward kernels of built-in specs, of packed rows"
        raise NothingValidError(rule, received="no such record", hint=f"{wanted}; add_rmsnorm in place of its inputs")
    for one in made:
        require_one_arch(one.halves, f"the solution of {one.name} has the machine code of one GPU architecture")
    yield from written(folder, dict(file for one in made for file in one.files()))
    require_all(found.refused)
