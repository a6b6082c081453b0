"""What vLLM asks for a model, from its config.json; and the commands that say and tune it. No vLLM is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normgen.cli.main import main
from normgen.device import target
from normgen.engines.vllm_sizes import QUANTISING, EngineCall, calls_of, coverage, read_config, suite_of
from normgen.errors import UsageError
from normgen.spec.reader import load

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "torch_dtype": "bfloat16"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 128}


def said(config: dict[str, Any], **options: Any) -> list[tuple[str, int]]:
    return [(call.name, call.cols) for call in calls_of(config, **options)]


def test_a_model_s_norms_are_over_its_hidden_size_on_every_gpu() -> None:
    for tp in (1, 4):
        assert said(LLAMA, tp=tp) == [("rms_norm", 512), ("fused_add_rms_norm", 512)]


def test_norms_of_heads_are_left_to_vllm() -> None:
    """Its models hand over slices of one projection: test_vllm.py asks the provider."""
    assert said(QWEN3) == said(LLAMA)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"torch_dtype": "float32"}, "bf16"),  # as `--dtype auto` does
        ({"torch_dtype": None}, "bf16"),
        ({"torch_dtype": "auto"}, "bf16"),
        ({"torch_dtype": None, "dtype": "torch.float16"}, "f16"),
        ({"torch_dtype": "float16", "model_type": "gemma3_text"}, "bf16"),
    ],
)
def test_a_model_s_dtype_is_the_one_that_vllm_takes_by_itself(given: dict[str, Any], taken: str) -> None:
    assert {call.dtype for call in calls_of({**LLAMA, **given})} == {taken}


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_text_model_s_weights_are_those_of_its_family(kind: str) -> None:
    calls = calls_of({"model_type": kind, "text_config": {**LLAMA, "model_type": f"{kind}_text"}})
    assert {call.dtypes for call in calls} == {(("weight", "f32"),)}


def test_gemma_s_weights_are_float32_and_a_text_config_counts() -> None:
    calls = calls_of({"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text", "head_dim": 64}})
    assert {call.dtypes for call in calls} == {(("weight", "f32"),)}
    assert calls[0].problem(4).tensor("weight").dtype.name == "f32"


def test_latent_attention_and_sparse_gates_have_sizes_of_their_own() -> None:
    assert said({**LLAMA, "q_lora_rank": 192, "kv_lora_rank": 64})[2:] == [("rms_norm", 192), ("rms_norm", 64)]
    gates = {**QWEN3, "model_type": "gemma3n_text", "intermediate_size": [1024, 1024]}
    assert ("gelu_and_mul_sparse", 512) in said(gates, tp=2)


@pytest.mark.parametrize(
    ("how", "form"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "static"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "group"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ""),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"input_activations": {
            "type": "float", "num_bits": 8, "dynamic": True, "strategy": "token"}}}}, "token"),
        ({"quant_method": "awq"}, ""),
    ],
)  # fmt: skip
def test_a_quantised_model_s_norms_end_in_fp8(how: dict[str, Any], form: str) -> None:
    found = {call.name: call.spec for call in calls_of({**LLAMA, "quantization_config": how})[2:]}
    assert found == QUANTISING.get(form, {})


def test_every_operation_has_a_preset_whose_problem_is_what_the_provider_asks() -> None:
    for specs in QUANTISING.values():
        for name, spec in specs.items():
            problem = EngineCall(name=name, spec=spec, cols=512, dtype="f16").problem(3)
            assert problem.spec == load(spec)
            assert "rstd" not in problem.present


@pytest.mark.parametrize(
    ("text", "rule"),
    [("[1]", "JSON object"), ("{", "JSON object"), ("{}", "hidden_size"), ('{"hidden_size": true}', "hidden_size")],
)
def test_what_is_no_configuration_is_refused(text: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=rule):
        calls_of(read_config(path))
    with pytest.raises(UsageError, match="dtype"):
        calls_of({**LLAMA, "torch_dtype": "int8"})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("llama", "hidden_size", 0),
        ("llama", "hidden_size", "64"),
        ("llama", "hidden_size", -1),
        ("gemma3n", "intermediate_size", [2048, "a"]),
        ("gemma3n", "intermediate_size", []),
        ("gemma3n", "intermediate_size", None),
        ("llama", "q_lora_rank", 1.5),
    ],
)
def test_a_size_that_is_no_whole_number_is_refused_by_its_name(kind: str, name: str, value: Any) -> None:
    given = value[-1] if isinstance(value, list) and value else value
    with pytest.raises(UsageError, match=f"'{name}', a whole number from 1 on") as refused:
        calls_of({**LLAMA, "model_type": kind, name: value})
    assert refused.value.received == json.dumps(given)


@pytest.mark.parametrize("other", [{"hidden_size": 576}, {"model_type": "gemma3"}])
def test_norms_that_vllm_does_not_fuse_end_in_no_fp8(other: dict[str, Any]) -> None:
    """Columns that are no whole groups, and weights of another dtype than the rows."""
    how = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert len(calls_of({**LLAMA, **how})) == 4
    assert [call.name for call in calls_of({**LLAMA, **how, **other})] == ["rms_norm", "fused_add_rms_norm"]


@pytest.mark.parametrize("blocks", [128, "128", {"1": 128}])
def test_blocks_that_are_no_list_quantise_no_norm(blocks: Any) -> None:
    how = {"quant_method": "fp8", "weight_block_size": blocks}
    assert [call.name for call in calls_of({**LLAMA, "quantization_config": how})] == ["rms_norm", "fused_add_rms_norm"]


def test_a_suite_has_a_problem_for_each_band_of_each_call() -> None:
    suite = suite_of(calls_of(QWEN3), rows=(1, 64))
    shapes = [(entry.op, entry.shape) for entry in suite.entries]
    assert len(set(shapes)) == len(shapes)
    assert {rows for op, rows in shapes if op == "vllm_ir_add_rmsnorm"} == {f"{n}x512" for n in (1, 4, 16, 64)}
    assert all(entry.problem.cols == int(entry.shape.partition("x")[2]) for entry in suite.entries)


def test_a_check_says_what_is_untuned_and_a_tune_of_the_engine_changes_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "hidden_size": 96}))
    norm = calls_of(read_config(config))[0]
    assert coverage(norm, target("h200"), rows=(1, 4)).untuned == (1, 4)

    asked = ("--model", str(config), "--device", "cpu", "--rows", "1..4")
    with pytest.raises(SystemExit, match="0"):
        main(["tune", "--engine", "vllm", *asked, "--trials", "1", "--jobs", "2", "--json"])
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert {job["status"] for job in jobs} == {"done"}
    assert len(jobs) == 4
    assert coverage(norm, target("h200"), rows=(1, 4)).untuned == ()

    with pytest.raises(SystemExit, match="0"):
        main(["engines", "vllm", "--check", *asked[:-1], "1..16", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [(call["name"], call["tuned"], call["untuned"]) for call in found["calls"]] == [
        ("rms_norm", [1, 4], [16]),
        ("fused_add_rms_norm", [1, 4], [16]),
    ]
    with pytest.raises(SystemExit, match="0"):
        main(["engines", "vllm", "--check", *asked])
    assert "normgen tune --engine" not in capsys.readouterr().out


def test_an_engine_and_its_model_belong_together(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--engine", "vllm"], ["--shape", "8x64", "--model", __file__], []):
        with pytest.raises(SystemExit, match="2"):
            main(["tune", *words])
    with pytest.raises(SystemExit, match="2"):
        main(["engines", "vllm"])
    assert "--check" in capsys.readouterr().err


def test_what_an_engine_asks_is_said_without_torch_or_the_engine() -> None:
    program = (
        "import sys, normgen, normgen.cli.tune.run, normgen.cli.engines.command, normgen.engines.vllm_sizes\n"
        "print([m for m in ('torch', 'vllm', 'sglang', 'normgen.torch', 'normgen.engines.vllm') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
