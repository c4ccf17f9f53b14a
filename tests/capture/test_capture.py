"""What capture accepts, what it refuses, and what the graph it gives looks like."""

from __future__ import annotations

import itertools

import pytest
import torch
from interpret import compare, inputs_of, interpret
from torch import nn

from hocket.capture import capture, model_fingerprint
from hocket.capture.models import tiny
from hocket.errors import CaptureError
from hocket.graph.fingerprint import fingerprint
from hocket.graph.text import parse_graph, print_graph
from hocket.graph.types import Graph
from hocket.graph.verify import verify_graph

VIEWS = {
    "aten.view.default", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor",
    "aten.split_with_sizes.default", "aten.full.default", "aten.arange.start_step", "hocket.constant.default",
}  # fmt: skip


class Net(nn.Module):
    """A linear layer and whatever `body` does with its output."""

    def __init__(self, body, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(6, width)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.linear(x)).float().square().mean()


def batch(*shape: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(11)
    return (torch.randn(*(shape or (4, 6))),)


def kinds(graph: Graph) -> list[str]:
    return [op.op for op in graph.operations]


def test_graph_survives_text_and_holds_its_invariants() -> None:
    model, sample = tiny("gpt2")
    graph = capture(model, sample, name="tiny gpt2")
    verify_graph(graph)
    assert parse_graph(print_graph(graph)) == graph
    assert graph.name == "tiny gpt2"


def test_meta_and_real_models_give_the_same_graph() -> None:
    model, sample = tiny("llama")
    real = capture(model, sample)
    assert fingerprint(capture(model.to("meta"), sample)) == fingerprint(real)


def test_capture_leaves_the_model_alone() -> None:
    model, sample = tiny("resnet")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture(model, sample)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_tied_weights_are_one_input_with_both_paths() -> None:
    model, sample = tiny("gpt2")
    paths = [i.paths for i in capture(model, sample).parameters]
    assert ("transformer.wte.weight", "lm_head.weight") in paths


def test_names_and_modules_are_readable() -> None:
    model, sample = tiny("gpt2")
    graph = capture(model, sample)
    assert "p_transformer_h_0_attn_c_attn_weight" in graph.types
    assert {i.name: i.paths for i in graph.batch} == {"x_input_ids": ("input_ids",), "x_labels": ("labels",)}
    modules = {op.module for op in graph.operations[: graph.forward] if op.op == "aten.addmm.default"}
    assert "transformer.h.1.mlp.c_fc" in modules
    backward = {op.module for op in graph.operations[graph.forward :] if op.op == "aten.mm.default"}
    assert "transformer.h.1.mlp.c_fc" in backward


def test_views_do_not_cross_into_the_backward() -> None:
    for architecture in ("gpt2", "llama"):
        model, sample = tiny(architecture)
        graph = capture(model, sample)
        free = {o for op in graph.operations[: graph.forward] if op.op in VIEWS for o in op.outputs}
        assert not any(name in free for op in graph.operations[graph.forward :] for name in op.inputs)


def test_fused_backward_kernels_stay_fused() -> None:
    for body, op in (
        (nn.functional.silu, "aten.silu_backward.default"),
        (nn.functional.gelu, "aten.gelu_backward.default"),
        (nn.functional.hardtanh, "aten.hardtanh_backward.default"),
        (lambda x: torch.softmax(x, -1), "aten._softmax_backward_data.default"),
        (lambda x: nn.functional.layer_norm(x, (8,)), "aten.native_layer_norm_backward.default"),
    ):
        model = Net(body)
        graph = capture(model, batch())
        assert op in kinds(graph)
        compare(graph, model, batch())


def test_causal_attention_stays_causal_without_a_mask() -> None:
    model, sample = tiny("llama")
    found = [op for op in capture(model, sample).operations if op.op == "hocket.attention.default"]
    assert len(found) == 2
    assert all(op.args[3] is None and op.args[4] is True for op in found)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4, 8)
    y[:, 2:6] = x[:, :4] * 2
    y[1].add_(1.0)
    y.t()[3].mul_(x[0, 0])
    left, right = y[:, :4], y[:, 4:]
    left += right
    return y.relu_().clone().masked_fill_(x > 1, 0.5)


def split_written(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = torch.sigmoid(x).clone()
        left, _, right = scale.split([3, 2, 3], 1)
        left.add_(right)
        scale.unsqueeze(0).transpose(1, 2)[0, 6].zero_()
    return x * scale * left.sum()


def stepped(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.5
    y[:, ::2] = x[:, 1::2]
    return y


BODIES = {
    "in place": in_place,
    "split written": split_written,
    "stepped write": stepped,
    "stack and unbind": lambda x: torch.stack(x.unbind(1)[::2], 1) * torch.stack(tuple(x[:, :4].unbind(0))),
    "select and index": lambda x: x.select(1, 3) * x[[3, 1, 0, 2], 2] + x[..., -1],
    "pad": lambda x: nn.functional.pad(x, (1, -2, 2, 0), value=0.25),
    "variance": lambda x: x.var(1) * x.std(0).sum() + torch.var_mean(x, dim=0, correction=0)[0].sum(),
    "mean": lambda x: x.mean() * x.mean(0) + x.mean(-1, keepdim=True),
    "constant": lambda x: x * torch.tensor([1.0, -2.0, 3.0, 0.5, 0.0, 7.0, 8.0, 9.0]),
    "batch norm": lambda x: nn.functional.batch_norm(x, None, None, training=True) * x,
    "repeat": lambda x: x.repeat(2, 1, 3) * torch.arange(24) ** 0.5,
    "reductions": lambda x: x.amax(1) + x.amin(1) + x.max() - x.min() + x.max(1).values + x.sum(dtype=torch.float64),
    "cumulate and sort": lambda x: x.cumsum(-1) * x.sort(-1).values + x.topk(3, -1).values.sum(),
    "bilinear": lambda x: torch.einsum("bi,bj->bij", x, x).logsumexp(-1),
    "autocast": lambda x: autocast_body(x),
    "no gradient inside": lambda x: x * no_gradient(x),
    "branch on a constant": lambda x: x * 2 if bool((torch.arange(4) < 4).all()) else x * 3,
    "attention with dropout off": lambda x: nn.functional.scaled_dot_product_attention(
        x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), x.view(1, 2, 4, 4)
    ),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.tanh() * y.exp(), x, use_reentrant=False),
}  # fmt: skip


def autocast_body(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


@torch.no_grad()
def no_gradient(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid().matmul(x.t()).sum(1, keepdim=True)


@pytest.mark.parametrize("case", list(BODIES))
def test_body_equals_eager(case: str) -> None:
    torch.manual_seed(5)
    model = Net(BODIES[case])
    graph = capture(model, batch())
    verify_graph(graph)
    compare(graph, model, batch(), tolerance=2e-2 if case == "autocast" else 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_with_ignored_labels_and_weights(reduction: str, weighted: bool) -> None:
    torch.manual_seed(3)
    weight = torch.rand(8) if weighted else None
    labels = torch.tensor([3, -100, 7, 0])

    def body(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, labels, weight, reduction=reduction) * 3

    model = Net(body)
    compare(capture(model, batch()), model, batch())


def test_cross_entropy_over_images() -> None:
    torch.manual_seed(3)
    labels = torch.randint(4, (2, 3, 5))
    labels[0, 1] = -100

    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.conv(x), labels)

    model = Segment()
    compare(capture(model, batch(2, 3, 3, 5)), model, batch(2, 3, 3, 5))


def test_batch_norm_updates_its_buffers() -> None:
    torch.manual_seed(3)
    model = Net(nn.Sequential(nn.BatchNorm1d(8), nn.Tanh()))
    graph = capture(model, batch())
    updated = {next(i.paths[0] for i in graph.inputs if i.name == name) for name, _ in graph.updates}
    assert updated == {"body.0.running_mean", "body.0.running_var", "body.0.num_batches_tracked"}
    compare(graph, model, batch())


def test_batch_norm_in_evaluation() -> None:
    torch.manual_seed(3)
    model = Net(nn.BatchNorm1d(8))
    model(*batch())
    model.zero_grad()
    model.eval()
    graph = capture(model, batch())
    assert graph.updates == ()
    compare(graph, model, batch())


def test_dropout_is_one_random_operation_with_its_mask() -> None:
    for body in (
        nn.Dropout(0.4),
        nn.Dropout(0.4, inplace=True),
        lambda x: nn.functional.scaled_dot_product_attention(
            *[x.view(1, 2, 4, 4)] * 3, dropout_p=0.4, is_causal=True
        ),
    ):
        graph = capture(Net(body), batch())
        drops = [op for op in graph.operations if op.op == "aten.native_dropout.default"]
        assert len(drops) == 1
        assert drops[0].args[1:] == (0.4, True)
        assert any(drops[0].outputs[1] in op.inputs for op in graph.operations[graph.forward :])
    model = Net(lambda x: nn.functional.dropout(x, 0.5) + nn.functional.dropout(x, 0.5))
    assert kinds(capture(model, batch())).count("aten.native_dropout.default") == 2


def test_attention_with_dropout_is_attention() -> None:
    torch.manual_seed(2)
    q = torch.randn(1, 2, 4, 4)
    model = Net(
        lambda x: nn.functional.scaled_dot_product_attention(
            x.view(1, 2, 4, 4), q, q, dropout_p=1e-9, is_causal=True
        )
    )
    graph = capture(model, batch())
    expected = Net(lambda x: nn.functional.scaled_dot_product_attention(x.view(1, 2, 4, 4), q, q, is_causal=True))
    expected.load_state_dict(model.state_dict())
    compare(graph, expected, batch())


def test_bfloat16_model() -> None:
    torch.manual_seed(3)
    model = Net(nn.functional.gelu).to(torch.bfloat16)
    sample = (batch()[0].bfloat16(),)
    graph = capture(model, sample)
    assert all(graph.types[i.name].dtype == "bfloat16" for i in graph.parameters)
    assert all(graph.types[v].dtype == "bfloat16" for _, v in graph.gradients)
    compare(graph, model, sample, tolerance=5e-2)


def test_loss_function_and_frozen_or_unused_parameters() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.frozen, self.unused = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x))

    torch.manual_seed(3)
    model = Two()
    graph = capture(model, list(batch()), loss=lambda out: out.exp().mean())
    trainable = {i.paths[0] for i in graph.parameters if i.trainable}
    assert trainable == {"used.weight", "used.bias", "unused.weight", "unused.bias"}
    assert {name for name, _ in graph.gradients} == {"p_used_weight", "p_used_bias"}
    compare(graph, model, batch(), loss=lambda out: out.exp().mean())


def test_common_subexpressions_are_merged_but_not_across_passes() -> None:
    graph = capture(Net(lambda x: x.exp() * x.exp() + x.exp()), batch())
    assert kinds(graph).count("aten.exp.default") == 1


@pytest.mark.parametrize("parts", [[2, 6], [3, 3, 2], [1, 2, 2, 3]])
def test_gradients_of_slices_are_joined_without_sums(parts: list[int]) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        ends = [sum(parts[:i]) for i in range(len(parts) + 1)]
        blocks = [x[:, a:b] * (a + 1.5) for a, b in itertools.pairwise(ends)]
        return torch.cat(blocks[::-1], 1).sinh()

    torch.manual_seed(3)
    model = Net(body)
    graph = capture(model, batch())
    assert "aten.add.Tensor" not in kinds(graph)[graph.forward :]
    compare(graph, model, batch())


def test_gradients_of_overlapping_slices_are_summed() -> None:
    torch.manual_seed(3)
    model = Net(lambda x: x[:, :5] * x[:, 3:])
    graph = capture(model, batch())
    assert "aten.add.Tensor" in kinds(graph)[graph.forward :]
    compare(graph, model, batch())


def test_update_may_be_a_batch_tensor() -> None:
    class Remember(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)
            self.register_buffer("last", torch.zeros(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x)
            return self.linear(x).sum()

    model = Remember()
    graph = capture(model, batch())
    verify_graph(graph)
    results = interpret(graph, inputs_of(graph, model, batch()))
    assert torch.equal(results[dict(graph.updates)["b_last"]], batch()[0])


def written_then_read(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4, 8)
    y[:2] = x[2:]
    return x if y[0, 0].mul(2).item() > 0 else -x


def checkpointed_dropout(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(lambda y: nn.functional.dropout(y.tanh(), 0.5), x, use_reentrant=False)


REFUSED = {
    "item of a written constant": (lambda: (Net(written_then_read), batch()), "values of tensors", "Net"),
    "random backward": (lambda: (Net(checkpointed_dropout), batch()), "must not draw random", None),
    "item": (lambda: (Net(lambda x: x if x.sum().item() > 0 else -x), batch()), "values of tensors", "Net"),
    "if": (lambda: (Net(lambda x: x if x.sum() > 0 else -x), batch()), "values of tensors", "Net"),
    "nonzero": (lambda: (Net(lambda x: x[x > 0]), batch()), "values of tensors", "Net"),
    "frozen": (lambda: (Net(torch.tanh).requires_grad_(False), batch()), "trainable parameter", "Net"),
    "detached": (lambda: (Net(lambda x: x.detach()), batch()), "depend on a trainable", "loss"),
    "device": (lambda: (Net(torch.tanh), (batch()[0].to("meta"),)), "on the model's device", "sample[0]"),
    "number": (lambda: (Net(torch.tanh), (3,)), "must be a tensor", "sample[0]"),
    "no batch": (lambda: (Net(torch.tanh), batch()[0]), "batch of tensors", "sample"),
    "matrix loss": (lambda: (nn.Linear(6, 2), batch()), "one floating-point number", "loss"),
    "shape": (lambda: (Net(torch.tanh), batch(4, 5)), "sample like this", "module linear"),
    "big constant": (
        lambda: (Net(lambda x: x.sum() * BIG.sum()), batch()), "outside parameters and buffers", None,
    ),
}  # fmt: skip
BIG = torch.ones(1 << 17)


@pytest.mark.parametrize("case", list(REFUSED))
def test_refused_with_culprit_and_repair(case: str) -> None:
    make, rule, culprit = REFUSED[case]
    model, sample = make()
    with pytest.raises(CaptureError, match=rule) as caught:
        capture(model, sample)
    assert culprit is None or caught.value.culprit == culprit
    assert caught.value.repair


def test_model_fingerprint_sees_shapes_and_ties_not_values() -> None:
    torch.manual_seed(1)
    first, second = Net(None), Net(None)
    assert model_fingerprint(first) == model_fingerprint(second) == model_fingerprint(first.to("meta"))
    assert model_fingerprint(Net(None, 9)) != model_fingerprint(second)
    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    loose = model_fingerprint(tied)
    tied[1].weight = tied[0].weight
    assert model_fingerprint(tied) != loose
