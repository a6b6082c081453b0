"""A small Llama of transformers before and behind `kernelize`, in a process of its own: python kernelized.py FOLDER.

Prints how far logits and the weights' gradients move, relative to the largest, in each of the four modes.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
from kernels import LocalLayerRepository, Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

MODES = (
    Mode.INFERENCE,
    Mode.TRAINING,
    Mode.INFERENCE | Mode.TORCH_COMPILE,
    Mode.TRAINING | Mode.TORCH_COMPILE,
)


def moved(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def main() -> None:
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not hasattr(LlamaRMSNorm, "kernel_layer_name"):  # as transformers does itself with the release it asks for
        replace_kernel_forward_from_hub(LlamaRMSNorm, "RMSNorm")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32)
    model = LlamaForCausalLM(config).to(device, torch.bfloat16)
    for norm in (m for m in model.modules() if isinstance(m, LlamaRMSNorm)):
        norm.weight.data += 0.1 * torch.randn_like(norm.weight)
    ids = torch.randint(64, (2, 8), device=device)
    repository = LocalLayerRepository(repo_path=Path(sys.argv[1]), layer_name="RMSNorm")
    found: dict[str, list[float]] = {"logits": [], "weights": [], "replaced": []}
    for mode in MODES:
        is_training, is_compiled = Mode.TRAINING in mode, Mode.TORCH_COMPILE in mode
        plain, ours = copy.deepcopy(model).train(is_training), copy.deepcopy(model).train(is_training)
        with use_kernel_mapping({"RMSNorm": {device: {mode: repository}}}, inherit_mapping=False):
            ours = kernelize(ours, mode=mode, device=device, use_fallback=False)
        norms = [m for m in ours.modules() if isinstance(m, LlamaRMSNorm)]
        found["replaced"].append(sum("rms_norm" in m.forward.__func__.__code__.co_names for m in norms))
        call = torch.compile(ours, fullgraph=True, backend="aot_eager") if is_compiled else ours
        logits, wanted = call(ids).logits, plain(ids).logits
        found["logits"].append(moved(logits, wanted))
        if is_training:
            for out in (logits, wanted):
                out.float().square().mean().backward()
            pairs = zip(ours.named_parameters(), plain.parameters(), strict=True)
            found["weights"] += [moved(p.grad, q.grad) for (name, p), q in pairs if "norm" in name]
    print(json.dumps({**found, "modes": len(MODES), "normgen": "normgen" in sys.modules}))


if __name__ == "__main__":
    main()
