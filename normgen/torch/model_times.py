"""What norms cost in a whole model: its steps as it is, with ours, with Liger's, and with a copy in each norm's place.

A copy reads and writes what a norm has to, forward and backward, so the model with copies is what an ideal norm would
give. The norms are those that `replace` finds; all else, parameters too, is one and the same model: only the `forward`
of the norms changes from step to step. Each round takes one step of every contender, in another order each time; a
step's time is the host's, from one synchronisation to the next.
"""

from __future__ import annotations

import copy
import functools
import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from normgen.errors import NoDeviceError, UsageError, did_you_mean
from normgen.records.statistics import Ratio, median, paired_ratio, price_ratio
from normgen.text import figure, table
from normgen.torch.choosing import sites
from normgen.torch.replacing.patching import replace, restore
from normgen.torch.replacing.probing import Norm

Module = Any
Tensor = Any
Forwards = Mapping[str, Callable[[Tensor], Tensor] | None]  # by the name of a module; None: its class's

AS_IT_IS, AGAIN, OURS, OPAQUE, LIGER, IDEAL = "torch", "torch again", "ours", "ours, opaque", "liger", "copies"
WARM_UP = 3  # rounds: the first ones compile and load
DECODE_STEPS = 8  # of one sample: tokens one after the other


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model of transformers, and the tokens of a training step and of a decoding one: (sequences, length)."""

    model: str
    config: Mapping[str, Any]
    train: tuple[int, int]
    decode: tuple[int, int]


TASKS: dict[str, Task] = {
    "llama": Task(
        model="Llama",
        config={
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 8,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
        },
        train=(4, 1024),
        decode=(4, 128),
    ),
    "gpt2": Task(
        model="GPT2",
        config={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        train=(8, 1024),
        decode=(4, 128),
    ),
}


@dataclass(frozen=True, kw_only=True)
class ModelTimes:
    """Times of one model's steps.

    sites     what the norms compute, and how many of them there are
    ms        step ("train", "decode", "train, compiled") -> contender -> its samples, round by round
    errors    contender -> [the loss's relative distance, and that of all gradients, from the float64 model's]
    failed    contender or step -> why it is not there
    """

    name: str
    versions: Mapping[str, str]
    sites: Sequence[str]
    ms: Mapping[str, Mapping[str, Sequence[float]]] = field(hash=False)
    errors: Mapping[str, tuple[float, float]] = field(hash=False)
    failed: Mapping[str, str] = field(hash=False)

    def ratio(self, step: str, contender: str) -> Ratio:
        """Its time over the model's as it is."""
        return paired_ratio(self.ms[step][contender], self.ms[step][AS_IT_IS])

    def share(self, step: str, contender: str) -> Ratio | None:
        """Of what an ideal norm would save, what this one saves; None where a copy saves nothing that can be told."""
        times = self.ms[step]
        if IDEAL not in times:
            return None
        return price_ratio(times[AS_IT_IS], times[AGAIN], a_base=times[contender], b_base=times[IDEAL])

    def as_dict(self) -> dict[str, Any]:
        """The object `normgen bench --model NAME --json -` prints."""
        summary = {
            step: {
                name: {
                    "median_ms": median(samples),
                    "of_torch": _ends(self.ratio(step, name)),
                    "share_of_ideal": _ends(self.share(step, name)),
                }
                for name, samples in times.items()
            }
            for step, times in self.ms.items()
        }
        return {
            "model": self.name,
            "versions": dict(self.versions),
            "sites": list(self.sites),
            "steps": summary,
            "errors": {name: dict(zip(("loss", "gradients"), e, strict=True)) for name, e in self.errors.items()},
            "failed": dict(self.failed),
            "samples_ms": {step: {n: list(s) for n, s in times.items()} for step, times in self.ms.items()},
        }

    def __str__(self) -> str:
        lines = []
        for step, times in self.ms.items():
            for name, samples in times.items():
                share = self.share(step, name) if name not in (AS_IT_IS, AGAIN) else None
                lines.append([step, name, figure(median(samples)), _between(self.ratio(step, name)), _between(share)])
        parts = [
            f"{self.name}: {'; '.join(self.sites)}",
            table(["step", "norms", "ms", "of torch", "share of what copies save"], lines),
        ]
        if self.errors:
            found = [[name, f"{loss:.2e}", f"{gradients:.2e}"] for name, (loss, gradients) in self.errors.items()]
            parts.append(table(["norms", "loss, from float64", "gradients, from float64"], found))
        parts += [f"{what}: {why}" for what, why in self.failed.items()]
        return "\n\n".join(parts)


def model_times(name: str, *, rounds: int = 20, device: int = 0, compiled: bool = False) -> ModelTimes:
    """Time a model of TASKS; compiled: beside the rest, its training step under torch.compile, which takes minutes.

    Raises UsageError for another name and without transformers, NoDeviceError where torch sees no GPU.
    """
    if name not in TASKS:
        raise UsageError("a model is one of " + ", ".join(TASKS), received=name, hint=did_you_mean(name, [*TASKS]))
    if not torch.cuda.is_available():
        raise NoDeviceError("torch sees a GPU", received="none")
    return timed(name, TASKS[name], torch.device("cuda", device), rounds=rounds, compiled=compiled)


def timed(name: str, task: Task, device: Any, *, rounds: int, compiled: bool) -> ModelTimes:
    """As `model_times`, for any task."""
    model, versions = _model(task, device)
    report = replace(model)
    norms = dict(report.replaced)
    contenders, failed = _contenders(model, norms)
    generator = torch.Generator(device="cpu").manual_seed(0)
    tokens, prompt = (
        torch.randint(0, model.config.vocab_size, size, generator=generator, dtype=torch.int64, device="cpu").to(device)
        for size in (task.train, task.decode)
    )

    def training() -> Any:
        return _train(model, tokens)

    steps: dict[str, Callable[[], Any]] = {"train": training, "decode": _Decoding(model, prompt)}
    ms = {}
    for step, run in steps.items():
        run()  # where nothing is replaced: what a step allocates is there from now on
        ms[step] = _interleaved(contenders, functools.partial(_under, model, run), device, rounds)
    errors = _errors(model, contenders, tokens[:1], failed)
    listed = str(report).splitlines()
    if compiled:
        ms["train, compiled"], ran = _compiled(model, tokens, device, rounds)
        listed += [f"compiled: {line}" for line in ran]
    return ModelTimes(name=name, versions=versions, sites=listed, ms=ms, errors=errors, failed=failed)


def _model(task: Task, device: Any) -> tuple[Module, dict[str, str]]:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError("whole models are those of transformers", received=str(error)) from error
    config = getattr(transformers, f"{task.model}Config")(**task.config)
    with torch.device(device):
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return made.to(device).train(), {"torch": torch.__version__, "transformers": transformers.__version__}


def _contenders(model: Module, norms: Mapping[str, Norm]) -> tuple[dict[str, Forwards], dict[str, str]]:
    modules = {name: model.get_submodule(name) for name in norms}
    ours = {name: module.forward for name, module in modules.items()}
    restore(model)
    failed: dict[str, str] = {}
    found: dict[str, Forwards] = {AS_IT_IS: dict.fromkeys(norms), OURS: ours}
    try:
        found[LIGER] = {name: _liger(modules[name], norm) for name, norm in norms.items()}
    except (ImportError, UsageError) as error:
        failed[LIGER] = str(error).splitlines()[0]
    found |= {IDEAL: dict.fromkeys(norms, _Copy.apply), AGAIN: dict.fromkeys(norms)}
    return found, failed


class _Copy(torch.autograd.Function):
    """What a norm reads and writes, without its arithmetic."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, dy: Tensor) -> Tensor:
        return dy.clone()


def _liger(module: Module, norm: Norm) -> Callable[[Tensor], Tensor]:
    functional = importlib.import_module("liger_kernel.transformers.functional")
    parameters = [getattr(module, name) for name in norm.parameters]
    modes = {"llama_rms_norm": (0.0, "llama"), "gemma_rms_norm": (1.0, "gemma"), "rms_norm": (0.0, "none")}
    if norm.function in modes and parameters:
        offset, mode = modes[norm.function]
        return lambda x: functional.liger_rms_norm(x, parameters[0], norm.eps, offset, mode)
    if norm.function == "layer_norm" and len(parameters) == 2:
        return lambda x: functional.liger_layer_norm(x, *parameters, norm.eps)
    raise UsageError("Liger has rms_norm with a weight, and layer_norm with weight and bias", received=str(norm))


@contextmanager
def _norms(model: Module, forwards: Forwards) -> Iterator[None]:
    """The norms of the model with other forwards."""
    modules = [(model.get_submodule(name), forward) for name, forward in forwards.items()]
    for module, forward in modules:
        if forward is not None:
            module.forward = forward
    try:
        yield
    finally:
        for module, forward in modules:
            if forward is not None:
                del module.forward


def _under(model: Module, run: Callable[[], Any], forwards: Forwards) -> None:
    with _norms(model, forwards):
        run()


def _train(model: Module, tokens: Tensor) -> Tensor:
    """Forward and backward; no optimiser, which no norm changes."""
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.detach()


class _Decoding:
    """Tokens one after the other, eagerly, behind a prompt that is there."""

    def __init__(self, model: Module, prompt: Tensor) -> None:
        self.model, self.prompt = model, prompt
        with torch.no_grad():
            found = model(input_ids=prompt, use_cache=True)
        # As transformers calls it, which had another name for it before 5.24.
        self.named = next(name for name in ("cache", "past_key_values") if name in found)
        self.cache = found[self.named]

    def __call__(self) -> None:
        with torch.no_grad():
            for _ in range(DECODE_STEPS):
                self.model(input_ids=self.prompt[:, -1:], use_cache=True, **{self.named: self.cache})
        self.cache.crop(-DECODE_STEPS)


def _interleaved(
    contenders: Mapping[str, Any], run: Callable[[Any], Any], device: Any, rounds: int
) -> dict[str, list[float]]:
    """ms of each contender by round; the one that begins changes from round to round."""
    names = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + WARM_UP):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            _wait(device)
            start = time.perf_counter()
            run(contenders[name])
            _wait(device)
            if number >= WARM_UP:
                found[name].append((time.perf_counter() - start) * 1e3)
    return found


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _compiled(model: Module, tokens: Tensor, device: Any, rounds: int) -> tuple[dict[str, list[float]], list[str]]:
    """(The training step under torch.compile, what ran at the sites of ours).

    One copy of the model for each, since a compiler keeps what it saw.
    """
    model.zero_grad(set_to_none=True)
    made = {}
    ran: list[str] = []
    for name, opaque in ((AS_IT_IS, None), (OURS, None), (OPAQUE, True), (AGAIN, None)):
        made[name] = copy.deepcopy(model)
        if name in (OURS, OPAQUE):
            replace(made[name], opaque=opaque)
        made[name].compile()
        if name == OURS:
            _train(made[name], tokens)
            what = Counter((site.function, site.kernel) for site in sites())
            ran = [f"{n} x {of}: {'kernel' if kernel else 'formulas'}" for (of, kernel), n in what.items()]
    return _interleaved(made, lambda other: _train(other, tokens), device, rounds), ran


def _errors(
    model: Module, contenders: Mapping[str, Forwards], tokens: Tensor, failed: dict[str, str]
) -> dict[str, tuple[float, float]]:
    """How far loss and gradients of one sequence are from those of the same model in float64, for each contender.

    A relative distance of gradients is that of all of them as one vector.
    """
    try:
        exact = copy.deepcopy(model).double()
        want = _train(exact, tokens).double()
        truth = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    except torch.cuda.OutOfMemoryError as error:
        failed["float64"] = str(error).splitlines()[0]
        return {}
    size = sum(float(g.square().sum()) for g in truth.values())
    found = {}
    for name in (AS_IT_IS, OURS, LIGER):
        if name not in contenders:
            continue
        with _norms(model, contenders[name]):
            loss = _train(model, tokens).double()
        off = sum(float((p.grad.double() - truth[n]).square().sum()) for n, p in model.named_parameters() if n in truth)
        found[name] = float(((loss - want) / want).abs()), (off / size) ** 0.5
    return found


def _ends(ratio: Ratio | None) -> list[float] | None:
    return None if ratio is None else [ratio.median, ratio.low, ratio.high]


def _between(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
