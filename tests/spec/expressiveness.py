"""What people ask a row-wise language for, a line each: the spec as they write it, and what comes of it.

`gradients` are those that the derived backward pass gives; a refusal names the line of the spec and what to write
instead, or says that it is not supported.
"""

from __future__ import annotations

from dataclasses import dataclass

from normgen.spec.reader import parse
from normgen.spec.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A spec that is asked for. `backward` says why there is none, where a backward pass is refused."""

    text: str
    gradients: str = ""
    refused: str = ""
    hint: str = ""
    backward: str = ""

    @property
    def spec(self) -> Spec:
        return parse(self.text, file="asked.toml")


def asked(
    tensors: str,
    formulas: str,
    *,
    gradients: str = "",
    refused: str = "",
    hint: str = "",
    backward: str = "",
    rest: str = "",
) -> Asked:
    """`tensors`: `name role` or `name role dtype`, by commas; `formulas`: `name = e`, by semicolons."""
    lines = ['name = "asked"', "[tensors]"]
    for tensor in tensors.split(","):
        name, role, *more = tensor.split()
        entry = (
            f'role = "{role}"' + (f', dtypes = ["{more[0]}"]' if more else "") + (f", {more[1]}" if more[1:] else "")
        )
        lines.append(f"{name} = {{ {entry} }}")
    lines.append("[formulas]")
    for formula in formulas.split(";"):
        name, text = (part.strip() for part in formula.split(" = ", 1))
        lines.append(f'{name} = "{text}"')
    return Asked(text="\n".join([*lines, rest]), gradients=gradients, refused=refused, hint=hint, backward=backward)


_NORM = "x * rsqrt(mean(x * x) + 1e-6)"
_NORMALS = '[accuracy]\nrows = ["normal"]'

WORKS: dict[str, Asked] = {
    # norms
    "l2norm": asked("x input, y output", "y = x * rsqrt(sum(x * x) + 1e-12)", gradients="dx"),
    "gemma rmsnorm": asked("x input, w parameter, y output", f"y = {_NORM} * (1 + w)", gradients="dx dw"),
    "QK-norm with a scale": asked("x input, w parameter, y output", f"y = {_NORM} * w * 0.125", gradients="dx dw"),
    "unbiased standardise": asked(
        "x input, y output",
        "m = mean(x); y = (x - m) / sqrt(sum((x - m)**2) / (cols - 1) + 1e-5)",
        gradients="dx",
    ),
    "eps outside the root": asked("x input, y output", "y = x / (sqrt(mean(x * x)) + 1e-3)", gradients="dx"),
    "double norm": asked(
        "x input, y output", f"h = {_NORM}; y = (h - mean(h)) * rsqrt(mean((h - mean(h))**2) + 1e-5)", gradients="dx"
    ),
    "swish of a norm, with beta": asked(
        "x input, w parameter, b parameter, y output",
        f"h = {_NORM} * w; y = h * sigmoid(b * h)",
        gradients="dx dw db",
    ),
    "softplus": asked("x input, y output", "y = maximum(x, 0) + log1p(exp(-abs(x)))", gradients="dx"),
    "residual + RMSNorm, both stored": asked(
        "x input, r input, w parameter, s output, y output",
        "s = x + r; y = s * rsqrt(mean(s * s) + 1e-6) * w",
        gradients="dx dr dw",
    ),
    "bias + residual + LayerNorm": asked(
        "x input, r input, b parameter, w parameter, c parameter, s output, y output",
        "s = x + b + r; m = mean(s); y = (s - m) * rsqrt(mean((s - m)**2) + 1e-5) * w + c",
        gradients="dx dr db dw dc",
    ),
    "LayerNorm, x bf16 with parameters f32": asked(
        "x input bf16, w parameter f32, y output f32",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w",
        gradients="dx dw",
    ),
    "power norm without eps": asked("x input, y output", "y = x / sqrt(mean(x**2))", gradients="dx", rest=_NORMALS),
    "p-norm, p = 3": asked(
        "x input, y output", "y = x * (sum(abs(x)**3) + 1e-6)**(-1/3)", gradients="dx", rest=_NORMALS
    ),
    "clip by the row's norm": asked(
        "x input, y output",
        "n = sqrt(sum(x * x)); y = x * minimum(1, 1 / maximum(n, 1e-6))",
        gradients="dx",
        rest=_NORMALS,
    ),
    "Llama's order: rounded before the weight": asked(
        "x input, w parameter, y output", f"y = cast({_NORM}, x) * w", gradients="dx dw"
    ),
    "partial RMSNorm": asked(
        "x input, w parameter, y output",
        "r = rsqrt(sum(where(col < 64, x * x, 0)) / 64 + 1e-6); y = where(col < 64, x * r * w, x)",
        gradients="dx dw",
    ),
    "leaky ReLU, then RMSNorm": asked(
        "x input, y output", "h = maximum(x, 0.1 * x); y = h * rsqrt(mean(h * h) + 1e-5)", gradients="dx"
    ),
    # gates and activations
    "Mamba2: norm of x times silu": asked(
        "x input, z input, w parameter, y output",
        "h = x * z * sigmoid(z); y = h * rsqrt(mean(h * h) + 1e-5) * w",
        gradients="dx dz dw",
    ),
    "Mamba2: norm, then silu": asked(
        "x input, z input, w parameter, y output", f"y = {_NORM} * w * z * sigmoid(z)", gradients="dx dz dw"
    ),
    "SwiGLU": asked("g input, u input, y output", "y = g * sigmoid(g) * u", gradients="dg du"),
    "GeGLU, erf": asked(
        "g input, u input, y output", "y = 0.5 * g * (1 + erf(g * 0.7071067811865476)) * u", gradients="dg du"
    ),
    "GeGLU, tanh": asked(
        "g input, u input, y output",
        "y = 0.5 * g * (1 + tanh(0.7978845608 * (g + 0.044715 * g**3))) * u",
        gradients="dg du",
    ),
    "DyT, alpha on the host": asked(
        "x input, w parameter, b parameter, y output",
        "y = tanh(alpha * x) * w + b",
        gradients="dx dw db",
        rest="[scalars]\nalpha = 0.5",
    ),
    "DyT, alpha learned": asked(
        "x input, a scalar_parameter, w parameter, b parameter, y output",
        "y = tanh(a * x) * w + b",
        gradients="dx dw db da",
    ),
    "dropout, mask of x's dtype": asked("x input, m input, y output", "y = x * m / 0.9", gradients="dx dm"),
    "dropout, mask of bytes": asked("x input, m input u8, y output", "y = where(m != 0, x / 0.9, 0)", gradients="dx"),
    "dropout, mask of bools": asked("x input, m input bool, y output", "y = where(m, x / 0.9, 0)", gradients="dx"),
    "sign, cos and a squared ReLU": asked(
        "x input, y output", "y = sign(x) * cos(x) + where(x > 0, x**2, 0)", gradients="dx"
    ),
    # softmax and its kin
    "softmax with a temperature": asked(
        "x input, y output", "z = x * 0.7; e = exp(z - max(z)); y = e / sum(e)", gradients="dx"
    ),
    "softmax of a soft cap": asked(
        "x input, y output", "z = 30 * tanh(x / 30); e = exp(z - max(z)); y = e / sum(e)", gradients="dx"
    ),
    "softmax, additive mask and scale": asked(
        "x input, m input, y output", "z = x * 0.125 + m; e = exp(z - max(z)); y = e / sum(e)", gradients="dx dm"
    ),
    "log-softmax of (x + m) / t": asked(
        "x input, m input, y output",
        "z = (x + m) / 0.5; t = max(z); y = z - t - log(sum(exp(z - t)))",
        gradients="dx dm",
    ),
    "softmin of squares": asked(
        "x input, b parameter, y output",
        "z = -(x - b)**2; e = exp(z - max(z)); y = e / sum(e)",
        gradients="dx db",
    ),
    "softmax with a sink": asked(
        "x input, s row_input, y output",
        "t = maximum(max(x), s); e = exp(x - constant(t)); y = e / (sum(e) + exp(s - constant(t)))",
        gradients="dx ds",
    ),
    "causal softmax": asked(
        "x input, y output",
        "z = where(col <= row % cols, x, -inf); e = exp(z - max(z)); y = e / sum(e)",
        gradients="dx",
    ),
    # losses and other values of rows
    "log-sum-exp": asked("x input, l row_output", "t = max(x); l = t + log(sum(exp(x - t)))", gradients="dx"),
    "entropy": asked(
        "x input, h row_output",
        "t = max(x); s = sum(exp(x - t)); h = log(s) - sum((x - t) * exp(x - t)) / s",
        gradients="dx",
    ),
    "KL divergence": asked(
        "x input, q input, k row_output",
        "t = max(x); z = x - t - log(sum(exp(x - t))); k = sum(where(q > 0, q * (log(q) - z), 0))",
        gradients="dx dq",
        rest=_NORMALS,
    ),
    "cosine": asked(
        "x input, v input, c row_output",
        "c = sum(x * v) * rsqrt(sum(x * x) + 1e-6) * rsqrt(sum(v * v) + 1e-6)",
        gradients="dx dv",
    ),
    "cross-entropy of soft targets": asked(
        "x input, q input, l row_output",
        "t = max(x); z = x - t - log(sum(exp(x - t))); l = -sum(q * z)",
        gradients="dx dq",
    ),
    "Poly loss": asked(
        "x input, q input, l row_output",
        "t = max(x); z = x - t - log(sum(exp(x - t))); l = -sum(q * z) + 2 * (1 - sum(q * exp(z)))",
        gradients="dx dq",
    ),
    "Laplace rows": asked("x input, m input, l row_output", "l = sum(abs(x - m))", gradients="dx dm"),
    "Huber rows": asked(
        "x input, m input, l row_output",
        "d = x - m; l = sum(where(abs(d) < 1, 0.5 * d * d, abs(d) - 0.5))",
        gradients="dx dm",
    ),
    "cross-entropy of a label": asked(
        "x input, label row_input i64, l row_output",
        "t = max(x); l = t + log(sum(exp(x - t))) - take(x, label)",
        gradients="dx",
    ),
    "log-softmax with z-loss, three outputs": asked(
        "x input, y output, l row_output, z row_output",
        "t = max(x); l = t + log(sum(exp(x - t))); y = x - l; z = 0.001 * l * l",
        gradients="dx",
    ),
    "a total of all rows": asked("x input, t scalar_output", "t = total(x * x)", gradients="dx"),
    "argmax": asked("x input, i row_output i64", "i = argmax(x)", backward="a backward pass needs an output"),
    "the two largest": asked(
        "x input, first row_output, second row_output",
        "i = argmax(x); first = take(x, i); second = max(where(col == i, -inf, x))",
        backward="the gradient of max is supported only where it cancels",
    ),
    "row minimum": asked(
        "x input, m row_output", "m = min(x)", backward="the gradient of min is supported only where it cancels"
    ),
    # statistics of other kernels, modulations
    "apply mean and rstd": asked(
        "x input, m row_input, r row_input, w parameter, y output",
        "y = (x - m) * r * w",
        gradients="dx dw dm dr",
    ),
    "AdaLN of each element": asked(
        "x input, scale input, shift input, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-6) * (1 + scale) + shift",
        gradients="dx dscale dshift",
    ),
    "AdaLN of each batch": asked(
        "x input, scale batch_parameter, shift batch_parameter, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-6) * (1 + scale) + shift",
        gradients="dx dscale dshift",
    ),
    "norm of heads, a weight for each head and column": asked(
        "x input, w head_parameter, b head_parameter, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w + b",
        gradients="dx dw db",
    ),
    "norm of heads, a weight for each head": asked(
        "x input, w head_input, y output", f"y = {_NORM} * w", gradients="dx"
    ),
    "GroupNorm, weights by the channel of a row": asked(
        "x input, w head_input, b head_input, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w + b",
        gradients="dx",
    ),
    "GroupNorm, weights by the channel of a row and its columns": asked(
        "x input, w head_parameter f32 group=16, b head_parameter f32 group=16, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w + b",
        gradients="dx dw db",
    ),
    "a quantised input with a scale for each row and 128 columns": asked(
        "x input f8e4m3, s batch_parameter f32 group=128, w parameter f32, y output bf16",
        "h = x * s; y = h * rsqrt(mean(h * h) + 1e-6) * w",
        gradients="dx dw ds",
    ),
    "dequantisation by blocks of rows and columns": asked(
        "x input i8, s batch_parameter f32 group=128, y output f32",
        "y = x * s",
        gradients="ds",
    ),
    "a path dropped in each batch": asked(
        "x input, r input, keep batch_input, y output", "y = where(keep, x / 0.9, 0) + r", gradients="dx dr"
    ),
    "QK norm, then RoPE of halves": asked(
        "x input, w parameter, c batch_parameter, s batch_parameter, y output",
        "n = x * rsqrt(mean(x * x) + 1e-6) * w; y = n * c + where(col < cols / 2, -1, 1) * roll(n, cols / 2) * s",
        gradients="dx dw dc ds",
    ),
    "QK norm, then RoPE of neighbours": asked(
        "x input, w parameter, c batch_parameter, s batch_parameter, y output",
        "n = x * rsqrt(mean(x * x) + 1e-6) * w; y = n * c + where(col % 2 == 0, -roll(n, -1), roll(n, 1)) * s",
        gradients="dx dw dc ds",
    ),
    "a token shift of three taps": asked(
        "x input, a parameter, b parameter, y output", "y = x + a * roll(x, 1) + b * roll(x, -1)", gradients="dx da db"
    ),
    "RMSNorm, then RoPE: the halves of a row are two inputs": asked(
        "a input, b input, c input, s input, ya output, yb output",
        "r = rsqrt((sum(a * a) + sum(b * b)) / (2 * cols) + 1e-6);"
        "ya = a * r * c - b * r * s; yb = b * r * c + a * r * s",
        gradients="da db dc ds",
    ),
    "GroupNorm, groups of neighbouring columns": asked(
        "x input, w parameter, b parameter, y output",
        "m = mean(x, 32); y = (x - m) * rsqrt(mean((x - m)**2, 32) + 1e-5) * w + b",
        gradients="dx dw db",
    ),
    "norm of heads side by side, a weight for each head and column": asked(
        "x input, w parameter, y output", "y = x * rsqrt(mean(x * x, 64) + 1e-6) * w", gradients="dx dw"
    ),
    "argmin of a soft row, and what is there": asked(
        "x input, i row_output i32, v row_output", "z = tanh(x); i = argmin(z); v = take(z, i)", gradients="dx"
    ),
    "dropout by a seed": asked(
        "x input, s seed, w parameter, y output",
        f"h = {_NORM} * w; y = where(random(s) < 0.9, h / 0.9, 0)",
        gradients="dx dw",
    ),
    "softmax of groups of columns": asked(
        "x input, y output", "e = exp(x - max(x, 16)); y = e / sum(e, 16)", gradients="dx"
    ),
    # quantisers
    "scaling by absmax, unrounded": asked(
        "x input, y output",
        "y = x / maximum(absmax(x), 1e-6)",
        backward="the gradient of absmax is supported only where it cancels",
    ),
    "LayerNorm, scaled by a constant absmax": asked(
        "x input, w parameter, y output, scale row_output",
        "m = mean(x); h = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w;"
        "scale = constant(maximum(absmax(h), 1e-6)); y = h / scale",
        gradients="dx dw",
    ),
    "int8 of each row": asked(
        "x input, q output i8, scale statistic",
        "scale = maximum(absmax(x), 1e-6) / 127; q = x / scale",
        backward="a backward pass needs an output",
    ),
    "LayerNorm to int8": asked(
        "x input, w parameter, b parameter, scale scalar_input, q output i8",
        "m = mean(x); q = ((x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w + b) / scale",
        backward="a backward pass needs an output",
    ),
    "fp8 of each row": asked(
        "x input, q output f8e4m3, scale statistic",
        "scale = maximum(absmax(x), 1e-6) / 448; q = x / scale",
        backward="does not take the gradient of a statistic",
    ),
    "RMSNorm to fp8": asked(
        "x input, w parameter, scale scalar_input, q output f8e4m3", f"q = {_NORM} * w / scale", gradients="dx dw"
    ),
    "fp8 of groups of 128": asked(
        "x input, q output f8e4m3, scale group_statistic",
        "scale = maximum(absmax(x, 128), 1e-10) / 448; q = x / scale",
        backward="does not take the gradient of a statistic",
    ),
    "fp8 of groups of 128, as training sees it": asked(
        "x input, w parameter, y output",
        f"h = {_NORM} * w; s = maximum(absmax(h, 128), 1e-10) / 448; y = cast(h / s, f8e4m3) * s",
        gradients="dx dw",
    ),
}

_GROUP_INDEX = '[tensors.w]\nrole = "parameter"\nindex = "row % 32"'
REFUSED: dict[str, Asked] = {
    "cumsum": asked("x input, y output", "y = cumsum(x)", refused="unknown function", hint="not supported: scans"),
    "a scan": asked("x input, y output", "y = scan(x)", refused="unknown function", hint="not supported: scans"),
    "top-k": asked("x input, y output", "y = topk(x, 4)", refused="unknown function", hint="not supported: a row"),
    "sorting": asked("x input, y output", "y = sort(x)", refused="unknown function", hint="not supported: a row"),
    "RoPE by its neighbour": asked(
        "x input, c input, s input, y output",
        "y = x * c + x[col + 1] * s",
        refused="a formula is made of numbers, names",
        hint="not supported: other columns of a row",
    ),
    "RoPE by a function": asked(
        "x input, c input, s input, y output",
        "y = x * c + rotate_half(x) * s",
        refused="unknown function 'rotate_half'",
        hint="write where(col < cols / 2, -1, 1) * roll(x, cols / 2)",
    ),
    "column sum, by a role": asked(
        "x input, y column_output", "y = sum(x)", refused="unknown role", hint="not supported: sums over the rows"
    ),
    "column sum, by an axis": asked(
        "x input, y output",
        "y = sum(x, axis=0)",
        refused="sum takes 1 argument",
        hint="not supported: sums over the rows",
    ),
    "column sum, by a function": asked(
        "x input, y output", "y = sum_rows(x)", refused="unknown function", hint="not supported: sums over the rows"
    ),
    "arithmetic in float64": asked(
        "x input f64, y output", "y = x * 2", refused="unknown dtype", hint="not supported: arithmetic is float32"
    ),
    "a float64 within": asked(
        "x input, y output",
        "y = x * cast(x, f64)",
        refused="cast(e, to) names a dtype",
        hint="not supported: arithmetic is float32",
    ),
    "fp6": asked("x input, y output fp6", "y = x", refused="unknown dtype", hint="not supported: of formats with"),
    "softmax x V, by a role": asked(
        "x input, v matrix, y output",
        "e = exp(x - max(x)); y = e / sum(e) * v",
        refused="unknown role",
        hint="write x @ w, of x =",
    ),
    "softmax x V, by an operator": asked(
        "x input, v input, y output",
        "e = exp(x - max(x)); y = (e / sum(e)) @ v",
        refused="what is made of all columns is known behind the last one, and no element of a kernel of products",
        hint="store it; a spec of its own reads it",
    ),
    "GEMM": asked(
        "x input, w input, y output", "y = matmul(x, w)", refused="unknown function", hint="write x @ w, of x ="
    ),
    "a scale of a row and its groups of columns, as a row input": asked(
        "x input, w row_input f32 group=16, y output",
        "y = x * w",
        refused="only a parameter of columns has 'group'",
        hint="group = 128 of a parameter, batch_parameter or head_parameter",
    ),
    "parameters by a period of their own": asked(
        "x input, w period_parameter, y output",
        "y = x * w",
        refused="unknown role",
        hint="the role says the index: one value for each column",
    ),
    "parameters by an index of their own": asked(
        "x input, y output",
        "m = mean(x); y = (x - m) * rsqrt(mean((x - m)**2) + 1e-5) * w",
        rest=_GROUP_INDEX,
        refused="unknown key 'index' in [tensors.w]",
        hint="the role says the index: one value for each column",
    ),
}
