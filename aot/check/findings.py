"""Findings and reports of a check, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aot_bundle.callspec import CallSpec
from aot_bundle.terminal import text_block
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.records import Op
from aot_runtime.formats import axis_values_text

PACKED, STRIDED = "packed", "strided"
"""The two layouts of a call's tensors in memory."""
ENDLESS = "endless"
"""Kind of the finding that a launch exceeded its time limit."""


@dataclass(frozen=True)
class Finding:
    """A fault that a check found.

    Attributes:
        kind: a kind of strict mode's, or `unwritten`, `outside`, `altered`, `strides`, `order`, `in_place`,
            `reference`, `endless`, `not_finite`, `failed`.
        text: the fault in words, with tensor and index.
        argument: the tensor, if known.
        index: the first element at fault.
        source: `file:line` of the kernel, if known.
        memory: layout of the tensors: packed, strided, or an output in place of an input.
        layouts: dtype, shape and strides of each tensor.
    """

    kind: str
    text: str
    argument: str = ""
    index: tuple[int, ...] | None = None
    source: str = ""
    kernel: str = ""
    memory: str = PACKED
    layouts: str = ""

    @property
    def lines(self) -> list[str]:
        """The finding in lines: the fault, its place in the kernel, and the tensors."""
        place = " ".join(filter(None, [self.source, f"(kernel {self.kernel})" if self.kernel else ""]))
        return [f"{self.kind}: {self.text}", *([f"at {place}"] if place else []), f"{self.memory}: {self.layouts}"]


@dataclass(frozen=True)
class CaseReport:
    """The outcome of one call. `variants`: those that it launched."""

    number: int
    call: str
    variants: tuple[str, ...]
    findings: tuple[Finding, ...]
    seconds: float
    again: str
    """The command that repeats this call."""


@dataclass(frozen=True)
class OpReport:
    """The outcome of an op. `refusal`: why no call of it was made."""

    op: str
    arch: str
    cases: tuple[CaseReport, ...]
    refusal: str = ""

    @property
    def passed(self) -> bool:
        return not self.refusal and not any(case.findings for case in self.cases)

    @property
    def data(self) -> dict[str, Any]:
        """The report for JSON."""
        return asdict(self) | {"passed": self.passed}

    def lines(self, width: int, every: bool) -> list[str]:
        """Return one line, and more for findings. every: include findings that repeat earlier ones."""
        seconds = sum(case.seconds for case in self.cases)
        variants = len({variant for case in self.cases for variant in case.variants})
        figures = f"{_count(len(self.cases), 'call')} of {_count(variants, 'variant')}, {seconds:.1f} s"
        head = f"{'ok' if self.passed else 'FAILED':<8}{self.op:<{width}}  "
        if self.refusal:
            return text_block(f"{head}no call was made: {self.refusal}")
        found = [f"{head}{figures}"]
        told: set[tuple[str, str, str]] = set()
        for case in self.cases:
            new = [item for item in case.findings if every or (item.kind, item.argument, item.source) not in told]
            told |= {(item.kind, item.argument, item.source) for item in new}
            if new:
                found.append(f"  case {case.number}: {case.call}")
                found += [f"    {'  ' * bool(i)}{line}" for item in new for i, line in enumerate(item.lines)]
                found.append(f"    again: {case.again}")
        return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def call_text(op: Op, call: CallSpec, decision: Decision) -> str:
    """Describe a call in words: shapes, scalars, and the optional tensors that it passes."""
    given = [tensor.name for tensor in op.tensors if tensor.optional and tensor.name in decision.layouts]
    shapes = [f"{name}={layout.dtype}{list(layout.shape)}" for name, layout in decision.layouts.items()]
    scalars = [f"{name}={value}" for name, value in call.scalars.items()]
    return ", ".join([*shapes, *scalars]) + (f"; with {', '.join(given)}" if given else "")


def layouts_text(decision: Decision) -> str:
    """Describe the strides and alignment of a call's tensors."""
    return ", ".join(
        f"{name} strides {list(layout.strides)}{'' if layout.aligned else ' unaligned'}"
        for name, layout in decision.layouts.items()
    )


def variants_text(op: Op, decision: Decision) -> tuple[str, ...]:
    """Name the variants that a call launches."""
    found = []
    for launch in decision.launches:
        values = axis_values_text({name: launch.variant.axis_values[name] for name in axis_names(op)}, none="")
        config = op.launches[launch.index].configs[launch.variant.config].name or str(launch.variant.config)
        kernel = op.launches[launch.index].kernel.rpartition(":")[2]
        found.append(f"{kernel}[{values}] {'aligned' if launch.variant.aligned else 'general'}, {config}")
    return tuple(found)
