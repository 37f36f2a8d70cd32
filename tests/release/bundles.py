"""Parts `build`, `verify` and `selftest`: every shipped manifest whole, for one architecture."""

from __future__ import annotations

from pathlib import Path

from .running import Findings, Result, each
from .setting import WHOLE_ARCH, Setting, say

NO_CASES = "its manifest has no `selftest` cases"


def build(setting: Setting) -> Findings:
    """Build all manifests by one run of `aotbuild`, which keeps all cores busy; if that fails, each by itself."""
    empty = not setting.cache.exists()
    result = _build(setting, *setting.manifests)
    failures = []
    if result.status:
        for manifest in setting.manifests:
            say(f"    {manifest} by itself")
            result = _build(setting, manifest)
            if result.status:
                failures.append(f"{manifest} for {WHOLE_ARCH}: exit status {result.status}\n{result.tail()}")
        if not failures:
            failures.append("aotbuild fails on all manifests at once, though on none by itself")
    count = f"{len(setting.manifests)} manifests for {WHOLE_ARCH}, from {'an empty' if empty else 'a filled'} cache"
    return Findings(count, failures, [] if empty else ["compiling what the cache of --keep holds already"])


def _build(setting: Setting, *manifests: str) -> Result:
    command = ["aotbuild", "--arch", WHOLE_ARCH, "-o", str(setting.dist), "-j", str(setting.jobs), *manifests]
    return setting.run(*command, echo=True)


def verify(setting: Setting) -> Findings:
    """Run `aotbundle verify` on each bundle."""
    return _on_each_bundle(setting, "verify")


def selftest(setting: Setting) -> Findings:
    """Run `aotbundle selftest --device emulator` on each bundle."""
    return _on_each_bundle(setting, "selftest", "--device", "emulator")


def _on_each_bundle(setting: Setting, subcommand: str, *options: str) -> Findings:
    def check(bundle: Path) -> Result:
        return setting.run("aotbundle", subcommand, str(bundle), *options)

    findings = Findings(f"{len(setting.bundles())} bundles")
    for bundle, result in each(check, setting.bundles(), setting.jobs):
        without = result.status and NO_CASES in result.output
        end = "no cases" if without else "FAILED" if result.status else "ok"
        say(f"    {bundle.name}: {end}, {result.seconds:.1f} s")
        if without:
            findings.skipped.append(f"selftest of {bundle.name}: {NO_CASES}")
        elif result.status:
            command = f"aotbundle {subcommand} {bundle.name}"
            findings.failures.append(f"{command}: exit status {result.status}\n{result.tail()}")
    if not setting.bundles():
        findings.failures.append(f"there are no bundles in {setting.dist}; the part `build` makes them")
    return findings
