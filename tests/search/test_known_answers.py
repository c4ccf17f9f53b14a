"""Where numbers favour them, the layouts that people know come out by themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn
from worlds import cluster_of, experts, perceptron, tall, words

from hocket import api
from hocket.capture import capture
from hocket.capture.models import load_model
from hocket.cluster.types import Cluster
from hocket.plan.types import Plan
from hocket.program.types import Collective, Program
from hocket.sharding.layout import Split


@dataclass(frozen=True)
class Answer:
    """A plan, rank 0's program, and what both say."""

    plan: Plan
    program: Program

    @property
    def collectives(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for call in self.program.instructions:
            if isinstance(call, Collective):
                found[call.kind] += call.bytes
        return found

    def stored(self, path: str) -> str:
        entry = next(i for i in self.plan.graph.inputs if any(p.endswith(path) for p in i.paths))
        return str(self.plan.stage.stored[entry.name])

    def dims(self, path: str) -> set[int]:
        """The dims of a parameter that its stored layout splits."""
        entry = next(i for i in self.plan.graph.inputs if any(p.endswith(path) for p in i.paths))
        return {p.dim for p in self.plan.stage.stored[entry.name].placements if isinstance(p, Split)}

    def products(self) -> list[tuple[str, str]]:
        """Module and strategy of every matrix product."""
        pairs = zip(self.plan.graph.operations, self.plan.stage.strategies, strict=True)
        return [(op.module, text) for op, text in pairs if op.kind in ("mm", "addmm", "bmm")]


def solved(model: nn.Module, sample: Any, cluster: Cluster, **options: Any) -> Answer:
    plan = api.plan(capture(model, sample), cluster, **options)
    assert plan.lower_bound <= plan.seconds
    return Answer(plan, api.programs(plan, [0])[0])


def test_data_parallel() -> None:
    answer = solved(*perceptron(64, 128, 2**16), cluster_of(4, latency=20e-6), axes=1, gap=1e-4)
    products = answer.products()
    assert [set(text.split()) for _, text in products] == [{"i"}, {"i"}, {"k"}, {"i"}, {"k"}]
    # Reducing a gradient and gathering its parameter again costs as much as reducing it everywhere: either will
    # do. Nothing but parameters, their gradients and the loss is communicated.
    weights = 2 * 64 * 128 * 4
    assert set(answer.collectives) <= {"all_reduce", "reduce_scatter", "all_gather"}
    assert answer.collectives["all_reduce"] + answer.collectives["reduce_scatter"] == weights + 4
    assert answer.collectives["all_gather"] == answer.collectives["reduce_scatter"]


def test_sharded_parameters_where_memory_is_short() -> None:
    model, sample = perceptron(1024, 4096, 2**13, layers=4)
    free = solved(model, sample, cluster_of(4), axes=1)
    tight = solved(model, sample, cluster_of(4, memory=f"{free.plan.memory.total - 300 * 10**6}B"), axes=1)
    weights = [f"{n}.{k}.weight" for n in range(4) for k in (0, 2)]
    assert not any(free.dims(w) for w in weights)
    assert all(tight.dims(w) for w in weights)
    assert all(set(text.split()) == {"i"} for _, text in tight.products()[:8])
    whole = sum(tight.plan.graph.types[i.name].bytes for i in tight.plan.graph.parameters)
    assert tight.collectives["all_gather"] >= 0.99 * whole
    assert tight.collectives["reduce_scatter"] >= 0.99 * whole
    assert tight.collectives["all_reduce"] < 1000
    assert tight.plan.memory.parameters < free.plan.memory.parameters
    assert tight.plan.seconds > free.plan.seconds


def test_tensor_parallel_with_the_residual_split_on_the_sequence() -> None:
    rows, width = 512, 8192
    sizes = {"n_embd": width, "heads": 64, "vocab": 512}
    model, sample = load_model("hf:gpt2", layers=1, sequence=rows, dtype="bfloat16", **sizes)
    machine = {"name": "m", "device": "A100-80GB", "count": 4}
    cluster = Cluster.from_dict({"format": "hocket-cluster/1", "machines": [machine]})
    answer = solved(model, sample, cluster, axes=1)
    found = dict(reversed([(m.rpartition(".h.0.")[2], t) for m, t in answer.products()]))
    assert found["attn.c_attn"].startswith("j:")  # each rank has heads of its own
    assert found["mlp.c_fc"] == "j"
    assert found["attn.c_proj"] == found["mlp.c_proj"] == "k"
    # GPT-2's weights are [in, out]
    assert answer.dims("attn.c_attn.weight") == answer.dims("mlp.c_fc.weight") == {1}
    assert answer.dims("attn.c_proj.weight") == answer.dims("mlp.c_proj.weight") == {0}
    assert str(answer.plan.stage.kept["add_1"]) == "S(1)"  # [batch, sequence, width]
    residual = rows * width * 2
    between = Counter(
        c.kind
        for c in answer.program.instructions[: answer.program.forward]
        if isinstance(c, Collective) and c.blocking and c.bytes == residual
    )
    assert between["reduce_scatter"] == 2
    assert between["all_gather"] >= 1
    assert answer.collectives["all_reduce"] < residual / 8


def test_expert_parallel() -> None:
    answer = solved(*experts(4, 512, 512, 4096, 4, 128), cluster_of(4), axes=1)
    assert answer.stored("up") == answer.stored("down") == "S(0)"
    heavy = [
        text
        for op, text in zip(answer.plan.graph.operations, answer.plan.stage.strategies, strict=True)
        if op.kind == "bmm" and 4096 in answer.plan.graph.types[op.outputs[0]].shape
    ]
    assert heavy
    assert set(heavy) == {"b"}
    assert answer.collectives["all_to_all"] > 0
    # tokens travel, experts do not
    experts_bytes = answer.plan.graph.types["p_up"].bytes
    assert answer.collectives["all_gather"] + answer.collectives["all_reduce"] < experts_bytes / 4


def test_split_vocabulary() -> None:
    vocabulary, width, rows = 2**17, 1024, 512
    answer = solved(*words(vocabulary, width, rows), cluster_of(4))
    assert answer.dims("embed.weight") == {0}
    kinds: dict[str, set[str]] = {}
    pairs = zip(answer.plan.graph.operations, answer.plan.stage.strategies, strict=True)
    for operation, text in pairs:
        kinds.setdefault(operation.kind, set()).update(text.split())
    # v is the vocabulary where indices select from it; d1 that of a row of logits
    assert kinds["embedding"] == kinds["embedding_dense_backward"] == {"v"}
    assert kinds["gather"] == kinds["scatter"] == {"v"}
    assert kinds["_log_softmax"] == kinds["_log_softmax_backward_data"] == {"d1"}
    local = answer.program.types["embedding_dense_backward"].shape
    assert local == (vocabulary // 4, width)
    assert max(c.bytes for c in answer.program.instructions if isinstance(c, Collective)) <= rows * width * 4 * 4


def test_sufficient_factors_where_the_batch_is_small() -> None:
    """HAP, section 2.5.2: gather both operands of a weight's gradient instead of reducing it; not for a large batch."""
    slow, pins = cluster_of(4, link="1GB/s"), ["head.weight=replicate", "mesh=4"]

    def gradient(answer: Answer) -> str:
        value = dict(answer.plan.graph.gradients)["p_head_weight"]
        makers = answer.plan.graph.producers()
        while answer.plan.graph.operations[makers[value]].kind in ("permute", "view"):
            value = answer.plan.graph.operations[makers[value]].inputs[0]
        return answer.plan.stage.strategies[makers[value]]

    weight = 512 * 8192 * 4
    few = solved(*tall(8, 4096, 512, 2048, 8192), slow, pins=pins)
    assert gradient(few) == "R"
    assert few.products()[0][1] != "R"  # the work on every sample is divided
    assert not any(c.bytes >= weight for c in few.program.instructions if isinstance(c, Collective))
    many = solved(*tall(2**16, 16, 512, 2048, 8192), slow, pins=pins)
    assert gradient(many) == "k"
    assert few.plan.seconds < many.plan.seconds


def test_only_as_many_blocks_run_again_as_memory_asks_for() -> None:
    model, sample = load_model("hf:gpt2", layers=8, batch=32, sequence=256, n_embd=256, heads=4, vocab=512)
    graph = capture(model, sample)
    free = api.plan(graph, cluster_of(2), axes=1)

    def within(share: float) -> Plan:
        return api.plan(graph, cluster_of(2, memory=f"{int(share * free.memory.total)}B"), axes=1)

    half, most, every = (within(share) for share in (0.75, 0.5, 0.3))
    assert [len(p.recompute) for p in (free, half, most, every)] == [0, 4, 6, 8]
    assert free.seconds < half.seconds < most.seconds < every.seconds
    assert half.memory.total > most.memory.total > every.memory.total
    assert half.lower_bound <= half.seconds
