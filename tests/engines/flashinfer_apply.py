"""Unmodified calls of FlashInfer under its Trace Apply, in a process of its own: python flashinfer_apply.py FOLDER.

Without a GPU a call goes as far as our function, which refuses CPU tensors. A torch built for CPUs cannot be asked
whether a stream captures: it captures nothing.
"""

from __future__ import annotations

import sys

import torch

if torch.version.cuda is None:
    torch.cuda.is_current_stream_capturing = lambda: False

import flashinfer
from flashinfer.trace_apply import enable_apply, stats
from flashinfer.trace_apply.config import load_config


def main() -> None:
    found = load_config(sys.argv[1])
    print("wrapped", enable_apply({name: solution for (name, _), solution in found.solutions.items()}) > 0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(4, 256, dtype=torch.bfloat16, device=device)
    weight = torch.randn(256, dtype=torch.bfloat16, device=device)
    scale, out = torch.ones(1, device=device), torch.empty_like(x, dtype=torch.float8_e4m3fn)
    for call in (
        lambda: flashinfer.rmsnorm(x, weight),
        lambda: flashinfer.fused_add_rmsnorm(x, x.clone(), weight),
        lambda: flashinfer.gemma_rmsnorm(x, weight),
        lambda: flashinfer.norm.rmsnorm_quant(out, x, weight, scale),
        lambda: flashinfer.norm.fused_add_rmsnorm_quant(out, x, x.clone(), weight, scale),
    ):
        try:
            call()
            print("served")
        except (TypeError, ValueError) as error:
            print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    print(stats())
    assert "normgen" not in sys.modules


if __name__ == "__main__":
    main()
