"""Peers: what is not there, what is not offered, and torch's own functions against the float64 reference."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from normgen.bench import peers
from normgen.bench.expected import Expected
from normgen.bench.peers import Options
from normgen.bench.runner import open_peers
from normgen.errors import NotOfferedError, UsageError
from normgen.measure import data
from normgen.measure.data import sample_inputs
from normgen.measure.isolation.process import Post
from normgen.program.source import problem_for
from normgen.spec.reader import load, parse
from normgen.traced.tape import replayed
from normgen.verify import Inputs
from normgen.verify.interpret import Float64


class Notes:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def phase(self, name: str) -> None: ...

    def standing(self, standing: object) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: None)


def test_importing_the_bench_imports_no_peer() -> None:
    program = (
        "import sys, normgen.cli.bench_command, normgen.bench.entry, normgen.bench.peers.bench\n"
        "print(sorted({'torch', 'triton', 'matplotlib', 'liger_kernel', 'quack'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_peer_is_an_error_and_a_name_counts_once() -> None:
    with pytest.raises(UsageError, match="did you mean 'liger'"):
        peers.check_names(["torch", "linger"])
    assert peers.check_names(["liger", "torch", "liger"]) == ("liger", "torch")


@pytest.mark.usefixtures("without_packages")
def test_a_missing_peer_is_a_reason_if_asked_for_and_a_note_if_not() -> None:
    notes = Notes()
    nobody = Post("no:factory", 0)
    chosen, versions = open_peers(("torch", "quack"), notes, nobody)
    assert chosen == {"torch": "not installed: torch", "quack": "not installed: torch, quack"}
    assert versions == {}
    notes = Notes()
    assert open_peers(None, notes, nobody) == ({}, {})
    assert [note.split(":")[0] for note in notes.notes] == [f"peer {name}" for name in peers.NAMES]
    assert open_peers((), notes, nobody) == ({}, {})


def test_a_peer_that_does_not_import_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise OSError(f"{name}: libfoo.so.1 is missing")

    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(peers.importlib, "import_module", fail)
    with pytest.raises(NotOfferedError, match=r"does not import\n  received: OSError: .*libfoo.so.1"):
        peers.load_peer("liger")


def torch_sets(inputs: Inputs) -> list[dict[str, Any]]:
    torch = importlib.import_module("torch")
    found = {}
    for name, buffer in inputs.buffers.items():
        array = np.ascontiguousarray(buffer.array)
        is_bf16 = array.dtype.name == "bfloat16"
        found[name] = (
            torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if is_bf16 else torch.from_numpy(array)
        )
    return [found]


PLAYED = [(op, way) for op in ("add_rmsnorm", "softmax_sink", "cross_entropy") for way in ("forward", "backward")]


@pytest.mark.parametrize(("op", "direction"), [*PLAYED, ("rmsnorm_to_fp8_group", "forward")])
def test_a_program_that_is_played_back_is_that_of_the_spec(op: str, direction: str) -> None:
    """What torch.compile is given for any operation, here with float64 in the place of torch."""
    problem = problem_for(load(op), shape="30x256", dtype="bf16", direction=direction)
    inputs = sample_inputs(problem, seed=0)
    shapes = {t.name: t.kind.broadcast_shape(problem.sizes) for t in problem.tensors}
    given = {name: array.astype(np.float64).reshape(shapes[name]) for name, array in inputs.arrays.items()}
    given |= {name: np.float64(value) for name, value in (*problem.spec.scalars, ("cols", 256))}
    given |= {"row": np.arange(30.0)[:, None], "col": np.arange(256.0)[None, :]}
    expected = Expected(problem, inputs, seed=0)
    with np.errstate(all="ignore"):  # cross_entropy says NaN as inf - inf
        found = replayed(problem)(Float64(cols=256), given)
    for name, value in found.items():
        use = problem.tensor(name)
        got = use.dtype.within(value[:, :: use.group] if use.group else value)
        assert expected.share(name, got) < 1e-3, name


CASES = [
    (op, direction, dtype)
    for op in ("layernorm", "rmsnorm", "softmax", "log_softmax")
    for direction in ("forward", "backward")
    for dtype in ("f32", "bf16")
]
# Operators that torch has on CUDA only, or there with other dtypes of the statistics.
CUDA_ONLY = {("rmsnorm", "backward", "f32"), ("rmsnorm", "backward", "bf16"), ("layernorm", "backward", "bf16")}


@pytest.mark.parametrize("module", ["torch_eager", "torch_compile"])
@pytest.mark.parametrize(("op", "direction", "dtype"), CASES)
def test_torch_computes_what_the_reference_says(op: str, direction: str, dtype: str, module: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if module == "torch_eager" and (op, direction, dtype) in CUDA_ONLY:
        pytest.skip("torch has this operator on CUDA only")
    peer = importlib.import_module(f"normgen.bench.peers.{module}")
    problem = problem_for(load(op), shape="300x256", dtype=dtype, direction=direction)
    inputs = sample_inputs(problem, seed=0)
    sets = torch_sets(inputs)
    with torch.no_grad():
        if module == "torch_eager":
            results = peer.prepare(problem, sets, Options())(0)
        else:  # the function that is compiled; the compiler needs a toolchain of its own
            results = peer.FUNCTIONS[op, direction](problem)(sets[0])
    expected = Expected(problem, inputs, seed=0)
    assert expected.missing(results) == ()
    for name in expected.tensors.keys() & results.keys():
        roundoff = torch.finfo(results[name].dtype).eps / 2
        got = results[name].double().numpy()
        assert expected.share(name, got, peer_roundoff=roundoff) < 0.25, name


PRODUCTS = [
    *(
        (op, None)
        for op in ("linear", "linear_add", "linear_add_rms", "linear_bias_gelu", "linear_swiglu", "rmsnorm_linear")
    ),
    *((op, gradient) for op in ("linear", "linear_add", "bmm") for gradient in ("x", "w")),
    *((op, None) for op in ("bmm", "softmax_v", "masked_softmax_v", "causal_softmax_v")),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("op", "gradient"), PRODUCTS)
def test_torch_computes_products_and_their_gradients_in_the_stored_dtype(
    op: str, gradient: str | None, dtype: str
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from normgen.bench.peers import torch_compile, torch_eager

    asked = {"direction": "backward", "gradients": [gradient]} if gradient else {"direction": "forward"}
    without = [] if gradient else [t.name for t in load(op).statistics if t.optional]
    shape = "2x20x24" if any(t.kind.by_batch for t in load(op).tensors) else "30x24"
    problem = problem_for(load(op), shape=shape, inner=40, dtype=dtype, without=without, **asked)
    inputs = sample_inputs(problem, seed=0)
    with torch.no_grad():
        results = torch_eager.prepare(problem, torch_sets(inputs), Options())(0)
    assert torch.backends.cuda.matmul.fp32_precision == "ieee", "no TF32"
    assert (op, asked["direction"]) in torch_compile.FUNCTIONS
    expected = Expected(problem, inputs, seed=0)
    assert expected.missing(results) == ()
    for name in expected.tensors.keys() & results.keys():
        assert results[name].dtype == getattr(torch, problem.tensor(name).dtype.torch)
        roundoff = torch.finfo(results[name].dtype).eps / 2
        found = results[name].double().numpy()
        got = expected.lines(problem.tensor(name), lambda chunk, found=found: found[slice(*chunk)])
        assert expected.share(name, got, peer_roundoff=roundoff) < 1, name


FUSED = (
    "add_rmsnorm",
    "swiglu",
    "geglu",
    "rmsnorm_to_fp8_token",
    "silu_mul_to_fp8_group",
    "layernorm_to_int8",
    "adaln",
)


@pytest.mark.parametrize("module", ["torch_fused", "torch_compile"])
@pytest.mark.parametrize("op", FUSED)
def test_torch_computes_fused_operations(op: str, module: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    peer = importlib.import_module(f"normgen.bench.peers.{module}")
    without = [t.name for t in load(op).statistics if t.optional]
    problem = problem_for(load(op), shape="3x100x256", dtype="bf16", without=without)
    inputs = sample_inputs(problem, seed=0)
    function = peer.function_of if module == "torch_compile" else peer.FUNCTIONS[op, "forward"]
    with torch.no_grad():
        results = function(problem)(torch_sets(inputs)[0])
    expected = Expected(problem, inputs, seed=0)
    assert expected.missing(results) == ()
    for name in expected.tensors.keys() & results.keys():
        dtype = results[name].dtype
        roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
        assert expected.share(name, results[name].double().numpy(), peer_roundoff=roundoff) < 1, name


@pytest.mark.parametrize("module", ["torch_fused", "torch_compile"])
def test_torch_computes_the_gradients_of_batches(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a problem of twice as many rows, and batches, as are drawn."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    peer = importlib.import_module(f"normgen.bench.peers.{module}")
    problem = problem_for(load("adaln"), shape="4x65x96", direction="backward")
    monkeypatch.setattr(data, "FILL_ELEMENTS", 96 * 130)
    sample = sample_inputs(problem, seed=0)
    assert sample.problem.batches == 2
    tensors = {name: torch.cat([tensor, tensor]) for name, tensor in torch_sets(sample)[0].items()}
    function = (peer.function_of if module == "torch_compile" else peer.FUNCTIONS["adaln", "backward"])(problem)
    with torch.no_grad():
        results = function(tensors)
    expected = Expected(problem, sample, seed=0)
    assert expected.missing(results) == ()
    for name in ("dx", "dscale", "dshift"):
        got = results[name].double().numpy()
        assert expected.share(name, got, peer_roundoff=2.0**-24) < 0.5, name
        assert expected.share(name, got[::-1], peer_roundoff=2.0**-24) > 1, name


@pytest.mark.parametrize("module", ["torch_eager", "torch_compile"])
def test_torch_gives_scales_the_layout_that_is_asked_for(module: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    peer, common = (importlib.import_module(f"normgen.bench.peers.{name}") for name in (module, "common"))
    problem = problem_for(load("quantize_to_fp8_group"), shape="30x384", layout={"scale": "column_major"})
    inputs = sample_inputs(problem, seed=0)
    sets = torch_sets(inputs)
    if module == "torch_eager":
        results = peer.prepare(problem, sets, Options())(0)
    else:
        results = common.laid_out(problem, peer.function_of(problem))(sets[0])
    assert (tuple(results["scale"].shape), results["scale"].stride()) == ((30, 3), (1, 32))
    expected = Expected(problem, inputs, seed=0)
    for name in ("q", "scale"):
        assert expected.share(name, results[name].double().numpy(), peer_roundoff=2.0**-4) < 1, name


def test_torch_offers_no_row_sum() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    peer = importlib.import_module("normgen.bench.peers.torch_eager")
    with pytest.raises(NotOfferedError, match="no row_sum forward"):
        peer.prepare(problem_for(load("row_sum"), shape="8x8"), [{}], Options())


def test_gradients_by_autograd_are_those_of_the_reference() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    common = importlib.import_module("normgen.bench.peers.common")
    problem = problem_for(load("layernorm"), shape="40x64", direction="backward")
    inputs = sample_inputs(problem, seed=0)
    sets = [{**torch_sets(inputs)[0], "bias": torch.zeros(64)}]

    def forward(t: Any) -> Any:
        return {"y": torch.nn.functional.layer_norm(t["x"], [64], t["weight"], t["bias"], 1e-5)}

    call = common.by_autograd(forward, problem, sets)
    expected = Expected(problem, inputs, seed=0)
    for results in (call(0), call(0)):  # the graph is kept
        for name in ("dx", "dweight", "dbias"):
            share = expected.share(name, results[name].double().numpy(), peer_roundoff=2.0**-24)
            assert share < 0.25, name


@pytest.mark.parametrize("module", ["torch_eager", "torch_compile"])
def test_no_peer_is_asked_for_its_softmax_by_a_spec_that_only_has_that_name(module: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    own = parse('name = "softmax"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "2 * x"\n')
    problem, peer = problem_for(own, shape="4x8"), importlib.import_module(f"normgen.bench.peers.{module}")
    asked = pytest.importorskip("normgen.bench.peers.common").operation
    assert asked(problem) == ("", "forward")
    assert asked(problem_for(load("softmax"), shape="4x8")) == ("softmax", "forward")
    if module == "torch_eager":
        with pytest.raises(NotOfferedError, match="no softmax forward"):
            peer.prepare(problem, [{}], Options())
