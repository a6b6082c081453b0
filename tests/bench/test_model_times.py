"""Whole models: what is timed is right, and each contender's norms are those that it says."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from normgen.bench import model_times  # noqa: E402
from normgen.bench.model_times import AGAIN, AS_IT_IS, GATES, IDEAL, MLPS, OURS, PRODUCTS, ModelTimes, Task  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.trials.file import of_text, text_of  # noqa: E402

TINY = {
    "llama": Task(
        model="Llama",
        config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 128,
        },
        train=(2, 12),
        decode=(2, 5),
    ),
    "gpt2": Task(
        model="GPT2",
        config={"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 32}
        | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        train=(2, 12),
        decode=(2, 5),
    ),
}
NORMS = {"llama": 5, "gpt2": 5}


@pytest.mark.parametrize("name", TINY)
def test_steps_of_a_model_are_timed_and_compared_with_float64(name: str) -> None:
    found = model_times.timed(name, TINY[name], torch.device("cpu"), rounds=6, compiled=False)
    assert str(found.sites[0]).startswith(f"{NORMS[name]} x replaced")
    steps = {step: {c.name: c for c in found.contenders if c.step == step} for step in ("train", "decode")}
    assert sum(map(len, steps.values())) == len(found.contenders)
    assert all({AS_IT_IS, OURS, IDEAL, AGAIN} <= set(times) for times in steps.values())
    assert all(len(contender.samples) == 6 for contender in found.contenders)
    loss, gradients = found.errors[OURS]
    assert 0 < gradients <= 1.5 * found.errors[AS_IT_IS][1], "as near to float64 as the model itself"
    assert loss <= 2**-7, "within bf16 of the loss in float64"
    told = json.loads(json.dumps(found.as_dict()))
    base = next(one for one in told["contenders"] if (one["step"], one["name"]) == ("train", AS_IT_IS))
    assert base["of_base"] == {"median": 1, "low": 1, "high": 1}
    assert of_text(ModelTimes, text_of(found).encode()) == found
    assert f"{name}:" in str(found)


def test_the_norms_of_a_contender_are_there_for_its_step_alone() -> None:
    model, _ = model_times._model(TINY["llama"], torch.device("cpu"))
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    norm = model.model.norm
    own = norm(x)
    contenders, _ = model_times._contenders(model, dict(model_times.replace(model).replaced))
    with model_times._norms(model, contenders[IDEAL]):
        assert torch.equal(norm(x), x)
    with model_times._norms(model, contenders[OURS]):
        assert torch.equal(norm(x), own)
    assert "forward" not in vars(norm)


def test_a_model_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="llama"):
        model_times.model_times("lama")


def test_a_step_of_decoding_leaves_the_cache_as_it_was() -> None:
    model, _ = model_times._model(TINY["llama"], torch.device("cpu"))
    step: Any = model_times._Decoding(model, torch.arange(10).reshape(2, 5))
    before = [(layer.keys, layer.values) for layer in step.cache.layers]
    step()
    assert step.cache.get_seq_length() == 5
    # The same tensors: a graph that was captured reads them at each replay, when an eager step has come between.
    after = [(layer.keys, layer.values) for layer in step.cache.layers]
    assert all(a is b for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True))


def test_a_task_with_products_times_them_beside_rows_alone() -> None:
    config = TINY["llama"].config | {"intermediate_size": 128}
    task = replace(TINY["llama"], config=config, products=True)
    found = model_times.timed("llama-products", task, torch.device("cpu"), rounds=3, compiled=False)
    assert found.base == GATES
    steps = {step: [c.name for c in found.contenders if c.step == step] for step in ("train", "decode", "prefill")}
    assert all(names == [AS_IT_IS, GATES, MLPS, PRODUCTS, AGAIN] for names in steps.values())
    assert [*found.errors] == [AS_IT_IS, GATES, MLPS, PRODUCTS]
    assert "2 x replaced: down_proj(swiglu(gate_proj(x), up_proj(x)))" in found.sites
    of_model, _ = model_times._model(task, torch.device("cpu"))
    contenders, _ = model_times._with_products(of_model, model_times.replace(of_model, products=True).replaced)
    assert {name: len(forwards) for name, forwards in contenders.items()} == {
        AS_IT_IS: 0,
        GATES: 7,
        MLPS: 7,
        PRODUCTS: 25,
        AGAIN: 0,
    }


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:no record")
def test_graphs_of_decoding_are_replayed_beside_each_other() -> None:
    task = replace(TINY["llama"], config=TINY["llama"].config | {"intermediate_size": 128}, products=True)
    found = model_times.timed("llama-products", task, torch.device("cuda", 0), rounds=3, compiled=False)
    assert not found.failed
    graphs = [c.name for c in found.contenders if c.step == "decode, graph"]
    assert graphs == [AS_IT_IS, GATES, MLPS, PRODUCTS, AGAIN]
