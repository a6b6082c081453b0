"""`fused` on functions as people write them: how many it takes, that what it takes is right, what its refusals say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError, VerificationError  # noqa: E402
from normgen.torch import drawing  # noqa: E402
from normgen.torch.tracing import fusing  # noqa: E402
from normgen.torch.tracing.cuts import cutting  # noqa: E402
from tests.torch import fused_wild  # noqa: E402
from tests.torch.fused_wild import WILD, Wild  # noqa: E402

Tensor = Any
REFUSED = {  # of the list: what is not taken, with its rule
    "convnext: convnext_grn": "'norm': it goes over rows",
    "t5: t5_attention_weights": "does not write to its arguments",
}
FORWARD = {  # what is taken without a gradient
    "deepseek: deepseek_act_quant": "the gradient of max is supported only where it cancels",
    "whisper: whisper_log_mel": "the gradient of max is supported only where it cancels",
}
INNER = (
    r"symbolic|SymInt|Fraction|RuntimeError|\.cpp|\baten\b|_copy\b|\bs\d+\b|\[\d+,|with_sizes|scalar_tensor|normgen/"
)


@pytest.fixture(autouse=True)
def _by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the operator runs too, by the formulas, where the function itself would."""
    monkeypatch.setattr(fusing, "takes_a_kernel", lambda tensors: tensors[0].dtype != torch.float64)


def leaves_of(wild: Wild, device: str = "cpu") -> list[Tensor]:
    torch.manual_seed(0)
    return [t.to(device).requires_grad_(t.is_floating_point()) for t in wild.args()]


def gradients(results: Any, leaves: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    found = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
    by = [torch.randn(r.shape, generator=generator).to(r) for r in found]
    floats = [leaf for leaf in leaves if leaf.requires_grad]
    got = torch.autograd.grad(found, floats, by, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(got, floats, strict=True)]


def test_the_list_has_enough_of_each_source_and_most_of_it_is_taken() -> None:
    sources = [wild.source for wild in WILD]
    assert len(WILD) >= 60
    assert len(set(sources)) >= 15
    assert min(map(sources.count, set(sources))) >= 4
    assert len({wild.name for wild in WILD}) == len(WILD)
    assert {*REFUSED, *FORWARD} <= {wild.name for wild in WILD}
    assert len(REFUSED) + len(FORWARD) <= 0.1 * len(WILD)


def test_the_page_counts_what_is_taken() -> None:
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
    both = len(WILD) - len(FORWARD) - len(REFUSED)
    assert f"of {len(WILD)} functions of public models and losses" in page
    assert f"{both} are taken in both directions and {len(FORWARD)} forward alone; {len(REFUSED)} are refused" in page


@pytest.mark.parametrize("wild", [w for w in WILD if w.name not in {*REFUSED, *FORWARD}], ids=lambda w: w.name)
def test_a_function_that_is_taken_has_the_results_and_the_gradients_of_itself(
    wild: Wild, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = leaves_of(wild, device)
    made = ng.fused(wild.function)
    made.spec(*leaves)
    torch.manual_seed(1)
    got = made(*leaves)
    monkeypatch.setattr(F, "dropout", drawing.dropped)  # which elements it keeps is ours to say
    torch.manual_seed(1)
    want = wild.function(*leaves)
    is_half = any(t.dtype == torch.bfloat16 for t in leaves)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if is_half else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(got, want, **tolerance)
    tolerance = {"rtol": 5e-2, "atol": 5e-2} if is_half else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(gradients(got, leaves), gradients(want, leaves), **tolerance)


def causal(scores: Tensor) -> Tensor:
    size = scores.shape[-1]
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def scaled_queries(q: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of rows that never meet."""
    one, other = q.split(12, -1)
    return one / one.norm(dim=-1, keepdim=True), other * 2


SIMPLE: dict[str, Any] = {
    "gumbel_softmax": F.gumbel_softmax,
    "randn": lambda x: x + torch.randn(x.shape),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.1, True),
    "a mask made inside": causal,
    "group_norm": lambda x: F.group_norm(x, 3),
    "view": lambda x: x.view(4, 6, 2, 12, 24).softmax(-1),
    "unflatten": lambda x: x.unflatten(-1, (3, 8)).sum(-1),
    "groups of computed values": lambda x: (x * 2).unflatten(-1, (3, 8)).softmax(-1).flatten(-2),
    "chunk": lambda x: x.chunk(2, -1)[0] * 2,
    "a slice of what is computed": lambda x: x.exp()[..., :12] * 2,
    "a row of what is computed": lambda x: x.softmax(-1)[:, 1],
    "a row beside what is computed": lambda x: torch.cat([x.exp(), x[..., :1]], -1).softmax(-1),
    "parts that are interleaved": lambda x: torch.stack((x[..., ::2].exp(), x[..., 1::2]), -1).flatten(-2),
    "glu": F.glu,
    "over an axis of rows": lambda x: x - x.mean(1, keepdim=True),
    "softmax of rows": lambda x: x.softmax(0),
    "softmax of another axis, and moved": lambda x: (x.softmax(1) * 2).permute(2, 0, 3, 1),
    "the mean of parts": lambda x: torch.cat([x.exp(), x], -1).mean(-1),
    "over two axes": lambda x: F.layer_norm(x, (24, 24)),
    "apart": scaled_queries,
    "topk": lambda x: x.softmax(-1).topk(3, -1).values,
    "a mean of losses": lambda x: F.smooth_l1_loss(x[:, 0], x[:, 1]),
    "a square, transposed": lambda x: x.exp() + x.transpose(-1, -2),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_views_parts_and_other_axes_are_taken(name: str) -> None:
    x = torch.randn(4, 6, 24, 24, requires_grad=True)
    made, function = ng.fused(SIMPLE[name]), SIMPLE[name]
    found = []
    for run in (made, function):
        made.spec(x)
        torch.manual_seed(1)
        found.append(run(x))
    got, want = found
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(got, [x]), gradients(want, [x]), rtol=1e-4, atol=1e-5)


def test_one_element_of_each_row_of_a_part_is_taken() -> None:
    def function(x: Tensor, labels: Tensor) -> Tensor:
        return x.chunk(2, -1)[0].log_softmax(-1).gather(-1, labels)

    x, labels = torch.randn(4, 6, 24, 24), torch.randint(0, 12, (4, 6, 24, 1))
    torch.testing.assert_close(ng.fused(function)(x, labels), function(x, labels))


@pytest.mark.parametrize("wild", [w for w in WILD if w.name in FORWARD], ids=lambda w: w.name)
def test_without_a_gradient_of_its_largest_element_a_function_is_taken_forward(wild: Wild) -> None:
    leaves = leaves_of(wild)
    made = ng.fused(wild.function)
    with torch.no_grad():
        torch.testing.assert_close(made(*leaves), wild.function(*leaves))
    with pytest.raises(UsageError, match=FORWARD[wild.name]):
        made(*leaves)


@pytest.mark.parametrize("wild", [w for w in WILD if w.name in REFUSED], ids=lambda w: w.name)
def test_what_is_refused_says_the_authors_line_and_a_way_out(wild: Wild) -> None:
    with pytest.raises(UsageError) as error:
        ng.fused(wild.function).spec(*leaves_of(wild))
    assert REFUSED[wild.name] in error.value.rule
    assert "fused_wild.py:" in str(error.value.received)
    assert error.value.hint
    assert not re.search(INNER, f"{error.value.rule} {error.value.hint}")


def test_a_cut_function_has_one_kernel_for_all_sizes_of_its_rows() -> None:
    made = ng.fused(fused_wild.llama_rotary)
    for batch, heads, tokens in ((2, 4, 6), (3, 2, 5), (5, 4, 7)):
        q, k = (torch.randn(batch, heads, tokens, 16) for _ in range(2))
        cos, sin = (torch.randn(batch, tokens, 16) for _ in range(2))
        torch.testing.assert_close(made(q, k, cos, sin), fused_wild.llama_rotary(q, k, cos, sin))
    assert len(made._kernels) == 1
    (kernel,) = made._kernels.values()
    assert len(kernel._plans) == 1


def test_results_with_rows_of_their_own_have_a_kernel_each() -> None:
    q, k = torch.randn(2, 8, 6, 16), torch.randn(2, 2, 6, 16)  # grouped queries
    cos, sin = torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    made = ng.fused(fused_wild.llama_rotary)
    torch.testing.assert_close(made(q, k, cos, sin), fused_wild.llama_rotary(q, k, cos, sin))
    assert made.spec(q, k, cos, sin).count("[formulas]") == 2


def test_results_of_their_own_rows_that_draw_are_refused() -> None:
    def function(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(2, 1, 6, 8)
        return q.chunk(2, -1)[0] * noise, k.chunk(2, -1)[0] * noise

    with pytest.raises(UsageError):
        ng.fused(function).spec(torch.randn(2, 8, 6, 16), torch.randn(2, 2, 6, 16))


def test_a_cut_of_large_tensors_is_compared_on_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    check = cutting.Cut.check

    def noted(cut: cutting.Cut, title: str) -> None:
        compared.append(max(a.val.numel() for a in cut.arguments))
        check(cut, title)

    monkeypatch.setattr(cutting.Cut, "check", noted)
    scores = torch.empty(1).expand(4, 16, 2048, 2048)
    assert "softmax" not in ng.fused(fused_wild.mistral_sliding_window).spec(scores)
    assert max(compared) <= cutting._MOST


@pytest.mark.parametrize("broken", ["laid", "back"])
def test_a_cut_that_differs_from_its_function_is_never_run(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(cutting.Cut, broken)

    def wrong(cut: cutting.Cut, step: Any, tensor: Tensor, *group: int) -> Tensor:
        found = right(cut, step, tensor, *group)
        return found.flip(0) if found.ndim > 1 else found

    monkeypatch.setattr(cutting.Cut, broken, wrong)
    given = torch.randn(2, 64, 3, 5), torch.randn(64), torch.randn(64)
    with pytest.raises(VerificationError, match=r"the parts that .* was cut into differ from it"):
        ng.fused(fused_wild.convnext_channels_first).spec(*given)


def test_a_trace_leaves_the_generators_as_they_are() -> None:
    x, bias = torch.randn(2, 6, 64), torch.randn(64)
    state = torch.get_rng_state()
    ng.fused(fused_wild.vit_mlp_activation).spec(x, bias)
    torch.testing.assert_close(torch.get_rng_state(), state)


def test_a_sum_of_what_is_repeated_counts_each_time() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.chunk(2, -1)[0].exp()[:, None].expand(-1, 3, -1)).sum((1, 2))

    with pytest.raises(UsageError, match="chunk"):
        ng.fused(function).spec(torch.randn(5, 24))


def test_dropout_keeps_its_share_draws_anew_at_each_call_and_follows_the_generator() -> None:
    x = torch.ones(64, 500, requires_grad=True)
    made = ng.fused(lambda x: F.dropout(x * 2, 0.25, True))
    torch.manual_seed(3)
    one, other = made(x), made(x)
    torch.manual_seed(3)
    torch.testing.assert_close(made(x), one)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one.unique(), torch.tensor([0.0, 2 / 0.75]))
    kept = float((one != 0).float().mean())
    assert abs(kept - 0.75) < 6 * (0.75 * 0.25 / x.numel()) ** 0.5
    (gradient,) = torch.autograd.grad(one.sum(), x)  # of the elements that were kept in that call
    torch.testing.assert_close(gradient, one.detach())
    assert "random(" in made.spec(x)
    assert 'made = "seed"' in made.spec(x)


def test_in_evaluation_dropout_is_not_there() -> None:
    module = torch.nn.Sequential(torch.nn.LayerNorm(24), torch.nn.Dropout(0.5)).eval()
    assert "random" not in ng.fused(module).spec(torch.randn(4, 24))


def test_two_dropouts_draw_apart() -> None:
    x = torch.ones(16, 64)
    one, other = ng.fused(lambda x: (F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)))(x)
    assert 0.1 < float((one == other).float().mean()) < 0.9


def test_a_number_of_rows_that_a_cut_function_takes_is_part_of_what_it_is() -> None:
    def function(x: Tensor) -> Tensor:
        return x.chunk(2, 0)[0] * x.shape[0]

    made = ng.fused(function)
    for rows in (4, 3):
        x = torch.randn(rows, 6, 24)
        torch.testing.assert_close(made(x), function(x))


def test_what_branches_on_the_number_of_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="does not ask for the number of rows"):
        ng.fused(lambda x: x[:, 0] * 2 if x.shape[0] > 4 else x[:, 0], torch.randn(8, 6, 24))
