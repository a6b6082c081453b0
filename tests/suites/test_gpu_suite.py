"""A suite on a real GPU, with torch as the only peer where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.bench.peers import missing_packages
from normgen.bench.runner import Wish, run_suite
from normgen.suites.suite import parse_suite

pytestmark = pytest.mark.gpu(alone=True)
TEXT = """\
name = "three"
[defaults]
dtype = "bf16"
[[entry]]
op = "layernorm"
shape = "8192x768"
[[entry]]
op = "rmsnorm"
shape = "16x4096"
setting = "hot"
without = ["rstd"]
[[entry]]
op = "rmsnorm"
shape = "4096x1023"
direction = "backward"
"""


def test_three_entries_are_right_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    has_torch = not missing_packages("torch")
    found = run_suite(parse_suite(TEXT), Wish(peers=("torch",), samples=20, alone=True))
    assert found.finished
    assert len(found.entries) == 3
    for entry in found.entries:
        assert entry.ours.failed == "", entry.label
        assert entry.roof_us is not None
        assert entry.ours.us is not None
        assert entry.ours.cost_us is not None
        assert entry.ours.alone_us is not None
        assert entry.chain_us is not None
        assert entry.chain_us.high < entry.ours.us
        assert 0.5 * entry.roof_us < entry.ours.cost_us < 20 * entry.roof_us
        assert max(entry.ours.error.values()) <= 1
        torch = entry.peers["torch"]
        assert (torch.us is not None) == has_torch, torch.failed
        if torch.us is not None and torch.ours_to_this is not None:
            assert torch.us > entry.chain_us.median
            assert torch.alone_us is not None
            assert torch.our_price_to_this is not None
            assert torch.our_price_to_this.median == pytest.approx(entry.ours.cost_us / torch.cost_us, rel=0.15)
            assert torch.ours_to_this.median == pytest.approx(entry.ours.us / torch.us, rel=0.1)
            assert max(torch.error.values()) < 0.5


def test_a_bench_sees_the_same_data_in_every_set_and_gives_its_memory_back() -> None:
    import numpy as np

    from normgen.cuda.driver import device_facts
    from normgen.measure.gpu import GpuBench
    from normgen.program.source import problem_for
    from normgen.records.place import Place
    from normgen.spec.reader import load

    problem = problem_for(load("rmsnorm"), shape="20000x260", dtype="f32", pitch=264)
    bench = GpuBench(problem, device_facts(0), index=0, place=Place(), seed=0, checked_elements=1 << 16)
    try:
        sample = np.asarray(bench.inputs.buffers["x"].array)
        last = bench.read(problem.tensor("x"), (19990, 20000))
        np.testing.assert_array_equal(last, sample[np.arange(19990, 20000) % len(sample)])
    finally:
        bench.close()
    with pytest.raises(IndexError):
        bench.tensors(0)
