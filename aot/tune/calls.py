"""The calls that candidates are compared on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from aot.manifest.calls import CallEntry, CallEntrySpec, CallsFile, CallsSpec
from aot.manifest.spaces import Space
from aot.manifest.yamlfile import Key, YamlFile

from .candidates import SCALAR, Group

_COMMAND = CallsFile(YamlFile("the command line", {}, {}, ""), CallsSpec(calls=[]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TunedCall(CallEntry):
    """A call described by an entry of a calls file or of a space, or by the command line.

    Attributes:
        call: the description.
        path: its place in the file.
        group: the group that it is for, by name; None: any that serves it.
        content: content of tensors, as for `aotbundle profile --content`.
    """

    call: CallEntrySpec
    path: tuple[Key, ...]
    group: str | None = None
    content: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> CallEntrySpec:
        return self.call

    def locate(self, *path: Key) -> str:
        return "the command line" if self.file is _COMMAND else self.file.file.locate((*self.path, *path))

    def may_call(self, bundle: str) -> bool:
        return True

    def with_candidate(self, number: int, num_cus: int | None, num_xcds: int | None) -> TunedCall:
        """The same call with a candidate, on a device."""
        device = {"num_cus": self.call.num_cus or num_cus, "num_xcds": self.call.num_xcds or num_xcds}
        spec = self.call.model_copy(update={"scalars": {**self.call.scalars, SCALAR: number}, **device})
        return replace(self, call=spec)

    @property
    def text(self) -> str:
        """The call in words, which identify it."""
        held = [f"{name}:={text}" for name, text in self.content.items()]
        return " ".join([*_words(self.call), *held]) or "the op's only call"


def _words(call: CallEntrySpec) -> Iterator[str]:
    for name, shape in call.shapes.items():
        yield f"{name}={'x'.join(map(str, shape))}"
    yield from (f"{name}={value}" for group in (call.dims, call.dtypes) for name, value in group.items())
    yield from (f"{name}={json.dumps(value).strip(chr(34))}" for name, value in call.scalars.items())
    yield from (f"+{name}" for name in call.given)
    yield from (f"{name}@{'x'.join(map(str, strides))}" for name, strides in call.strides.items())
    yield from (f"{name}.{dim}" for name, dim in call.innermost.items())
    yield from (f"{name}!" for name in call.unaligned)


def calls_of_space(space: Space, groups: tuple[Group, ...], op: str, arch: str) -> tuple[TunedCall, ...]:
    """The calls of a space, on which its groups are compared."""
    file = CallsFile(space.file, CallsSpec(calls=[]))
    return tuple(
        TunedCall(
            file, 0, call.model_copy(update={"op": op}), (*group.path, "calls", i), group.name,
            {name: str(value) for name, value in call.content.items()},
        )
        for group in groups
        for i, call in enumerate(group.spec.calls)
        if arch in (call.arch or [arch])
    )  # fmt: skip


def calls_of_file(file: CallsFile, op: str, arch: str) -> tuple[TunedCall, ...]:
    """The calls of an op in a calls file, of any bundle."""
    return tuple(
        TunedCall(file, i, call, ("calls", i))
        for i, call in enumerate(file.spec.calls)
        if call.op == op and arch in (call.arch or [arch])
    )


def call_of_command(call: CallEntrySpec, content: Mapping[str, str]) -> TunedCall:
    """A call that the command line describes."""
    return TunedCall(_COMMAND, 0, call, (), None, content)
