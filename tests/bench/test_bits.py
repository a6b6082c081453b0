"""Presets beside the libraries themselves: every preset is named, differing bits are counted, real ones on the CPU."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.bench import peers
from normgen.bench.accuracy.bits import PAIRS, Bits, Differing, PeerPair, _other_bits, check_known, run_pairs
from normgen.bench.accuracy.kernels import OnCpu
from normgen.errors import NotOfferedError, UsageError
from normgen.report.language import bits_part
from normgen.spec.reader import list_presets, load
from normgen.trials.file import of_text, text_of, write
from normgen.tuning.progress import Silent

HUGGING_FACE = [pair for pair in PAIRS if pair.peer == "transformers"]


def nobody(pairs: tuple[PeerPair, ...], monkeypatch: pytest.MonkeyPatch) -> Bits:
    """A run where no library is installed."""
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: None)
    return run_pairs(pairs, OnCpu(), values=1, seed=0, progress=Silent())


def test_every_preset_is_run_or_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nobody(PAIRS, monkeypatch)
    assert {b.spec for b in found.found} >= set(list_presets())
    assert all(b.note.startswith("not installed") and not b.outputs for b in found.found)
    for pair in PAIRS:
        assert load(pair.spec).name == pair.spec


def test_a_run_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = nobody(PAIRS[:2], monkeypatch)
    first = replace(run.found[0], outputs={"y": Differing(differing=3, of=12)}, note="")
    run = replace(run, found=(first, *run.found[1:]))
    assert of_text(Bits, text_of(run).encode()).found == run.found
    with pytest.raises(UsageError, match="is what `normgen study bits` wrote"):
        of_text(Bits, b'{"schema": 0}')


def test_the_page_says_each_share_and_what_was_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    assert bits_part(tmp_path) == "No run is published yet.\n"
    run = nobody(PAIRS[:2], monkeypatch)
    first = replace(run.found[0], outputs={"y": Differing(differing=3, of=12)}, note="")
    folder = tmp_path / "generated" / "evidence"
    folder.mkdir(parents=True)
    write(folder / "presets_h200.json", replace(run, found=(first, *run.found[1:])))
    said = bits_part(tmp_path)
    assert "| `llama_rmsnorm` | transformers `LlamaRMSNorm` | y 3 of 12 (25 %) |" in said
    assert "| `gemma_rmsnorm` | transformers `GemmaRMSNorm` | not run: not installed" in said


def test_other_bits_are_counted() -> None:
    ours = np.array([1.0, -0.0, np.nan, 2.0], ml_dtypes.bfloat16)
    theirs = np.array([1.0, 0.0, -np.nan, 2.015625], ml_dtypes.bfloat16).view(np.int16)
    assert _other_bits(ours, theirs) == (2, 4)
    with pytest.raises(NotOfferedError, match="returns other elements"):
        _other_bits(ours, theirs[:3])


def test_a_spec_that_no_library_is_called_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no library's call"):
        check_known(["softmax"])


@pytest.mark.parametrize("pair", HUGGING_FACE, ids=lambda pair: pair.function)
def test_few_bits_differ_from_transformers(pair: PeerPair) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    (found, *_) = run_pairs((pair,), OnCpu(), values=100_000, seed=1, progress=Silent()).found
    assert not found.note
    assert found.outputs["y"].share < 1e-3


def test_another_rounding_is_seen_beside_transformers() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    llama = peers.load_peer("transformers")
    once = PeerPair(spec="rmsnorm", peer="transformers", function="LlamaRMSNorm", asked={"without": ("rstd",)})
    assert ("rmsnorm", "forward") not in llama._FUNCTIONS  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(llama._FUNCTIONS, ("rmsnorm", "forward"), llama._FUNCTIONS["llama_rmsnorm", "forward"])  # type: ignore[attr-defined]
        (found, *_) = run_pairs((once,), OnCpu(), values=100_000, seed=1, progress=Silent()).found
    assert found.outputs["y"].share > 0.05
