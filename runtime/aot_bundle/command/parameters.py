"""Types of arguments and options shared by commands, and the status line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from aot_bundle.terminal import Console
from aot_runtime.errors import AotError

if TYPE_CHECKING:
    from aot_runtime.trust.policy import TrustPolicy

PATHS = click.Path(path_type=Path)
trust_option = click.option(
    "--trust", type=PATHS, help="The trust policy file for signatures. [default: AOTBUNDLE_TRUST]"
)


class BundlePath(click.Path):
    """A bundle's path, or the name of an installed one. Names are kept as they are if the device decides."""

    def __init__(self, by_device: bool = False):
        super().__init__(path_type=Path)
        self._by_device = by_device

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Resolve a name to a path. Raises `BadParameter` if several bundles match and the device does not decide."""
        from aot_runtime.installed import installed_bundles
        from aot_runtime.selection import is_name

        if self._by_device and is_name(value):
            return value
        found = installed_bundles(value) if is_name(value) else []
        if not found:
            return super().convert(value, param, ctx)
        if len({item.path for item in found}) > 1:
            which = ", ".join(f"{item.path} ({item.arch})" for item in found)
            self.fail(f"'{value}' is installed several times; pass the path of one: {which}", param, ctx)
        return Path(found[0].path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names of installed bundles, and files."""
        from aot_runtime.installed import installed_bundles

        names = sorted({item.name for item in installed_bundles()})
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*found, *super().shell_complete(ctx, param, incomplete)]


BUNDLE = BundlePath()


class OpName(click.ParamType):
    """An op of the command's bundle, with shell completion."""

    name = "op"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names of the bundle's ops; none if the bundle cannot be read."""
        from aot_runtime.bundle.reading import read_index

        with suppress(AotError, TypeError):
            names = [op.name for op in read_index(Path(ctx.params["bundle"])).ops]
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


class DeviceName(click.ParamType):
    """A device's name, with shell completion of drivers."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The drivers whose names begin so."""
        from aot_runtime.device.drivers import DRIVERS

        return [CompletionItem(name) for name in DRIVERS if name.startswith(incomplete)]


DEVICE_OPTION = click.option(
    "--device",
    type=DeviceName(),
    metavar="DEVICE",
    help="hip, hip:1, cuda, emulator, …  [default: the first GPU of the bundle's kind]",
)


class Pair(click.ParamType):
    """A pair `NAME=VALUE` with a converted value."""

    def __init__(self, convert: Callable[[str], Any], form: str):
        self.name, self._convert = form, convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, text = str(value).partition("=")
        try:
            if not name.strip() or not equals:
                raise ValueError
            return name.strip(), self._convert(text.strip())
        except ValueError:
            self.fail(f"'{value}' is not {self.name}", param, ctx)


def policy_of(trust: Path | None) -> TrustPolicy | None:
    """Return the policy of `--trust` or the environment, or None. Raises `TrustError`."""
    from aot_runtime.trust.policy import find_policy
    from aot_runtime.trust.reader import named_policy

    named = named_policy(trust)
    return None if named is None else find_policy(named)


def integers(text: str) -> tuple[int, ...]:
    """Parse integers such as `1,2,3`. Raises ValueError."""
    return tuple(int(part) for part in text.split(",")) if text else ()


def status_line(text: str) -> AbstractContextManager[None]:
    """Show a status in the terminal's last line during a context. Does nothing with -q or without a terminal."""
    ctx = click.get_current_context(silent=True)
    return Console(err=True, quiet=bool(ctx and ctx.obj)).status(text)
