"""Each library's run starts, reads no more of a checkout than it says, and calls our functions."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path

import pytest

from tests.peers.__main__ import LIBRARIES, main

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

# A norm of two rows by the name that the library gives it, then all else that its tests may import.
CALLS = {
    "apex": "from apex.normalization import FusedRMSNorm\ny = FusedRMSNorm(64)(x)",
    "flashinfer": "import flashinfer\ny = flashinfer.norm.rmsnorm(x, w)",
    "liger": "from liger_kernel.transformers.functional import liger_rms_norm\ny = liger_rms_norm(x, w, 1e-6)",
    "quack": "from quack.rmsnorm import rmsnorm\ny = rmsnorm(x, w)",
    # Of a product with the identity.
    "quack_products": "from quack.linear import linear_func\ny = linear_func(x.sign(), torch.eye(64))",
    "torch_products": "y = torch.mm(x.sign(), torch.eye(64))",
}
TEST = """
import torch
{imports}
x, w = torch.randn(2, 64), torch.ones(64)

def test_mm_cuda(request):
{call}
    assert torch.allclose(y.pow(2).mean(-1), torch.ones(2), atol=1e-3)
    assert getattr(request.config, "conftest_was_read", False) is {reads}
"""
CONFTEST = {
    True: "def pytest_configure(config): config.conftest_was_read = True\n",
    False: "from flashinfer.jit import MissingJITCacheError\n",  # as in the library's: no test of these needs it
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_s_tests_start_and_call_ours(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    peer = importlib.import_module(f"tests.peers.{name}").PEER
    imports = "\n".join(f"from {m} import {n}" for m, names in peer.modules.items() for n in names)
    text = TEST.format(imports=imports, call=textwrap.indent(CALLS[name], 4 * " "), reads=peer.has_conftest)
    for file in map(tmp_path.joinpath, peer.files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    tmp_path.joinpath(peer.files[0]).write_text(text)
    tmp_path.joinpath(peer.files[0]).with_name("conftest.py").write_text(CONFTEST[peer.has_conftest])
    assert main([name, str(tmp_path), "-p", "no:cacheprovider"]) == 0
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert "calls of ours: none" not in said
