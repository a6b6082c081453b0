"""Functions as people write them: what public models and losses compute row by row, and where each was seen.

The list was written before any of it was tried, and none leaves it. Formulas only, in the manner of their authors:
views into heads, halves by `chunk`, masks made inside, dropout in training. Tensors that models hold as parameters are
arguments here; products of matrices stand outside, as in `fused` they may.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = Any


@dataclass(frozen=True, kw_only=True)
class Wild:
    """A function, arguments of a call, and where its formula was seen: a model or library, and its public name."""

    source: str
    seen: str
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    draws: bool = False  # random numbers: two calls differ

    @property
    def name(self) -> str:
        return f"{self.source}: {self.function.__name__}"


WILD: list[Wild] = []
B, T, H, D, C, V = 2, 6, 4, 16, 64, 40  # batch, tokens, heads, of a head, channels, vocabulary


def wild(
    source: str, seen: str, *args: Callable[[], Any], draws: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def listed(function: Callable[..., Any]) -> Callable[..., Any]:
        made = Wild(source=source, seen=seen, function=function, args=lambda: tuple(a() for a in args), draws=draws)
        WILD.append(made)
        return function

    return listed


def of(*shape: int, dtype: Any = torch.float32, scale: float = 1.0, shift: float = 0.0) -> Callable[[], Tensor]:
    return lambda: (torch.randn(*shape) * scale + shift).to(dtype)


def half(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Callable[[], Tensor]:
    return of(*shape, dtype=torch.bfloat16, scale=scale, shift=shift)


def labels(*shape: int, ignored: bool = True) -> Callable[[], Tensor]:
    def made() -> Tensor:
        found = torch.randint(0, V, shape)
        if ignored:
            found.view(-1)[1] = -100
        return found

    return made


def causal(rows: int, cols: int) -> Callable[[], Tensor]:
    return lambda: torch.full((1, 1, rows, cols), torch.finfo(torch.float32).min).triu(1)


HIDDEN, HALF, WEIGHT = of(B, T, C), half(B, T, C), of(C, shift=1, scale=0.3)
SCORES, Q, LOGITS = of(B, H, T, T), of(B, H, T, D), of(B * T, V)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def drop_path(x: Tensor, p: float, training: bool) -> Tensor:
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * kept.div_(keep)


# Llama


@wild("llama", "transformers LlamaRMSNorm.forward", HALF, half(C, shift=1))
def llama_rms_norm(hidden_states: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + eps)
    return weight * hidden_states.to(input_dtype)


@wild("llama", "transformers LlamaMLP.forward", of(B, T, 96), of(B, T, 96))
def llama_mlp_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


@wild("llama", "transformers apply_rotary_pos_emb", Q, of(B, H, T, D), of(B, T, D), of(B, T, D))
def llama_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


@wild("llama", "transformers eager_attention_forward, between its products", half(B, H, T, T), causal(T, T))
def llama_attention_weights(scores: Tensor, mask: Tensor, scaling: float = D**-0.5) -> Tensor:
    scores = scores * scaling
    scores = scores + mask[:, :, :, : scores.shape[-1]]
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


@wild("llama", "transformers ForCausalLMLoss", half(B, T, V), labels(B, T))
def llama_loss(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=-100)
    shift_labels = labels[..., 1:].contiguous()
    logits = logits.view(-1, logits.shape[-1])
    return F.cross_entropy(logits, shift_labels.view(-1), ignore_index=-100)


# Qwen


@wild("qwen", "transformers Qwen3Attention.forward, q_norm of q_proj's result", half(B, T, H * D), half(D, shift=1))
def qwen_q_norm(q: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    heads = q.view(*q.shape[:-1], -1, D)
    wide = heads.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * wide.to(q.dtype)).transpose(1, 2)


@wild("qwen", "vLLM SiluAndMul.forward_native, as Qwen 2.5 has it", half(B, T, 2 * C))
def qwen_silu_and_mul(x: Tensor) -> Tensor:
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


@wild(
    "qwen", "transformers Qwen2MoeSparseMoeBlock.forward, the shared expert", of(B * T, C), of(B * T, C), of(B * T, 1)
)
def qwen_shared_expert(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    return routed + F.sigmoid(gate) * shared


@wild("qwen", "transformers Qwen3MoeTopKRouter.forward", half(B * T, 32))
def qwen_router(logits: Tensor) -> tuple[Tensor, Tensor]:
    probs = F.softmax(logits, dim=-1, dtype=torch.float)
    values, indices = torch.topk(probs, 4, dim=-1)
    values = values / values.sum(dim=-1, keepdim=True)
    return values.to(logits.dtype), indices


# Gemma


@wild("gemma", "transformers Gemma2RMSNorm.forward", HALF, half(C, scale=0.3))
def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    output = x.float()
    output = output * torch.rsqrt(output.pow(2).mean(-1, keepdim=True) + eps)
    output = output * (1.0 + weight.float())
    return output.type_as(x)


@wild("gemma", "transformers gemma2 eager_attention_forward, between its products", half(B, H, T, T), causal(T, T))
def gemma_softcapped_attention(scores: Tensor, mask: Tensor, softcap: float = 50.0) -> Tensor:
    scores = scores * 0.0625
    scores = scores / softcap
    scores = torch.tanh(scores)
    scores = scores * softcap
    scores = scores + mask
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


@wild("gemma", "transformers Gemma2ForCausalLM.forward, its loss", of(B * T, V, scale=20), labels(B * T))
def gemma_softcapped_loss(logits: Tensor, labels: Tensor, cap: float = 30.0) -> Tensor:
    logits = torch.tanh(logits / cap) * cap
    return F.cross_entropy(logits, labels)


@wild("gemma", "transformers GemmaMLP.forward, of fused gate and up", of(B, T, 2 * C))
def gemma_geglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


@wild("gemma", "transformers Gemma3DecoderLayer.forward, around its MLP", of(B, T, C), of(B, T, C), WEIGHT, WEIGHT)
def gemma_sandwich(residual: Tensor, x: Tensor, post: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    def norm(h: Tensor, w: Tensor) -> Tensor:
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + w)

    residual = residual + norm(x, post)
    return residual, norm(residual, pre)


# Mistral


@wild("mistral", "transformers MistralDecoderLayer.forward, the norm behind attention", HALF, HALF, half(C, shift=1))
def mistral_add_norm(hidden_states: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    hidden_states = residual + hidden_states
    wide = hidden_states.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return hidden_states, weight * wide.to(hidden_states.dtype)


@wild("mistral", "mistral-inference, attention of a sliding window", SCORES)
def mistral_sliding_window(scores: Tensor, window: int = 4) -> Tensor:
    t = scores.shape[-1]
    i, j = torch.arange(t, device=scores.device)[:, None], torch.arange(t, device=scores.device)[None, :]
    keep = (j <= i) & (j > i - window)
    return scores.masked_fill(~keep, float("-inf")).softmax(-1)


@wild("mistral", "transformers MixtralTopKRouter.forward", of(B * T, 8))
def mixtral_router(logits: Tensor) -> tuple[Tensor, Tensor]:
    probs = F.softmax(logits.float(), dim=-1)
    values, index = torch.topk(probs, 2, dim=-1)
    return values / values.sum(dim=-1, keepdim=True), index


@wild("mistral", "transformers MixtralSparseMoeBlock.forward, jitter in training", HIDDEN, draws=True)
def mixtral_jitter(hidden_states: Tensor, noise: float = 0.1) -> Tensor:
    return hidden_states * torch.empty_like(hidden_states).uniform_(1.0 - noise, 1.0 + noise)


@wild("mistral", "transformers PixtralMLP.forward", HIDDEN, HIDDEN)
def pixtral_gate(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


# gpt-oss


@wild("gpt-oss", "openai/gpt-oss swiglu", of(B * T, 2 * C, scale=4))
def gpt_oss_swiglu(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    x_glu, x_linear = x[..., ::2], x[..., 1::2]
    x_glu = x_glu.clamp(min=None, max=limit)
    x_linear = x_linear.clamp(min=-limit, max=limit)
    return x_glu * torch.sigmoid(alpha * x_glu) * (x_linear + 1)


@wild("gpt-oss", "transformers gpt_oss eager_attention_forward, with sinks", SCORES, causal(T, T), of(H))
def gpt_oss_sinks(scores: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores = scores + mask
    sinks = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], -1)
    combined = torch.cat([scores, sinks], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    probs = F.softmax(combined, dim=-1, dtype=combined.dtype)
    return probs[..., :-1]


@wild("gpt-oss", "transformers GptOssRMSNorm.forward", HALF, half(C, shift=1))
def gpt_oss_rms_norm(hidden_states: Tensor, weight: Tensor) -> Tensor:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + 1e-5)
    return (weight * hidden_states).to(input_dtype)


@wild("gpt-oss", "transformers gpt_oss _apply_rotary_emb", Q, of(B, 1, T, D // 2), of(B, 1, T, D // 2))
def gpt_oss_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first_half, second_half = torch.chunk(x, 2, dim=-1)
    first_ = first_half * cos - second_half * sin
    second_ = second_half * cos + first_half * sin
    return torch.cat((first_, second_), dim=-1)


# DeepSeek


@wild("deepseek", "transformers DeepseekV3Attention.forward, kv_a_layernorm", of(B, T, C + D), WEIGHT)
def deepseek_compressed_norm(compressed_kv: Tensor, weight: Tensor) -> Tensor:
    k_pass, _ = torch.split(compressed_kv, [C, D], dim=-1)
    return F.rms_norm(k_pass, (C,), weight, 1e-6)


@wild("deepseek", "transformers DeepseekV3TopkRouter, the weights of chosen experts", of(B * T, 8))
def deepseek_gate_weights(scores: Tensor, scale: float = 2.5) -> Tensor:
    weights = scores.sigmoid()
    denominator = weights.sum(dim=-1, keepdim=True) + 1e-20
    return weights / denominator * scale


@wild("deepseek", "transformers apply_rotary_pos_emb_interleave", Q, of(B, T, D), of(B, T, D))
def deepseek_rotary_interleaved(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    b, h, s, d = q.shape
    q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
    return (q * cos) + (rotate_half(q) * sin)


@wild("deepseek", "deepseek-ai/DeepSeek-V3 act_quant, as its reference computes it", half(B * T, 256))
def deepseek_act_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = x.float().unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    return (groups / scale).flatten(-2), scale.squeeze(-1)


@wild("deepseek", "DeepSeek-V2's sequence-wise auxiliary loss, of given counts", of(B * T, 8), of(B * T, 8))
def deepseek_auxiliary_loss(logits: Tensor, counts: Tensor, alpha: float = 0.001) -> Tensor:
    probs = logits.softmax(dim=-1)
    return (counts * probs).sum(dim=1).mean() * alpha


# ViT


@wild("vit", "transformers ViTLayer.forward, around its second norm", HIDDEN, HIDDEN, WEIGHT, of(C))
def vit_residual_norm(attention: Tensor, hidden_states: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    hidden_states = attention + hidden_states
    return hidden_states, F.layer_norm(hidden_states, (C,), weight, bias, 1e-12)


@wild("vit", "transformers ViTSelfAttention, between its products, in training", SCORES, draws=True)
def vit_attention_probs(scores: Tensor) -> Tensor:
    probs = F.softmax(scores / math.sqrt(D), dim=-1)
    return F.dropout(probs, p=0.1, training=True)


@wild("vit", "timm Mlp.forward, behind its first product, in training", HIDDEN, of(C), draws=True)
def vit_mlp_activation(x: Tensor, bias: Tensor) -> Tensor:
    return F.dropout(F.gelu(x + bias), 0.1, True)


@wild("vit", "timm LayerScale and the residual of Block.forward", HIDDEN, HIDDEN, of(C, scale=0.1))
def vit_layer_scale(x: Tensor, branch: Tensor, gamma: Tensor) -> Tensor:
    return x + branch * gamma


@wild("vit", "timm Attention.forward, q_norm of qkv", of(B, T, 3 * H * D), of(D), of(D))
def vit_qk_norm(qkv: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, n, _ = qkv.shape
    q, k, v = qkv.reshape(b, n, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
    return F.layer_norm(q, (D,), weight, bias), F.layer_norm(k, (D,), weight, bias), v


# Swin


@wild("swin", "torchvision shifted_window_attention, bias and mask", of(4, H, 9, 9), of(1, H, 9, 9), of(2, 9, 9))
def swin_window_attention(scores: Tensor, relative: Tensor, mask: Tensor) -> Tensor:
    scores = scores + relative
    windows, heads, n = mask.shape[0], scores.shape[1], scores.shape[2]
    scores = scores.view(scores.shape[0] // windows, windows, heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
    return F.softmax(scores.view(-1, heads, n, n), dim=-1)


@wild("swin", "torchvision PatchMerging.forward, before its product", of(B, 4, 4, D), of(4 * D), of(4 * D))
def swin_patch_merging(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x0, x1 = x[..., 0::2, 0::2, :], x[..., 1::2, 0::2, :]
    x2, x3 = x[..., 0::2, 1::2, :], x[..., 1::2, 1::2, :]
    return F.layer_norm(torch.cat([x0, x1, x2, x3], -1), (4 * D,), weight, bias)


@wild("swin", "torchvision shifted_window_attention of V2, its queries", Q, of(H, 1, 1))
def swin_cosine_queries(q: Tensor, logit_scale: Tensor) -> Tensor:
    return F.normalize(q, dim=-1) * torch.clamp(logit_scale, max=math.log(100.0)).exp()


@wild("swin", "torchvision SwinTransformerBlockV2.forward, in training", HIDDEN, HIDDEN, WEIGHT, of(C), draws=True)
def swin_post_norm(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + drop_path(F.layer_norm(branch, (C,), weight, bias), 0.2, training=True)


# ConvNeXt


@wild("convnext", "torchvision LayerNorm2d.forward", of(B, C, 3, 5), WEIGHT, of(C))
def convnext_layer_norm_2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    x = F.layer_norm(x, (C,), weight, bias, 1e-6)
    return x.permute(0, 3, 1, 2)


@wild("convnext", "facebookresearch/ConvNeXt LayerNorm.forward, channels first", of(B, C, 3, 5), WEIGHT, of(C))
def convnext_channels_first(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    x = (x - u) / torch.sqrt(s + 1e-6)
    return weight[:, None, None] * x + bias[:, None, None]


@wild("convnext", "facebookresearch/ConvNeXt-V2 GRN.forward", of(B, 3, 5, C), of(1, 1, 1, C), of(1, 1, 1, C))
def convnext_grn(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
    return gamma * (x * nx) + beta + x


@wild("convnext", "torchvision CNBlock.forward, in training", of(B, C, 3, 5), of(B, C, 3, 5), of(C, 1, 1), draws=True)
def convnext_block_end(x: Tensor, branch: Tensor, layer_scale: Tensor) -> Tensor:
    return x + drop_path(layer_scale * branch, 0.1, training=True)


# Whisper


@wild("whisper", "openai/whisper LayerNorm.forward", HALF, WEIGHT, of(C))
def whisper_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x.float(), (C,), weight, bias, 1e-5).type(x.dtype)


@wild("whisper", "openai/whisper AudioEncoder.forward, in front of its blocks", of(B, C, T), of(T, C))
def whisper_encoder_input(x: Tensor, positions: Tensor) -> Tensor:
    return F.gelu(x).permute(0, 2, 1) + positions


@wild("whisper", "openai/whisper MultiHeadAttention.qkv_attention, with its mask", of(B, H, T, T), of(T, T))
def whisper_attention(qk: Tensor, mask: Tensor) -> Tensor:
    n = qk.shape[-1]
    qk = qk + mask[:n, :n]
    return F.softmax(qk.float(), dim=-1).to(qk.dtype)


@wild("whisper", "openai/whisper log_mel_spectrogram, of magnitudes", of(80, 50, scale=0.2, shift=1))
def whisper_log_mel(mel: Tensor) -> Tensor:
    log_spec = torch.clamp(mel, min=1e-10).log10()
    log_spec = torch.maximum(log_spec, log_spec.max() - 8.0)
    return (log_spec + 4.0) / 4.0


# BERT


@wild(
    "bert",
    "transformers BertSelfOutput.forward, behind its product, in training",
    HIDDEN,
    HIDDEN,
    WEIGHT,
    of(C),
    draws=True,
)
def bert_self_output(hidden_states: Tensor, input_tensor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    hidden_states = F.dropout(hidden_states, 0.1, True)
    return F.layer_norm(hidden_states + input_tensor, (C,), weight, bias, 1e-12)


@wild("bert", "transformers BertEmbeddings.forward, of looked-up rows", HIDDEN, of(T, C), of(B, T, C), WEIGHT, of(C))
def bert_embeddings(words: Tensor, positions: Tensor, types: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    embeddings = words + types
    embeddings = embeddings + positions
    return F.layer_norm(embeddings, (C,), weight, bias, 1e-12)


@wild(
    "bert",
    "transformers BertSelfAttention, a mask of padding made of ones and zeros",
    SCORES,
    lambda: torch.randint(0, 2, (B, T)),
)
def bert_padding_mask(scores: Tensor, attention_mask: Tensor) -> Tensor:
    extended = attention_mask[:, None, None, :].to(scores.dtype)
    extended = (1.0 - extended) * torch.finfo(scores.dtype).min
    return F.softmax(scores / math.sqrt(D) + extended, dim=-1)


@wild("bert", "transformers BertPooler.forward, behind its product", HIDDEN, of(C))
def bert_pooler(hidden_states: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(hidden_states[:, 0] + bias)


@wild("bert", "transformers BertForMaskedLM.forward, its loss", of(B, T, V), labels(B, T))
def bert_masked_lm_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.view(-1, V), labels.view(-1))


# T5


@wild("t5", "transformers T5LayerNorm.forward", HALF, half(C, shift=1))
def t5_layer_norm(hidden_states: Tensor, weight: Tensor) -> Tensor:
    variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
    if weight.dtype in [torch.float16, torch.bfloat16]:
        hidden_states = hidden_states.to(weight.dtype)
    return weight * hidden_states


@wild(
    "t5",
    "transformers T5Attention.forward, between its products, in training",
    half(B, H, T, T),
    half(1, H, T, T),
    draws=True,
)
def t5_attention_weights(scores: Tensor, position_bias: Tensor) -> Tensor:
    scores += position_bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return F.dropout(weights, p=0.1, training=True)


@wild("t5", "transformers T5DenseGatedActDense.forward, in training", HIDDEN, HIDDEN, draws=True)
def t5_gated_dense(gate: Tensor, linear: Tensor) -> Tensor:
    gelu = 0.5 * gate * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * torch.pow(gate, 3.0))))
    return F.dropout(gelu * linear, 0.1, True)


@wild("t5", "transformers T5LayerFF.forward, its residual, in training", HIDDEN, HIDDEN, draws=True)
def t5_residual(hidden_states: Tensor, forwarded: Tensor) -> Tensor:
    return hidden_states + F.dropout(forwarded, 0.1, True)


# Mamba


@wild("mamba", "transformers MambaRMSNormGated.forward", HALF, HALF, half(C, shift=1))
def mamba_gated_norm(hidden_states: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    hidden_states = hidden_states * F.silu(gate.to(torch.float32))
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
    return weight * hidden_states.to(input_dtype)


@wild("mamba", "state-spaces/mamba rms_norm_ref with group_size", HIDDEN, HIDDEN, WEIGHT)
def mamba_grouped_norm(x: Tensor, z: Tensor, weight: Tensor, group_size: int = 16) -> Tensor:
    x = x * F.silu(z)
    grouped = x.view(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    rstd = 1 / torch.sqrt(grouped.square().mean(dim=-1, keepdim=True) + 1e-6)
    return (grouped * rstd).flatten(-2) * weight


@wild("mamba", "transformers Mamba2Mixer.torch_forward, its time steps", of(B, T, H), of(H))
def mamba_time_steps(dt: Tensor, dt_bias: Tensor) -> Tensor:
    return torch.clamp(F.softplus(dt + dt_bias), 0.001, 0.1)


@wild("mamba", "transformers MambaMixer.slow_forward, gate of its projection", of(B, T, 2 * C), HIDDEN)
def mamba_gate(projected: Tensor, scan: Tensor) -> Tensor:
    _, gate = projected.chunk(2, dim=-1)
    return scan * F.silu(gate)


@wild("mamba", "transformers Mamba2Mixer.torch_forward, its skip", of(B, T, H, D), of(B, T, H, D), of(H))
def mamba_skip(y: Tensor, x: Tensor, d: Tensor) -> Tensor:
    y = y + d[..., None] * x
    return y.reshape(y.shape[0], y.shape[1], -1)


# diffusers


@wild("diffusers", "diffusers AdaLayerNormZero.forward, of its embedding", HIDDEN, of(B, 6 * C))
def diffusers_ada_norm_zero(x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
    shift_msa, scale_msa, gate_msa, _shift_mlp, _scale_mlp, _gate_mlp = emb.chunk(6, dim=1)
    x = F.layer_norm(x, (C,), eps=1e-6) * (1 + scale_msa[:, None]) + shift_msa[:, None]
    return x, x * gate_msa[:, None]


@wild("diffusers", "diffusers GEGLU.forward, behind its product", HALF)
def diffusers_geglu(hidden_states: Tensor) -> Tensor:
    hidden_states, gate = hidden_states.chunk(2, dim=-1)
    return hidden_states * F.gelu(gate)


@wild("diffusers", "diffusers ResnetBlock2D.forward, norm1 and its activation", of(B, C, 4, 4), WEIGHT, of(C))
def diffusers_group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, weight, bias, 1e-6))


@wild("diffusers", "diffusers get_timestep_embedding", of(12, scale=100))
def diffusers_timestep_embedding(timesteps: Tensor, dim: int = 32) -> Tensor:
    exponent = -math.log(10000) * torch.arange(0, dim // 2, dtype=torch.float32, device=timesteps.device) / (dim // 2)
    emb = timesteps[:, None].float() * torch.exp(exponent)[None, :]
    return torch.cat([torch.sin(emb), torch.cos(emb)], dim=-1)


@wild("diffusers", "diffusers train_text_to_image, its loss weighted by min-SNR", of(B, C, 4), of(B, C, 4), of(B))
def diffusers_min_snr_loss(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    loss = F.mse_loss(predicted.float(), target.float(), reduction="none")
    loss = loss.mean(dim=list(range(1, len(loss.shape)))) * weights
    return loss.mean()


# timm and torchvision: losses


@wild("timm losses", "timm LabelSmoothingCrossEntropy.forward", LOGITS, labels(B * T, ignored=False))
def timm_label_smoothing(x: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    logprobs = F.log_softmax(x, dim=-1)
    nll_loss = -logprobs.gather(dim=-1, index=target.unsqueeze(1))
    nll_loss = nll_loss.squeeze(1)
    smooth_loss = -logprobs.mean(dim=-1)
    loss = (1.0 - smoothing) * nll_loss + smoothing * smooth_loss
    return loss.mean()


@wild("timm losses", "timm SoftTargetCrossEntropy.forward", LOGITS, lambda: torch.randn(B * T, V).softmax(-1))
def timm_soft_target(x: Tensor, target: Tensor) -> Tensor:
    loss = torch.sum(-target * F.log_softmax(x, dim=-1), dim=-1)
    return loss.mean()


@wild("timm losses", "torchvision sigmoid_focal_loss", LOGITS, lambda: torch.randint(0, 2, (B * T, V)).float())
def torchvision_sigmoid_focal(inputs: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2) -> Tensor:
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** gamma)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * loss).mean()


@wild("timm losses", "timm AsymmetricLossMultiLabel.forward", LOGITS, lambda: torch.randint(0, 2, (B * T, V)).float())
def timm_asymmetric(x: Tensor, y: Tensor) -> Tensor:
    x_sigmoid = torch.sigmoid(x)
    xs_pos, xs_neg = x_sigmoid, 1 - x_sigmoid
    xs_neg = (xs_neg + 0.05).clamp(max=1)
    loss = y * torch.log(xs_pos.clamp(min=1e-8)) + (1 - y) * torch.log(xs_neg.clamp(min=1e-8))
    pt = xs_pos * y + xs_neg * (1 - y)
    loss = loss * torch.pow(1 - pt, 1 * y + 4 * (1 - y))
    return -loss.sum()


@wild("timm losses", "facebookresearch/detr dice_loss", LOGITS, lambda: torch.randint(0, 2, (B * T, V)).float())
def detr_dice(inputs: Tensor, targets: Tensor) -> Tensor:
    inputs = inputs.sigmoid().flatten(1)
    numerator = 2 * (inputs * targets).sum(1)
    denominator = inputs.sum(-1) + targets.sum(-1)
    return (1 - (numerator + 1) / (denominator + 1)).mean()


# Distillation and preferences


@wild("distillation", "Hinton's loss as torch's tutorial writes it", LOGITS, LOGITS)
def distillation_kl(student: Tensor, teacher: Tensor, t: float = 2.0) -> Tensor:
    return F.kl_div(F.log_softmax(student / t, dim=-1), F.softmax(teacher / t, dim=-1), reduction="batchmean") * t**2


@wild("distillation", "trl GKDTrainer.generalized_jsd_loss", LOGITS, LOGITS)
def distillation_jsd(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    student, teacher = F.log_softmax(student, dim=-1), F.log_softmax(teacher, dim=-1)
    mixture = torch.logsumexp(torch.stack([student + math.log(1 - beta), teacher + math.log(beta)]), dim=0)
    kl_teacher = F.kl_div(mixture, teacher, reduction="none", log_target=True)
    kl_student = F.kl_div(mixture, student, reduction="none", log_target=True)
    return (beta * kl_teacher + (1 - beta) * kl_student).sum() / student.size(0)


@wild("distillation", "facebookresearch/dino DINOLoss.forward, of one pair of crops", LOGITS, LOGITS, of(1, V))
def distillation_dino(student: Tensor, teacher: Tensor, center: Tensor) -> Tensor:
    q = F.softmax((teacher - center) / 0.04, dim=-1).detach()
    return torch.sum(-q * F.log_softmax(student / 0.1, dim=-1), dim=-1).mean()


@wild("distillation", "trl selective_log_softmax", of(B, T, V), labels(B, T, ignored=False))
def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return selected - torch.logsumexp(logits, dim=-1)


@wild(
    "distillation",
    "trl GRPOTrainer._compute_loss, of tokens",
    of(B, T),
    of(B, T),
    of(B),
    lambda: torch.randint(0, 2, (B, T)),
)
def grpo_loss(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    ratio = torch.exp(logps - old)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    per_token = -torch.min(ratio * advantages.unsqueeze(1), clipped * advantages.unsqueeze(1))
    return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


@wild("distillation", "a multi-class focal loss, as in many training scripts", LOGITS, labels(B * T, ignored=False))
def multi_class_focal(logits: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    ce = F.cross_entropy(logits, target, reduction="none")
    pt = torch.exp(-ce)
    return ((1 - pt) ** gamma * ce).mean()
