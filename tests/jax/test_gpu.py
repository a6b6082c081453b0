"""Calls of XLA on a GPU: what is launched, in command buffers, from JAX's compilation cache, on a second GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

import normgen.jax as nj  # noqa: E402
from normgen.jax import target  # noqa: E402
from normgen.python import xla  # noqa: E402
from tests.jax.children import run  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    if target.device() is None:
        pytest.skip("jax has no CUDA device, or the launcher was not built")


def test_xla_is_told_our_target_in_both_directions_and_under_vmap() -> None:
    assert xla.IS_BUILT
    x, weight = jnp.ones((5, 64)), jnp.ones(64)

    def called(run: Any, *arrays: Any) -> int:
        return int(jax.jit(run).lower(*arrays).compile().as_text().count(f'"{target.NAME}"'))

    assert called(nj.rms_norm, x, weight) == 1
    assert called(jax.vmap(nj.rms_norm, (0, None)), x[None], weight) == 1
    assert called(jax.grad(lambda x, w: nj.rms_norm(x, w).sum(), (0, 1)), x, weight) == 2


@pytest.mark.parametrize("rows", [1, 7, 4096])
@pytest.mark.parametrize("cols", [64, 1024, 4096, 5000])
def test_a_step_is_that_of_the_formulas(rows: int, cols: int) -> None:
    draw = np.random.default_rng(rows)
    x, h = (jnp.asarray(draw.standard_normal((rows, cols)), jnp.bfloat16) for _ in range(2))
    weight = jnp.asarray(draw.standard_normal(cols), jnp.bfloat16)

    def loss(run: Any) -> Any:
        return lambda *given: sum((y.astype(np.float32) ** 2).mean() for y in run(*given))

    wrt = (0, 1, 2)
    got = jax.jit(jax.value_and_grad(loss(nj.add_rms_norm), wrt))(x, h, weight)
    want = jax.jit(jax.value_and_grad(loss(nj.add_rms_norm.operator.decomposition), wrt))(x, h, weight)
    for ours, formula in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        ours, formula = np.asarray(ours, np.float64), np.asarray(formula, np.float64)
        np.testing.assert_allclose(ours, formula, rtol=2**-6, atol=2**-6 * np.abs(formula).max())


STEP = """
import jax, jax.numpy as jnp, numpy as np
import normgen.jax as nj
from normgen.jax import target

def loss(x, w):
    for _ in range(4):
        x = nj.layer_norm(x, w, w) * 2
    return (x ** 2).mean()

draw = np.random.default_rng(0)
x, w = jnp.asarray(draw.standard_normal((512, 1024)), np.float32), jnp.asarray(draw.standard_normal(1024), np.float32)
step = jax.jit(jax.value_and_grad(loss, (0, 1)))
first = jax.tree.map(np.asarray, step(x, w))
for _ in range(20):
    again = step(x, w)
    jnp.ones(1 << 20).sum().block_until_ready()  # memory moves
for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize("which", ["", "+CUSTOM_CALL"])
def test_calls_may_be_captured_in_command_buffers(which: str) -> None:
    flags = f"--xla_gpu_enable_command_buffer={which} --xla_gpu_graph_min_graph_size=1"
    run(STEP, XLA_FLAGS=flags)


FORGETFUL = """
import normgen.jax.target as target

known, asked = target.planned, []

def sized(question, context, device):  # while JAX traces: the scratch memory, and no plan
    return target.kernel_of(question, device)[0].without_addresses(512, 0, {})[1]

def prepared(question, context):
    asked.append(question)
    target.planned = known
    target.prepare(question, context)
    target.planned = sized

target.planned = sized
target.handler(prepared)
"""


def test_an_executable_from_jaxs_cache_finds_its_kernels_in_another_process(tmp_path: Path) -> None:
    """In the second process nothing but the question of a call says which kernel it is."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    run(STEP, **cache)
    assert list(tmp_path.iterdir())
    assert int(run(f"{FORGETFUL}\n{STEP}\nprint(len(asked))", **cache)) >= 2


def test_a_second_gpu_makes_its_kernels_at_its_first_call() -> None:
    devices = jax.devices("cuda")
    if len(devices) < 2:
        pytest.skip("one GPU")
    x = jnp.arange(4096.0).reshape(4, 1024) / 4096
    on_second = jax.device_put(x, devices[1])
    assert nj.softmax(on_second).devices() == {devices[1]}
    np.testing.assert_allclose(nj.softmax(on_second), nj.softmax(x), rtol=1e-6)
    mesh, spec = jax.sharding.Mesh(np.array(devices[:2]), ("d",)), jax.sharding.PartitionSpec
    sharded = jax.jit(jax.shard_map(nj.rms_norm, mesh=mesh, in_specs=(spec("d"), spec()), out_specs=spec("d")))
    weight = jnp.ones(1024)
    both = jax.grad(lambda w: (sharded(x, w) ** 2).sum())(weight)
    np.testing.assert_allclose(both, jax.grad(lambda w: (nj.rms_norm(x, w) ** 2).sum())(weight), rtol=1e-5)
