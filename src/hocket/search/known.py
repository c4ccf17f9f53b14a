"""Layouts that people pick by hand, said as wishes that the search then completes.

`tp=2,dp=2,zero=3` means a mesh (dp, tp); batch dims split over dp; matrices of every block split over tp as
Megatron does (Shoeybi et al. 2019, section 3: first by columns, then by rows); parameters kept whole over dp
(zero 0), sharded but kept gathered through the step (zero 1 and 2), or gathered twice (zero 3; Rajbhandari et
al. 2020, section 5). What they leave open is filled in at least cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from hocket.errors import PlanError

KEYS = ("dp", "tp", "zero", "sp")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Degrees picked by hand: data parallel, tensor parallel, ZeRO stage, sequence parallel between blocks."""

    dp: int = 1
    tp: int = 1
    zero: int = 0
    sp: bool = False

    def __str__(self) -> str:
        parts = [f"dp={self.dp}", f"tp={self.tp}"]
        return ",".join([*parts, f"zero={self.zero}"] + (["sp=1"] if self.sp else []))

    @staticmethod
    def parse(text: str, devices: int) -> Recipe:
        """Read `tp=2,dp=2,zero=3`; a missing dp takes the devices that are left. Raises PlanError."""
        values: dict[str, int] = {}
        for item in text.split(","):
            key, equals, number = item.strip().partition("=")
            if key not in KEYS or not equals or not number.isdigit():
                raise PlanError(f"recipe {text!r}", f"is key=number with keys {', '.join(KEYS)}", item)
            values[key] = int(number)
        tp = values.get("tp", 1)
        dp = values.get("dp", devices // tp if tp and devices % tp == 0 else 0)
        if tp < 1 or dp < 1 or dp * tp != devices or values.get("zero", 0) > 3:
            raise PlanError(
                f"recipe {text!r}",
                f"multiplies to the cluster's {devices} devices, with zero from 0 to 3",
                f"dp={dp} times tp={tp}, zero={values.get('zero', 0)}",
                "give degrees that fit",
            )
        return Recipe(dp, tp, values.get("zero", 0), bool(values.get("sp", 0)))
