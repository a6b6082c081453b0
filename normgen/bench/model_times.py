"""What norms cost in a whole model: its steps as it is, with ours, with Liger's, and with a copy in each norm's place.

A copy reads and writes what a norm has to, forward and backward, so the model with copies is what an ideal norm would
give. The norms are those that `replace` finds; all else, parameters too, is one and the same model: only the `forward`
of the norms changes from step to step. Each round takes one step of every contender, in another order each time; a
step's time is the host's, from one synchronisation to the next.

A task with products compares, beside the model as it is, its norms and gates replaced with all that
`replace(products=True)` replaces: also in a prefill, and where tokens are decoded by a CUDA graph.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

import torch

from normgen.bench.rounds import Contender, Rounds, against, interleaved
from normgen.cuda.driver import device_facts
from normgen.errors import NoDeviceError, UsageError, did_you_mean
from normgen.records.statistics import Ratio, price_ratio
from normgen.text import table
from normgen.torch.choosing import sites
from normgen.torch.functional import function
from normgen.torch.replacing.gating import GatedMlp
from normgen.torch.replacing.patched import is_patched
from normgen.torch.replacing.patching import What, replace, restore
from normgen.torch.replacing.probing import Norm
from normgen.trials.head import opening

Module = Any
Tensor = Any
Forwards = Mapping[str, Callable[[Tensor], Tensor] | None]  # by the name of a module; None: its class's

AS_IT_IS, AGAIN, OURS, OPAQUE, LIGER, IDEAL = "torch", "torch again", "ours", "ours, opaque", "liger", "copies"
GATES, PRODUCTS, MLPS = "ours, gates", "ours, products", "ours, products of MLPs"
DECODE_STEPS = 8  # of one sample: tokens one after the other


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model of transformers, and the tokens of a training step and of a decoding one: (sequences, length)."""

    model: str
    config: Mapping[str, Any]
    train: tuple[int, int]
    decode: tuple[int, int]
    products: bool = False


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
TASKS |= {f"{name}-products": replace_fields(task, products=True) for name, task in TASKS.items()}


@dataclass(frozen=True, kw_only=True)
class ModelTimes(Rounds):
    """Times of one model's steps: "train", "decode", "train, compiled".

    sites     what the norms compute, and how many of them there are
    errors    contender -> the loss's relative distance, and that of all gradients, from the float64 model's
    """

    sites: tuple[str, ...] = ()
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        found = [[name, f"{loss:.2e}", f"{gradients:.2e}"] for name, (loss, gradients) in self.errors.items()]
        errors = table(["norms", "loss, from float64", "gradients, from float64"], found)
        return super().__str__() + (f"\n\n{errors}" if found else "")


def _shared(times: Mapping[str, tuple[float, ...]], step: str, base: str) -> list[Contender]:
    """The contenders of a step; of what an ideal norm would save, what each saves, where a copy saves anything."""

    def share(name: str) -> Ratio | None:
        if IDEAL not in times or name in (AS_IT_IS, AGAIN):
            return None
        return price_ratio(times[AS_IT_IS], times[AGAIN], a_base=times[name], b_base=times[IDEAL])

    return [replace_fields(one, share=share(one.name)) for one in against(times, base, step=step)]


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
    report = replace(model, products=task.products)
    base = GATES if task.products else AS_IT_IS
    contenders, failed = (_with_products if task.products else _contenders)(model, report.replaced)
    generator = torch.Generator(device="cpu").manual_seed(0)
    tokens, prompt = (
        torch.randint(0, model.config.vocab_size, size, generator=generator, dtype=torch.int64, device="cpu").to(device)
        for size in (task.train, task.decode)
    )

    def training() -> Any:
        return _train(model, tokens)

    decoding = _Decoding(model, prompt)
    steps: dict[str, Callable[[], Any]] = {"train": training, "decode": decoding}
    if task.products:
        steps["prefill"] = functools.partial(_prefill, model, tokens)
    found: list[Contender] = []
    for step, run in steps.items():
        run()  # where nothing is replaced: what a step allocates is there from now on
        found += _interleaved(contenders, functools.partial(_under, model, run), device, rounds, step, base)
    if task.products and device.type == "cuda":
        try:
            graphs = {name: _graph(model, decoding, forwards) for name, forwards in contenders.items()}
            found += _interleaved(graphs, lambda graph: graph.replay(), device, rounds, "decode, graph", base)
        except RuntimeError as error:
            torch.cuda.synchronize(device)  # raises where a kernel failed, which is not a model that no graph takes
            failed["decode, graph"] = str(error).splitlines()[0]
    errors = _errors(model, contenders, tokens[:1], failed)
    listed = str(report).splitlines()
    if compiled:
        times, ran = _compiled(model, tokens, device, rounds)
        found += times
        listed += [f"compiled: {line}" for line in ran]
    facts = device_facts(device.index) if device.type == "cuda" else None
    return ModelTimes(
        **opening(facts, versions, {"rounds": rounds}),
        finished=True,
        note="",
        name=name,
        about=f"{name}: {'; '.join(listed)}",
        unit="ms",
        base=base,
        failed=failed,
        contenders=tuple(found),
        sites=tuple(listed),
        errors=errors,
    )


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


def _with_products(model: Module, replaced: Mapping[str, What]) -> tuple[dict[str, Forwards], dict[str, str]]:
    ours = {name: module.forward for name, module in model.named_modules() if is_patched(module)}
    norms = {name: forward for name, forward in ours.items() if isinstance(replaced.get(name), Norm)}
    gates = {name: _gate(model.get_submodule(name), mlp) for name, mlp in replaced.items() if isinstance(mlp, GatedMlp)}
    restore(model)
    mlps = {name: ours[name] for name in gates}
    return {AS_IT_IS: {}, GATES: norms | gates, MLPS: norms | mlps, PRODUCTS: ours, AGAIN: {}}, {}


def _gate(module: Module, mlp: GatedMlp) -> Callable[[Tensor], Tensor]:
    """A gated MLP by torch's products and our function of rows."""
    gate, up, down = (getattr(module, name) for name in (mlp.gate, mlp.up, mlp.down))
    run = function(mlp.function)
    return lambda x: down(run(gate(x), up(x)))


def _contenders(model: Module, norms: Mapping[str, Any]) -> tuple[dict[str, Forwards], dict[str, str]]:
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


def _prefill(model: Module, tokens: Tensor) -> None:
    with torch.no_grad():
        model(input_ids=tokens, use_cache=False, logits_to_keep=1)


class _Decoding:
    """Tokens one after the other, eagerly, behind a prompt that is there.

    The prompt's keys and values stay where they are as long as this object does: a graph reads them at each replay.
    """

    def __init__(self, model: Module, prompt: Tensor) -> None:
        self.model, self.prompt = model, prompt
        with torch.no_grad():
            found = model(input_ids=prompt, use_cache=True)
        # As transformers calls it, which had another name for it before 5.24.
        self.named = next(name for name in ("cache", "past_key_values") if name in found)
        self.cache = found[self.named]

    def __call__(self) -> None:
        cache = copy.copy(self.cache)
        cache.layers = [copy.copy(layer) for layer in self.cache.layers]  # a token makes new tensors of a layer
        with torch.no_grad():
            for _ in range(DECODE_STEPS):
                self.model(input_ids=self.prompt[:, -1:], use_cache=True, **{self.named: cache})


def _graph(model: Module, decoding: _Decoding, forwards: Forwards) -> Any:
    """Tokens one after the other as a CUDA graph, which may be replayed as long as `decoding` exists."""
    graph = torch.cuda.CUDAGraph()
    with _norms(model, forwards):
        decoding()  # kernels are compiled and loaded, and allocations made
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            decoding()
    return graph


def _interleaved(
    contenders: Mapping[str, Any], run: Callable[[Any], Any], device: Any, rounds: int, step: str, base: str = AS_IT_IS
) -> list[Contender]:
    """ms of each contender by round, from one synchronisation to the next."""
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    calls = {name: functools.partial(run, contender) for name, contender in contenders.items()}
    return _shared(interleaved(calls, rounds, scale=1e3, wait=wait, is_whole=True), step, base)


def _compiled(model: Module, tokens: Tensor, device: Any, rounds: int) -> tuple[list[Contender], list[str]]:
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
    return _interleaved(made, lambda other: _train(other, tokens), device, rounds, "train, compiled"), ran


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
    for name in (name for name in contenders if name not in (IDEAL, AGAIN)):
        with _norms(model, contenders[name]):
            loss = _train(model, tokens).double()
        off = sum(float((p.grad.double() - truth[n]).square().sum()) for n, p in model.named_parameters() if n in truth)
        found[name] = float(((loss - want) / want).abs()), (off / size) ** 0.5
    return found
