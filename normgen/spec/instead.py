"""What the language lacks: what to write instead, or that it is not supported.

Each is the hint of a refusal. Every name here is one that people write, and no name of the language.
"""

from __future__ import annotations

import ast

from normgen.spec.spec import Role

_MATRICES = (
    'write x @ w, of x = { role = "input", axes = ["rows", "inner"] } '
    'and w = { role = "parameter", axes = ["inner", "cols"] }'
)
_BATCHED = 'write a @ b, where b has the role batch_parameter and axes = ["batches", "inner", "cols"]'
_NO_SCANS = "not supported: scans along a row; an element is made of its own column and of values of the whole row"
_NO_NEIGHBOURS = (
    "not supported: other columns of a row, but for take(x, index), one of each row; "
    "the halves of a row (RoPE) are two inputs, whose rows lie a pitch apart"
)
_NO_ORDER = "not supported: a row in order; argmax(x), then argmax(where(col == first, -inf, x)), are its two largest"
_NO_SUMS_OF_COLUMNS = (
    "not supported: sums over the rows of a column in a forward pass; "
    "the gradient of b in y = x + b is one, and total(x) adds all rows to one number"
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
_ROLE_IS_SHAPE = "the role says the shape: docs/language.md lists them"
AXES = "a reduction runs over the columns of each row; total(x) adds all rows"

_FUNCTIONS = {
    "var": "write mean((x - mean(x))**2)",
    "std": "write sqrt(mean((x - mean(x))**2))",
    "norm": "write sqrt(sum(x * x))",
    "softmax": "write exp(x - max(x)) / sum(exp(x - max(x)))",
    "logsumexp": "write max(x) + log(sum(exp(x - max(x))))",
    "relu": "write maximum(x, 0)",
    "leaky_relu": "write where(x > 0, x, 0.01 * x)",
    "silu": "write x * sigmoid(x)",
    "swish": "write x * sigmoid(x)",
    "gelu": "write 0.5 * x * (1 + erf(x * 0.7071067811865476))",
    "softplus": "write maximum(x, 0) + log(1 + exp(-abs(x)))",
    "pow": "write x ** number",
    "square": "write x ** 2",
    "reciprocal": "write 1 / x",
    "exp2": "write exp(x * 0.6931471805599453)",
    "log2": "write log(x) * 1.4426950408889634",
    "log1p": "write log(1 + x)",
    "expm1": "write exp(x) - 1",
    "isnan": "write x != x",
    "any": "write max(condition)",
    "all": "write min(condition)",
    "amax": "write max(x)",
    "amin": "write min(x)",
    "gather": "write take(x, index)",
    "pick": "write take(x, index)",
    "rand": "write random(seed), of a tensor with the role seed",
    "uniform": "write random(seed), of a tensor with the role seed",
    "dropout": "write where(random(seed) >= p, x / (1 - p), 0)",
    "detach": "write constant(x)",
    "stop_gradient": "write constant(x)",
    **dict.fromkeys(("topk", "top_k", "sort", "argsort", "median", "quantile"), _NO_ORDER),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "scan", "associative_scan"), _NO_SCANS),
    **dict.fromkeys(("roll", "shift", "rotate_half", "rope", "conv", "conv1d"), _NO_NEIGHBOURS),
    **dict.fromkeys(("matmul", "mm", "gemm", "linear"), _MATRICES),
    **dict.fromkeys(("bmm", "einsum", "baddbmm"), _BATCHED),
    "dot": f"write sum(x * y) for two rows; of matrices {_MATRICES}",
    **dict.fromkeys(("sum_rows", "column_sum", "colsum"), _NO_SUMS_OF_COLUMNS),
    **dict.fromkeys(("double", "float64"), "not supported: arithmetic is float32 by design"),
}
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
    return _FUNCTIONS.get(name)


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
