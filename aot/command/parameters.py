"""Option types (architectures, filters, sizes, ages), exit statuses and defaults shared by commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from aot.targets import TARGETS, Target, parse_arch
from aot_runtime.contract.gpu_names import GPU_NAMES
from aot_runtime.formats import UNITS

if TYPE_CHECKING:
    from aot.shards import Shard

EXIT_FAILED, EXIT_USAGE = 1, 2
TIMEOUT_S: float = 600
"""Default time limit of one variant, and of each file that is run."""
NATIVE = "native"
"""Name for the architectures of this machine's GPUs."""

_SIZES = {"": 1, "B": 1, **UNITS, "TiB": 1 << 40}
_DAYS = {"h": 1 / 24, "d": 1, "w": 7}


class ManifestPath(click.Path):
    """A manifest, by its path, or by the name of a shipped one, which shells complete."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from aot.manifest.shipped import shipped_manifests

        found = [CompletionItem(name) for name in shipped_manifests() if name.startswith(incomplete)]
        return [*found, *super().shell_complete(ctx, param, incomplete)]


class Archs(click.ParamType):
    """Targets, in a list with commas."""

    name = "arch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Target, ...]:
        if isinstance(value, tuple):
            return value
        try:
            names = [name.strip() for name in str(value).split(",")]
            found = (native_targets() if name == NATIVE else (parse_arch(name),) for name in names)
            return tuple(dict.fromkeys(target for targets in found for target in targets))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        names = [*(target.arch for target in TARGETS), NATIVE, *(GPU_NAMES if last else ())]
        return [CompletionItem(f"{done}{comma}{name}") for name in names if name.startswith(last.lower())]


class OneArch(click.ParamType):
    """A target."""

    name = "arch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, Target):
            return value
        try:
            return parse_arch(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [*(target.arch for target in TARGETS), *(GPU_NAMES if incomplete else ())]
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


def native_targets() -> tuple[Target, ...]:
    """Return the architectures of this machine's GPUs. Raises ValueError if code cannot be built for any."""
    from aot_runtime.device.registry import list_gpus
    from aot_runtime.errors import DeviceError

    try:
        return tuple(Target(arch) for arch in dict.fromkeys(device.arch for device in list_gpus()))
    except DeviceError as error:
        raise ValueError(f"'{NATIVE}' means the GPUs of this machine, but {error}") from None


def filters_of(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Parse the texts of `--filter`."""
    from aot.plan.filters import parse_filters

    try:
        return parse_filters(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--filter") from None


class Size(click.ParamType):
    """A number of bytes: `500MiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]iB|B|)", str(value).strip())
        if not found:
            self.fail(f"'{value}' is not a size; write 2GiB, 500MiB or a number of bytes", param, ctx)
        return int(float(found[1]) * _SIZES[found[2]])


class Age(click.ParamType):
    """A time span in days: `30d`, `2w`, `12h`."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *([hdw])", str(value).strip())
        if not found:
            self.fail(f"'{value}' is not an age; write 30d, 2w or 12h", param, ctx)
        return float(found[1]) * _DAYS[found[2]]


class ShardNumber(click.ParamType):
    """A part of a build's jobs: `3/16`."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        from aot.shards import Shard

        if isinstance(value, Shard):
            return value
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(value))
        if not found:
            self.fail(f"'{value}' is not a shard; write NUMBER/COUNT, such as 3/16", param, ctx)
        try:
            return Shard(int(found[1]), int(found[2]))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SchedulerAddress(click.ParamType):
    """The address of a cluster's scheduler: `tcp://HOST:PORT`."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"(tcp|tls)://[^\s/:]+:\d+|(tcp|tls)://\[[0-9a-fA-F:]+\]:\d+", str(value)):
            self.fail(f"'{value}' is not an address; write tcp://HOST:PORT or tls://HOST:PORT", param, ctx)
        return str(value)
