"""What a rule says about one operation: its factors, its whole dims, its linear operands."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.sharding.layout import Split


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop dimension of an operation, and where its tensors carry it.

    `inputs[i]` is the split that operand i takes when the factor is split (None: the operand does not carry
    the factor), `outputs[j]` likewise; an output that does not carry it becomes a partial sum. A split into
    n even parts needs `size` to be divisible by n. `recipe` names the special local code that the split
    needs (see recipes), empty when the operation itself on local shards is right. `scaled` says that some
    dim that carries the factor is longer than `size` (a view that joins dims): an index of the factor is then
    a run of several indices there, and a cut into segments doesn't carry over as it is.
    """

    name: str
    size: int
    inputs: tuple[Split | None, ...]
    outputs: tuple[Split | None, ...]
    recipe: str = ""
    scaled: bool = False

    @property
    def sums(self) -> bool:
        """Whether splitting this factor leaves a partial sum in some output."""
        return any(split is None for split in self.outputs)


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of one operation. Operands are the entries of `Operation.inputs`, in that order.

    Dims that no factor mentions stay whole. `additive` operands are added to the result (a bias): when a
    summed factor that they do not carry is split, they must be partial sums themselves. Each group in
    `linear` is a set of operands in which the operation is jointly linear while all others are replicated:
    if the whole group is partial, so is every output. `known` is false for an operation without a rule.
    """

    factors: tuple[Factor, ...]
    additive: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    known: bool = True


UNKNOWN = Rule((), known=False)
