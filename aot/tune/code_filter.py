"""Leave out candidates by their code: registers, spills, LDS and the space's requirements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from aot.compile.jobs import CompiledKernel
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle
from aot.workers.batch import Outcome
from aot.write.bundle_writer import make_index
from aot_bundle.requirements import Code, parse_requirements, unmet_requirements
from aot_runtime.contract.records import Index, Variant
from aot_runtime.errors import BundleError, DeviceError, ExpressionError

from .candidates import Group
from .trials import PlannedTuning, Trial


def without_failures(planned: PlannedTuning, outcome: Outcome) -> tuple[PlannedBundle, dict[int, str]]:
    """Return the bundle of what compiled, and why each other candidate did not. Raises `ManifestError` if one of the
    op's own configs did not compile."""
    dropped: dict[int, str] = {}
    for trial in planned.trials:
        failure = next((outcome.failures[key] for key in trial.keys if key in outcome.failures), None)
        if failure is not None:
            reason = failure.reason.strip().splitlines()[-1]
            if trial.number == 0:
                raise ManifestError([f"op '{planned.op.name}': its own config does not compile: {failure.reason}"])
            dropped[trial.number] = f"does not compile: {reason}"
    kept = tuple(variant for variant in planned.bundle.variants if variant.key not in outcome.failures)
    return replace(planned.bundle, variants=kept), dropped


def pruned(planned: PlannedTuning, bundle: PlannedBundle, kernels: Mapping[str, CompiledKernel]) -> dict[int, str]:
    """Return candidate → why its code is not worth timing: it does not fit a compute unit, spills more than the config
    that it is to replace, or does not meet the group's requirements. Raises `ManifestError` for a requirement that
    cannot be evaluated."""
    index, files = make_index(bundle, kernels, ())
    code = Code(index, lambda key: files[index.blobs[key].file])
    dropped: dict[int, str] = {}
    variants = {item.key: variant for item, variant in zip(bundle.variants, index.variants, strict=True)}
    most = _default_spills(planned.trials, variants)
    for trial in planned.trials:
        found = [variants[key] for key in trial.keys if key in variants]
        if trial.number and len(found) == len(trial.keys) and (reason := _misfit(found, most[trial.call])):
            dropped.setdefault(trial.number, reason)
    for group in planned.groups:
        dropped |= _unmet(planned, group, index, code, dropped.keys())
    return dropped


def _default_spills(trials: Iterable[Trial], variants: Mapping[str, Variant]) -> dict[int, int]:
    return {
        trial.call: sum(map(_spills, (variants[key] for key in trial.keys))) for trial in trials if not trial.number
    }


def _spills(variant: Variant) -> int:
    return (variant.resources.vgpr_spills or 0) + (variant.resources.sgpr_spills or 0)


def _misfit(variants: Iterable[Variant], most_spills: int) -> str:
    spills = 0
    for variant in variants:
        if not variant.resources.waves_per_simd:
            return f"does not fit a compute unit: {variant.resources.occupancy_limit}"
        spills += _spills(variant)
    return "spills more than the current config" if spills > most_spills else ""


def _unmet(planned: PlannedTuning, group: Group, index: Index, code: Code, without: Iterable[int]) -> dict[int, str]:
    if not group.spec.require:
        return {}
    op, left = planned.op, set(without)
    numbers = {candidate.name: candidate.number for candidate in group.candidates}
    configs = [config.name for config in op.launches[group.launch].configs]
    mine = tuple(
        variant for variant in index.variants
        if variant.launch == group.launch and numbers.get(configs[variant.config], 0) not in {0, *left}
    )  # fmt: skip
    try:
        requirements = parse_requirements(map(str, group.spec.require), index.ops)
        unmet = unmet_requirements(msgspec.structs.replace(index, variants=mine), requirements, code)
        return {numbers[configs[item.variant.config]]: f"does not meet {item.requirement}" for item in unmet}
    except (ExpressionError, BundleError, DeviceError) as error:
        raise ManifestError([f"group '{group.name}': require: {error}"]) from None


def reasons_text(group: Group, dropped: Mapping[int, str]) -> str:
    """Explain why a group has fewer candidates than its space: each reason with its count."""
    counts = Counter({f"does not meet {text}": count for text, count in group.left_out.items()})
    counts.update(dropped[candidate.number] for candidate in group.candidates if candidate.number in dropped)
    return "; ".join(f"{count} {reason}" for reason, count in counts.most_common())
