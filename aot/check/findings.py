"""What a check finds, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aot_bundle.callspec import CallSpec
from aot_bundle.terminal import text_block
from aot_runtime.call.decision import Decision
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.records import Op
from aot_runtime.texts import axis_values_text

PACKED, STRIDED = "packed", "strided"
"""The two ways in which the tensors of a call lie in memory."""
ENDLESS = "endless"
"""Kind of the finding that a launch took longer than it may."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: a kind of strict mode's, or `unwritten`, `outside`, `altered`, `strides`, `order`, `in_place`,
            `reference`, `endless`, `failed`.
        text: in words, tensor and index included.
        argument: the tensor, where it is known. `index`: the first element at fault.
        source: `file:line` of the kernel, where it is known.
        memory: how the tensors lay: packed, strided, or one of them another one itself.
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
        """In lines: where the kernel is at fault, and what is wrong."""
        place = " ".join(filter(None, [self.source, f"(kernel {self.kernel})" if self.kernel else ""]))
        return [f"{self.kind}: {self.text}", *([f"at {place}"] if place else []), f"{self.memory}: {self.layouts}"]


@dataclass(frozen=True)
class CaseReport:
    """What came of one call. `variants`: what it launched."""

    number: int
    call: str
    variants: tuple[str, ...]
    findings: tuple[Finding, ...]
    seconds: float
    again: str
    """The command that makes this call again."""


@dataclass(frozen=True)
class OpReport:
    """What came of an op. `refusal`: why no call of it was made."""

    op: str
    arch: str
    cases: tuple[CaseReport, ...]
    refusal: str = ""

    @property
    def passed(self) -> bool:
        return not self.refusal and not any(case.findings for case in self.cases)

    @property
    def data(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"passed": self.passed}

    def lines(self, width: int, every: bool) -> list[str]:
        """One line, and more where something is wrong. every: also the findings that repeat earlier ones."""
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
    """A call in words: dims, dtype variables, scalars, and the optional tensors that it passes."""
    given = [tensor.name for tensor in op.tensors if tensor.optional and tensor.name in decision.layouts]
    shapes = [f"{name}={layout.dtype}{list(layout.shape)}" for name, layout in decision.layouts.items()]
    scalars = [f"{name}={value}" for name, value in call.scalars.items()]
    return ", ".join([*shapes, *scalars]) + (f"; with {', '.join(given)}" if given else "")


def layouts_text(decision: Decision) -> str:
    """How tensors lie in memory."""
    return ", ".join(
        f"{name} strides {list(layout.strides)}{'' if layout.aligned else ' unaligned'}"
        for name, layout in decision.layouts.items()
    )


def variants_text(op: Op, decision: Decision) -> tuple[str, ...]:
    """The variants that a call launches."""
    found = []
    for launch in decision.launches:
        values = axis_values_text({name: launch.variant.axis_values[name] for name in axis_names(op)}, none="")
        config = op.launches[launch.index].configs[launch.variant.config].name or str(launch.variant.config)
        kernel = op.launches[launch.index].kernel.rpartition(":")[2]
        found.append(f"{kernel}[{values}] {'aligned' if launch.variant.aligned else 'general'}, {config}")
    return tuple(found)
