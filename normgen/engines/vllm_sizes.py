"""What vLLM asks of our kernels for a model: operations, columns and dtypes from the model's config.json.

Nothing of vLLM or torch is imported. Norms over the hidden size are whole on every GPU of a tensor-parallel group; what
lies along a sharded dimension, as the gates, is divided by its size. Norms of queries and keys, head by head, are not
here: models hand over slices of one projection, whose rows lie at two distances, and the provider leaves these to vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.device import Device
from normgen.errors import UsageError, did_you_mean, needed
from normgen.files.decoded import parse_json
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.spec.reader import load
from normgen.suites.bands import MOST_ROWS, STEP, Bands, row_counts
from normgen.suites.suite import Entry, Suite
from normgen.text import table

ROWS = (1, 16384)  # of tokens in a step
_DTYPES = {"float16": "f16", "bfloat16": "bf16"}
# What vLLM's `--dtype auto` takes in the place of a configuration's dtype, and for which models.
_AUTO, _NOT_IN_FLOAT16 = "bfloat16", frozenset(("gemma2", "gemma3", "glm4"))
# Norms whose weight vLLM holds in float32 (`GemmaRMSNorm`).
_FLOAT32_WEIGHTS = frozenset(
    ("gemma", "gemma2", "gemma3", "qwen3_next", "qwen3_5", "qwen3_5_moe", "rnj1", "step3p5", "alice_ai")
)
GROUP = 128  # columns of a scale
_SPARSE_GATES = frozenset(("gemma3n",))


@dataclass(frozen=True, kw_only=True)
class EngineCall:
    """An operation that the engine calls.

    name     as the engine says it
    spec     which has its bits
    dtypes   where tensors have another dtype than the rows
    """

    name: str
    spec: str
    cols: int
    dtype: str
    dtypes: tuple[tuple[str, str], ...] = ()

    def problem(self, rows: int) -> Problem:
        """As the provider asks it: without the statistics that nobody takes."""
        spec = load(self.spec)
        without = [t.name for t in spec.tensors if t.optional and t.name != "weight"]
        dtypes = dict(self.dtypes)
        return problem_for(spec, shape=(rows, self.cols), dtype=self.dtype, dtypes=dtypes, without=without)

    @property
    def says(self) -> str:
        others = "".join(f", {name} {dtype}" for name, dtype in self.dtypes)
        return f"{self.dtype}{others}"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a call would run on a GPU model.

    tuned    row counts with a record of their own
    untuned  those of the range without: they run a neighbour's schedule, or the default
    """

    call: EngineCall
    counts: tuple[int, ...]
    untuned: tuple[int, ...]
    reason: str

    @property
    def tuned(self) -> tuple[int, ...]:
        return tuple(rows for rows in self.counts if rows not in self.untuned)

    def as_dict(self) -> dict[str, Any]:
        call = self.call
        head = {"name": call.name, "spec": call.spec, "cols": call.cols, "dtype": call.dtype}
        return {
            **head,
            "dtypes": dict(call.dtypes),
            "tuned": list(self.tuned),
            "untuned": list(self.untuned),
            "reason": self.reason,
        }


def read_config(path: Path) -> dict[str, Any]:
    """A model's config.json. Raises UsageError for what is none."""
    with needed("the model's configuration must be readable", hint="--model is a path of a config.json"):
        text = path.read_bytes()
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UsageError("a model's configuration is a JSON object", received=f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("a model's configuration is a JSON object", received=f"{path}: {type(found).__name__}")
    return found


def calls_of(config: Mapping[str, Any], *, tp: int = 1) -> tuple[EngineCall, ...]:
    """What vLLM calls for this model on each of `tp` GPUs.

    Raises UsageError where the hidden size is not there, a size does not divide by `tp`, or the dtype is none of ours.
    """
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    config = {**config, **(text or {})}
    kind = str(config.get("model_type", "")).removesuffix("_text")
    dtype = _dtype_of(config, kind)
    hidden = _size(config, "hidden_size")
    weights = (("weight", "f32"),) if kind in _FLOAT32_WEIGHTS else ()
    found = [
        EngineCall(name=name, spec=spec, cols=hidden, dtype=dtype, dtypes=weights)
        for name, spec in (("rms_norm", "vllm_ir_rmsnorm"), ("fused_add_rms_norm", "vllm_ir_add_rmsnorm"))
    ]
    for name in ("q_lora_rank", "kv_lora_rank"):  # of latent attention, whole on every GPU
        if config.get(name):
            found.append(EngineCall(name="rms_norm", spec="vllm_ir_rmsnorm", cols=_size(config, name), dtype=dtype))
    if kind in _SPARSE_GATES:
        given = config.get("intermediate_size")
        sizes = {
            _whole("intermediate_size", size) for size in (given if isinstance(given, list) and given else [given])
        }
        for size in sorted(sizes):
            cols = _share(size, tp, "intermediate_size")
            found.append(
                EngineCall(name="gelu_and_mul_sparse", spec="vllm_ir_gelu_tanh_mul_sparse", cols=cols, dtype=dtype)
            )
    # Its pass fuses a norm and a quantiser where the weight has the row's dtype.
    return (*found, *(() if weights else _quantising(config, hidden, dtype)))


def _dtype_of(config: Mapping[str, Any], kind: str) -> str:
    """That in which vLLM serves the model by itself: a float32 one in bfloat16. Raises UsageError."""
    said = str(config.get("dtype") or config.get("torch_dtype") or "auto").removeprefix("torch.")
    if said in ("auto", "float32") or (said == "float16" and kind in _NOT_IN_FLOAT16):
        said = _AUTO
    if said not in _DTYPES:
        raise UsageError(
            "a model's dtype is one of ours", received=said, hint=did_you_mean(said, (*_DTYPES, "float32"))
        )
    return _DTYPES[said]


def _quantising(config: Mapping[str, Any], hidden: int, dtype: str) -> Iterable[EngineCall]:
    """The norms that end in fp8, of a model whose configuration says that activations are quantised so."""
    how = config.get("quantization_config")
    form = _form_of(how) if isinstance(how, dict) else ""
    specs = QUANTISING.get(form, {})
    for name, spec in specs.items():
        if form != "group" or hidden % GROUP == 0:  # vLLM's pass leaves others as they are
            yield EngineCall(name=name, spec=spec, cols=hidden, dtype=dtype)


# How activations become fp8 -> vLLM's fused operation -> the preset that has its bits.
QUANTISING: dict[str, dict[str, str]] = {
    "static": {
        "rms_norm_static_fp8_quant": "vllm_rmsnorm_to_fp8",
        "fused_add_rms_norm_static_fp8_quant": "vllm_add_rmsnorm_to_fp8",
    },
    "token": {
        "rms_norm_dynamic_per_token_quant": "vllm_rmsnorm_to_fp8_token",
        "rms_norm_dynamic_per_token_quant, residual": "vllm_add_rmsnorm_to_fp8_token",
    },
    "group": {
        "rms_norm_per_block_quant": "vllm_rmsnorm_to_fp8_group",
        "rms_norm_per_block_quant, residual": "vllm_add_rmsnorm_to_fp8_group",
    },
}


def _form_of(how: Mapping[str, Any]) -> str:
    """Of a quantization_config: "static", "token", "group", or "" where activations do not become fp8 in a norm."""
    if how.get("quant_method") == "fp8":
        if blocks := how.get("weight_block_size"):
            return "group" if isinstance(blocks, list) and blocks[-1:] == [GROUP] else ""
        return "static" if how.get("activation_scheme") == "static" else ""
    if how.get("quant_method") == "compressed-tensors":
        groups = how.get("config_groups")
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
        given = first.get("input_activations") if isinstance(first, dict) else None
        if isinstance(given, dict) and given.get("type") == "float" and given.get("num_bits") == 8:
            if not given.get("dynamic"):
                return "static" if given.get("strategy") == "tensor" else ""
            is_group = given.get("strategy") == "group" and given.get("group_size") == GROUP
            return "token" if given.get("strategy") == "token" else "group" if is_group else ""
    return ""


def coverage(
    call: EngineCall, device: Device, *, rows: tuple[int, int] = ROWS, place: Place = DEFAULT_PLACE
) -> Coverage:
    """Which of the row counts that `normgen tune --engine` tunes have a record of their own on a GPU model."""
    counts = _counts(rows)
    bands = Bands(call.problem(1), device, place=place)
    looked = {count: bands.lookup(count) for count in counts}
    untuned = tuple(c for c, found in looked.items() if not found.exact or bands.band(c) not in bands.tuned)
    reason = looked[untuned[-1]].reason if untuned else ""
    return Coverage(call=call, counts=counts, untuned=untuned, reason=reason)


def suite_of(calls: Sequence[EngineCall], *, rows: tuple[int, int] = ROWS, step: int = STEP) -> Suite:
    """The problems to tune for these calls: one for each row count whose schedule serves a band."""
    entries = [
        Entry(
            op=call.spec,
            shape=f"{count}x{call.cols}",
            problem=call.problem(count),
            place=DEFAULT_PLACE,
            dtypes=call.dtypes,
        )
        for call in calls
        for count in _counts(rows, step)
    ]
    distinct = {entry.label: entry for entry in entries}
    return Suite(name="vllm", summary="What vLLM asks for a model.", entries=tuple(distinct.values()))


def coverage_text(found: Sequence[Coverage]) -> str:
    """A line for each call: what is tuned and what is not."""
    rows = [
        [f.call.name, str(f.call.cols), f.call.says, _listed(f.tuned), _listed(f.untuned), f.call.spec] for f in found
    ]
    return table(["operation", "cols", "dtype", "tuned rows", "untuned rows", "spec"], rows)


def _listed(counts: Sequence[int]) -> str:
    return ",".join(map(str, counts)) or "none"


def _counts(rows: tuple[int, int], step: int = STEP) -> tuple[int, ...]:
    first, last = (min(count, MOST_ROWS) for count in rows)
    return row_counts(first, last, step=step)


def _size(config: Mapping[str, Any], name: str) -> int:
    return _whole(name, config.get(name))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        rule = f"a model's configuration has '{name}', a whole number from 1 on"
        raise UsageError(rule, received=json.dumps(value, default=str))
    return value


def _share(size: int, tp: int, name: str) -> int:
    if size % tp:
        raise UsageError(f"'{name}' divides by the tensor-parallel size", received=f"{size} and {tp}")
    return size // tp
