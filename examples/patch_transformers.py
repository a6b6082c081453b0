"""A Llama of transformers with its norms, gated MLPs and loss replaced by ours: results and times before and after.

python examples/patch_transformers.py                                    # a small model, anywhere
python examples/patch_transformers.py --layers 8 --width 4096 --rows 4096 --dtype bfloat16     # on a GPU

The model has random weights: nothing is downloaded. Without a GPU our formulas run as torch operations, so that the
times there say nothing about kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

import normgen.torch


def milliseconds(step: Callable[[], object], device: str, rounds: int) -> float:
    """The median over rounds, after two that warm up."""
    times = []
    for number in range(rounds + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 2:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=32, help="tokens of one sequence")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, asked.dtype)
    torch.manual_seed(0)

    config = transformers.LlamaConfig(
        hidden_size=asked.width,
        intermediate_size=3 * asked.width,
        num_hidden_layers=asked.layers,
        num_attention_heads=4,
        vocab_size=1024,
    )
    model = transformers.LlamaForCausalLM(config).to(device, dtype)
    tokens = torch.randint(0, config.vocab_size, (1, asked.rows), device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the gradient of the first layer's norm."""
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.detach(), model.model.layers[0].input_layernorm.weight.grad.clone()

    before_loss, before_gradient = step()
    before_ms = milliseconds(step, device, asked.rounds)

    report = normgen.torch.replace(model, products=True)
    print(report)

    after_loss, after_gradient = step()
    after_ms = milliseconds(step, device, asked.rounds)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(after_loss, before_loss, rtol=tolerance, atol=tolerance)
    size = before_gradient.abs().max().item()
    torch.testing.assert_close(after_gradient, before_gradient, rtol=tolerance, atol=tolerance * size)
    print(f"loss {before_loss.item():.6f} before, {after_loss.item():.6f} after")
    if device == "cuda":
        print(f"forward and backward: {before_ms:.2f} ms before, {after_ms:.2f} ms after")
    else:
        print("no GPU: no kernel of ours ran, so there are no times to compare")

    normgen.torch.restore(model)
    assert torch.equal(step()[0], before_loss)


if __name__ == "__main__":
    main()
