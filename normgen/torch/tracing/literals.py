"""Tensors that a function makes of numbers, as torch.tensor(2.0)."""

from __future__ import annotations

from typing import Any

import torch

_MOST = 64  # numbers of a tensor; one of more is an argument


def write_numbers_out(graph: Any) -> None:
    """A tensor that the function makes of numbers, as torch.tensor(2.0), is made of them at each call."""
    aten, add = torch.ops.aten, graph.graph.call_function
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        value = getattr(graph, node.target)
        if not 0 < value.numel() <= _MOST or value.is_complex():
            continue
        kind = {"dtype": value.dtype, "device": value.device}
        for copied in list(node.users):
            with graph.graph.inserting_before(copied):
                found = [
                    add(aten.full.default, ([], one), kind) for one in torch.utils._pytree.tree_leaves(value.tolist())
                ]
                if value.ndim:
                    found += [add(aten.stack.default, (list(found),))]
                    found += [add(aten.reshape.default, (found[-1], list(value.shape)))]
            for one in found:
                one.meta = {key: note for key, note in copied.meta.items() if key != "val"}
            copied.replace_all_uses_with(found[-1])
            graph.graph.erase_node(copied)
        graph.graph.erase_node(node)
    graph.recompile()
