"""What the language lacks: what to write instead, or that it is not supported.

Each is the hint of a refusal. Every name here is one that people write, and no name of the language.
"""

from __future__ import annotations

import ast

from normgen.spec.functions import FUNCTIONS
from normgen.spec.spec import Role

_MATRICES = (
    'write x @ w, of x = { role = "input", axes = ["rows", "inner"] } '
    'and w = { role = "parameter", axes = ["inner", "cols"] }'
)
_BATCHED = 'write a @ b, where b has the role batch_parameter and axes = ["batches", "inner", "cols"]'
_NO_SCANS = "not supported: scans along a row; an element is made of its own column and of values of the whole row"
_NO_NEIGHBOURS = (
    "not supported: other columns of a row, but for roll(x, k), such as roll(x, 1) or roll(x, cols / 2), "
    "and take(x, index), one of each row"
)
_ROPE = (
    "of halves write x * cosine + where(col < cols / 2, -1, 1) * roll(x, cols / 2) * sine, of neighbours "
    "x * cosine + where(col % 2 == 0, -roll(x, -1), roll(x, 1)) * sine"
)
_NO_ORDER = "not supported: a row in order; argmax(x), then argmax(where(col == first, -inf, x)), are its two largest"
_NO_SUMS_OF_COLUMNS = (
    "not supported: sums over the rows of a column that a formula reads. BatchNorm is two specs: the rows of the first "
    "are these columns, and mean(x), mean((x - mean(x))**2) its row outputs; the second reads them as parameters, "
    "(x - m) * rsqrt(v + eps) * weight + bias. The gradient of b in y = x + b is such a sum, and total(x) adds all "
    "rows to one number"
)
_NO_SUCH_MATHS = "not supported: no formula of the known functions is this one"
_GROUPS_ARE_ROWS = (
    "a group of channels is a row: of x [batch, groups, values of a group] write "
    "(x - mean(x)) * rsqrt(mean((x - mean(x))**2) + eps)"
)
_NO_SHAPES = "a formula says one element of a row; its caller says the shape, whose last axis is the row"
_NO_PARTS = (
    "not supported: parts of a row; each part is an input of its own, whose rows may lie a pitch apart, and each part "
    "of a result an output"
)
_MAPS = (
    "the role says the index: one value for each column (parameter), for each batch and column (batch_parameter: "
    "row / rows per batch), for each head and column (head_parameter: row % heads), for each row (row_input), batch "
    "(batch_input) or head (head_input); with group = 128 one of a parameter is for each group of 128 columns"
)
_GROUPED = (
    "group = 128 of a parameter, batch_parameter or head_parameter: a value for each group of 128 columns; with a "
    "batch for each row, [rows, cols / 128]"
)
_REDUCED = "a reduction says its groups: absmax(y, 128)"
_ROLE_IS_SHAPE = (
    "the role says the shape, whose last axis is the row: docs/language.md lists them; where another axis is reduced, "
    "as the channels of [batch, channels, pixels] are, the caller moves it last"
)
AXES = "a reduction runs over the columns of each row; total(x) adds all rows"

# A formula -> the names that people have for it, by what they write it for.
FORMULAS = {
    "mean((x - mean(x))**2)": "var variance",
    "sqrt(mean((x - mean(x))**2))": "std stddev",
    "(x - mean(x)) * rsqrt(mean((x - mean(x))**2) + eps)": "layer_norm layernorm zscore standardize",
    "x * rsqrt(mean(x * x) + eps)": "rms_norm rmsnorm",
    "mean((x - mean(x)) * (y - mean(y)))": "cov covariance",
    "sqrt(sum(x * x))": "norm l2norm l2_norm",
    "sum(abs(x))": "l1norm l1_norm",
    "sqrt(mean(x * x))": "rms",
    "sum(x * x)": "sumsq sum_of_squares",
    "mean(x * x)": "mean_square mean_of_squares",
    "mean(abs(x))": "absmean meanabs abs_mean",
    "x * rsqrt(sum(x * x))": "normalize l2_normalize",
    "sum(x * y) * rsqrt(sum(x * x) * sum(y * y))": "cosine_similarity cos_sim",
    "exp(x - max(x)) / sum(exp(x - max(x)))": "softmax",
    "exp(min(x) - x) / sum(exp(min(x) - x))": "softmin",
    "x - max(x) - log(sum(exp(x - max(x))))": "log_softmax logsoftmax",
    "max(x) + log(sum(exp(x - max(x))))": "logsumexp log_sum_exp lse",
    "max(x) + log(sum(exp(x - max(x)))) - take(x, label)": "cross_entropy nll_loss",
    "sum(target * (log(target) - x))": "kl_div",
    "mean((x - target)**2)": "mse mse_loss",
    "-sum(p * log(p))": "entropy",
    "where(abs(d) < 1, 0.5 * d * d, abs(d) - 0.5)": "huber huber_loss smooth_l1 smooth_l1_loss",
    "-(1 - p)**2 * log(p)": "focal focal_loss",
    "sum(where(x != 0, 1, 0))": "count count_nonzero nonzero",
    "sum(where(x == x, x, 0))": "nansum",
    "sum(where(x == x, x, 0)) / sum(where(x == x, 1, 0))": "nanmean",
    "maximum(x, 0)": "relu",
    "clamp(x, 0, 6)": "relu6",
    "where(x > 0, x, 0.01 * x)": "leaky_relu",
    "where(x > 0, x, expm1(x))": "elu celu",
    "1.0507009873554805 * where(x > 0, x, 1.6732632423543772 * expm1(x))": "selu",
    "x * sigmoid(x)": "silu swish",
    "gate * sigmoid(gate) * up": "swiglu silu_mul silu_and_mul",
    "a * sigmoid(b)": "glu",
    "0.5 * x * (1 + erf(x * 0.7071067811865476))": "gelu",
    "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x**3)))": "gelu_tanh gelu_new",
    "x * sigmoid(1.702 * x)": "quick_gelu",
    "maximum(x, 0) + log1p(exp(-abs(x)))": "softplus",
    "x * tanh(maximum(x, 0) + log1p(exp(-abs(x))))": "mish",
    "minimum(x, 0) - log1p(exp(-abs(x)))": "logsigmoid log_sigmoid",
    "clamp(x + 3, 0, 6) / 6": "hardsigmoid hard_sigmoid",
    "x * clamp(x + 3, 0, 6) / 6": "hardswish hard_swish",
    "clamp(x, -1, 1)": "hardtanh hard_tanh",
    "sigmoid(x)": "logistic expit",
    "where(x > 0, 1, 0)": "heaviside step",
    "clamp(x, low, high)": "clip clip_by_value",
    "x ** number": "pow power",
    "x ** 2": "square sqr",
    "x ** 3": "cube",
    "sign(x) * abs(x) ** (1 / 3)": "cbrt",
    "1 / x": "reciprocal recip",
    "rsqrt(x)": "inv_sqrt",
    "exp(x)": "expf",
    "log(x)": "ln logf",
    "log1p(x)": "log1pf",
    "expm1(x)": "expm1f",
    "tanh(x)": "tanhf",
    "sqrt(x)": "sqrtf",
    "abs(x)": "fabs fabsf",
    "maximum(a, b)": "fmax fmaxf",
    "minimum(a, b)": "fmin fminf",
    "exp(x * 0.6931471805599453)": "exp2",
    "log(x) * 1.4426950408889634": "log2",
    "log(x) * 0.4342944819032518": "log10",
    "log(x / (1 - x))": "logit",
    "maximum(a, b) + log1p(exp(-abs(a - b)))": "logaddexp",
    "sqrt(x * x + y * y)": "hypot",
    "sin(x) / cos(x)": "tan",
    "0.5 * (exp(x) - exp(-x))": "sinh",
    "0.5 * (exp(x) + exp(-x))": "cosh",
    "1 - erf(x)": "erfc",
    "sign(x) * floor(abs(x))": "trunc",
    "x - floor(x)": "frac",
    "round(x)": "rint nearbyint",
    "x - n * floor(x / n)": "mod fmod remainder",
    "a * b + c": "fma fmaf addcmul mad",
    "x != x": "isnan is_nan",
    "abs(x) == inf": "isinf",
    "abs(x) < inf": "isfinite",
    "max(condition)": "any",
    "min(condition)": "all",
    "max(x)": "amax",
    "min(x)": "amin",
    "where(condition, a, b)": "if_else iff cond select piecewise",
    "where(mask, value, x)": "masked_fill",
    "where(col == label, 1, 0)": "one_hot onehot",
    "take(x, index)": "gather pick",
    "where(col < cols / 2, -1, 1) * roll(x, cols / 2)": "rotate_half",
    "where(col % 2 == 0, -roll(x, -1), roll(x, 1))": "rotate_every_two rotate_interleaved",
    "where(random(seed) >= p, x / (1 - p), 0)": "dropout",
    "where(random(seed) < p, 1, 0)": "bernoulli",
    "constant(x)": "detach stop_gradient",
    "cast(x, f16)": "astype to half",
    "cast(x, bf16)": "bfloat16",
    "cast(x, tf32)": "tensorfloat32 to_tf32",
    "cast(x, f8e4m3)": "quantize fake_quant to_fp8",
}
_FUNCTIONS = {
    **{name: f"write {formula}" for formula, names in FORMULAS.items() for name in names.split()},
    **dict.fromkeys(("rand", "uniform"), "write random(seed), of a tensor with the role seed"),
    **dict.fromkeys(("prod", "product"), "write exp(sum(log(x))), where x > 0"),
    **dict.fromkeys(("randn", "normal"), "not supported: normal numbers; random(seed) is uniform in [0, 1)"),
    **dict.fromkeys(("arange", "iota", "index"), "write col, the number of an element's column, or row"),
    **dict.fromkeys(("cols", "len", "size", "shape", "numel"), "write cols, the length of a row"),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "arcsin", "arccos", "arctan", "arctan2"), _NO_SUCH_MATHS),
    **dict.fromkeys(("erfinv", "lgamma", "gamma", "digamma", "bessel"), _NO_SUCH_MATHS),
    **dict.fromkeys(("group_norm", "groupnorm", "instance_norm"), _GROUPS_ARE_ROWS),
    **dict.fromkeys(("reshape", "view", "permute", "transpose", "unflatten", "flatten", "repeat", "tile"), _NO_SHAPES),
    **dict.fromkeys(("split", "chunk", "slice", "cat", "concat", "concatenate", "stack", "first", "last"), _NO_PARTS),
    **dict.fromkeys(("topk", "top_k", "sort", "argsort", "median", "quantile"), _NO_ORDER),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "scan", "associative_scan", "logcumsumexp"), _NO_SCANS),
    **dict.fromkeys(("prefix_sum", "cumulative_sum", "running_sum"), _NO_SCANS),
    **dict.fromkeys(("trace", "flip", "reverse", "fft", "conv", "conv1d"), _NO_NEIGHBOURS),
    **dict.fromkeys(("matmul", "mm", "gemm", "linear"), _MATRICES),
    **dict.fromkeys(("bmm", "einsum", "baddbmm"), _BATCHED),
    **dict.fromkeys(("rope", "rotary", "apply_rotary_pos_emb"), _ROPE),
    **dict.fromkeys(("shift", "rotate", "circshift"), "write roll(x, k), k columns further to the right"),
    "diff": "write x - roll(x, 1), whose column 0 has the row's last one",
    "dot": f"write sum(x * y) for two rows; of matrices {_MATRICES}",
    **dict.fromkeys(("batch_norm", "batchnorm", "running_mean", "running_var"), _NO_SUMS_OF_COLUMNS),
    **dict.fromkeys(("allreduce", "all_reduce", "psum", "pmean"), "not supported: other GPUs; the caller adds up"),
    **dict.fromkeys(("double", "float64"), "not supported: arithmetic is float32 by design"),
    **dict.fromkeys(("float", "float32"), "leave it out: every operation runs in float32"),
    **dict.fromkeys(("int", "long", "integer"), "write sign(x) * floor(abs(x)), in float32"),
}
_NAMES = {
    "pi": "write 3.141592653589793",
    "tau": "write 6.283185307179586",
    "e": "write 2.718281828459045",
    "nan": "not supported: NaN as a constant; x != x tells it",
    "infinity": "write inf",
    "rows": "not supported: the number of rows; row is the number of an element's row, from 0",
    **dict.fromkeys(("index", "column", "arange"), "write col, the number of an element's column, or row"),
    **dict.fromkeys(("n", "N", "D", "dim", "hidden", "width", "size", "length"), "write cols, the length of a row"),
}
_REDUCED_SO = (
    "sum",
    "mean",
    "max",
    "min",
    "absmax",
    "argmax",
    "argmin",
    "var",
    "std",
    "norm",
    "amax",
    "amin",
    "all",
    "any",
)
_OF_COLUMNS, _OF_ROWS = (
    ("rows", "row", "batch", "dim0", "axis0", "0"),
    ("cols", "col", "columns", "last", "dim1", "1"),
)
_EACH_COLUMN, _EACH_ROW = ("column", "columns", "col", "batch"), ("row", "rows")  # before its name, as in colsum
_FORMS: dict[type[ast.AST], str] = {
    ast.BitXor: "a power is written **",
    ast.IfExp: "write where(condition, a, b)",
    ast.BitAnd: "write: a and b",
    ast.BitOr: "write: a or b",
    ast.Invert: "write: not a",
    ast.FloorDiv: "write floor(a / b)",
    ast.LShift: "write x * number",
    ast.RShift: "write floor(x / number)",
    ast.Subscript: _NO_NEIGHBOURS,
}
_ROLES = {
    **dict.fromkeys(("matrix", "tile", "gemm", "matmul", "values"), _MATRICES),
    **dict.fromkeys(
        ("column_output", "col_output", "column_statistic", "col_statistic", "parameter_output"), _NO_SUMS_OF_COLUMNS
    ),
    **dict.fromkeys(("group_parameter", "group_input", "block_scale", "channel_parameter"), _GROUPED),
    "period_parameter": _MAPS,
    **dict.fromkeys(("weight", "bias", "col_input", "column_input"), 'write "parameter": one value for each column'),
    **dict.fromkeys(("residual", "gate", "activation"), 'write "input": one value for each row and column'),
    "mask": '{ role = "input", dtypes = ["bool"] } is a mask of elements',
    **dict.fromkeys(("label", "target", "index"), '{ role = "row_input", dtypes = ["i64"] } is one label for each row'),
    "scalar": 'a number of the call stands under [scalars]; one on the device is a "scalar_input", a learned one a '
    '"scalar_parameter"',
    "loss": 'write "row_output", or "scalar_output" for the total of all rows',
}
_KEYS = {
    "per": _MAPS,
    "batch": 'role = "batch_parameter" has a row for each batch',
    **dict.fromkeys(("head", "heads"), 'role = "head_parameter" has a row for each head'),
    "index": _MAPS,
    "map": _MAPS,
    **dict.fromkeys(("groups", "group_size", "block", "block_size", "channels"), _GROUPED),
    "dtype": 'dtypes = ["..."]',
    **dict.fromkeys(("shape", "axis", "dim", "dims"), _ROLE_IS_SHAPE),
}


def instead_of_function(name: str) -> str | None:
    """What to write instead of a function that the language does not have."""
    for reduction in _REDUCED_SO:
        axis = name.removeprefix(reduction).removeprefix("_").removeprefix("over_")
        whose = name.removesuffix(reduction).removesuffix("_")
        if axis in _OF_COLUMNS or whose in _EACH_COLUMN:
            return _NO_SUMS_OF_COLUMNS
        if axis in _OF_ROWS or whose in _EACH_ROW:
            return _within_rows(reduction)
    return _FUNCTIONS.get(name)


def instead_of_name(name: str) -> str | None:
    """What to write instead of a name that no tensor, scalar or formula has."""
    return _NAMES.get(name)


def instead_of_two(name: str, call: ast.Call) -> str | None:
    """What to write instead of max(x, 0), a reduction of two; None of any other call."""
    if name not in ("max", "min") or len(call.args) != 2 or call.keywords:
        return None
    larger = "larger" if name == "max" else "smaller"
    two = ", ".join(map(ast.unparse, call.args))
    return f"write {name}imum({two}) for the {larger} of two, {name}(x, 32) for groups of columns"


def instead_of_axis(name: str, call: ast.Call) -> str | None:
    """What to write instead of a reduction along an axis, as mean(x, axis=0), mean(x, 0) or x.mean(0) is; else None."""
    given = [k.value for k in call.keywords if k.arg in ("axis", "dim")]
    given += call.args[0 if isinstance(call.func, ast.Attribute) else 1 :]
    if name not in _REDUCED_SO or len(given) != 1:
        return None
    said = ast.unparse(given[0]).strip("'")
    if said in _OF_COLUMNS:
        return _NO_SUMS_OF_COLUMNS
    return _within_rows(name) if said in (*_OF_ROWS, "-1") else None


def _within_rows(name: str) -> str:
    """What to write for a reduction of each row: its formula, where it is none of the language's own."""
    return f"{_FUNCTIONS.get(name) or f'write {name}(x)'}: {AXES}"


def instead_of_method(call: ast.Call) -> str | None:
    """What to write instead of x.mean(), a call of something's function; None of any other call."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name = call.func.attr
    known = f"write {name}(x)" if name in FUNCTIONS else None
    return instead_of_axis(name, call) or instead_of_function(name) or known


def instead_of_form(node: ast.expr) -> str:
    """What to write in the place of a form that is not part of the language."""
    inner = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
    return _FORMS.get(type(inner), f"{type(inner).__name__} is not part of the formula language")


def instead_of_role(name: str) -> str | None:
    """What to write instead of a role that no tensor has."""
    return _ROLES.get(name)


def instead_of_group(role: Role) -> str:
    """What to write instead of groups of columns of a tensor of this role, which has none."""
    return _REDUCED if role.kind.is_groups or role.is_written else _GROUPED


def instead_of_key(name: str) -> str | None:
    """What to write instead of a key that a tensor does not have."""
    return _KEYS.get(name)
