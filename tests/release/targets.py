"""Parts `plan` and `targets`: every manifest planned for every architecture, and a part of each built for the supported
ones.
"""

from __future__ import annotations

from pathlib import Path

from .running import Findings, Result, each
from .setting import WHOLE_ARCH, Setting, say

# Manifest → a `--filter` that leaves a few variants of one small op, whatever the architecture.
SMALL = {
    "manifests/attention.yaml": "op=mla_prefill,T=float16,LATENT=256,HEAD_DIM=64,CAUSAL=true",
    "manifests/attention_mods.yaml": "op=identity_attention,T=float16,HEAD_DIM=64",
    "manifests/attention_quantised.yaml": "op=flash_attention_int8_kv,T=float16,HEAD_DIM=64,BOUND_RIGHT=false",
    "manifests/decode.yaml": "op=append_kv,T=float16,C=float16,HEAD_DIM=64",
    "manifests/first.yaml": "BOUND_RIGHT=true",
    "manifests/gemm.yaml": "op=int8_linear_relu",
    "manifests/llama.yaml": "op=advance",
    "manifests/mixtures.yaml": "op=advance",
    "manifests/memory.yaml": "op=copy",
    "manifests/moe.yaml": "op=moe_route,T=float16",
    "manifests/rows.yaml": "op=silu_mul,T=float16",
    "examples/foreign/flash_attention.yaml": "BLOCK_HEADDIM=64,IS_CAUSAL=false,BIAS_TYPE=none",
    "examples/foreign/fused_moe.yaml": "TOP_K=2,MUL_ROUTED_WEIGHT=true",
    "examples/foreign/gluon_softmax.yaml": "T=float16,BLOCK=256",
    "examples/foreign/manifest.yaml": "op=add,T=float16",
    "examples/foreign/matmul.yaml": "ACTIVATION=none",
    "examples/foreign/scan.yaml": "E=float16",
    "benchmarks/emulated/manifest.yaml": "op=matmul",
}
NVIDIA = ("sm_80", "sm_90")
"""NVIDIA architectures to compile for."""


def plan(setting: Setting) -> Findings:
    """Run `aotbuild --dry-run` on each manifest for each architecture. If all at once fail, each is tried by itself."""
    archs = list(setting.tiers)

    def dry_run(manifest: str) -> list[str]:
        if not _dry_run(setting, manifest, archs).status:
            return []
        results = ((arch, _dry_run(setting, manifest, [arch])) for arch in archs)
        return [f"{manifest} for {arch}: exit status {r.status}\n{r.tail()}" for arch, r in results if r.status]

    findings = Findings(f"{len(setting.manifests)} manifests for {len(archs)} architectures each")
    for manifest, failures in each(dry_run, setting.manifests, setting.jobs):
        say(f"    {manifest}: {f'{len(failures)} FAILED' if failures else 'ok'}")
        findings.failures += failures
    return findings


def _dry_run(setting: Setting, manifest: str, archs: list[str]) -> Result:
    return setting.run("aotbuild", "--dry-run", *(f"--arch={arch}" for arch in archs), manifest)


def targets(setting: Setting) -> Findings:
    """Build a small op of each manifest for the other architectures above experimental, and verify it."""
    archs = [arch for arch in setting.tiers if _is_built(arch, setting.tiers[arch])]
    output = setting.work / "small"
    failures = [f"the table SMALL names {name}, which is not shipped" for name in SMALL.keys() - set(setting.manifests)]
    failures += [f"the table SMALL lacks {name}" for name in setting.manifests if name not in SMALL]
    bundles: list[Path] = []
    for manifest in filter(SMALL.__contains__, setting.manifests):
        folder = output / Path(manifest).with_suffix("").as_posix().replace("/", "-")
        command = ["aotbuild", *(f"--arch={arch}" for arch in archs), "--filter", SMALL[manifest]]
        result = setting.run(*command, "-o", str(folder), "-j", str(setting.jobs), manifest)
        made = sorted(path.parent for path in folder.glob("*/bundle.json"))
        bundles += made
        if result.status or len(made) != len(archs):
            failures.append(f"{manifest}, {SMALL[manifest]}: exit status {result.status}\n{result.tail()}")
        say(f"    {manifest}: {'FAILED' if result.status else result.output.splitlines()[-1]}")
    verified = each(lambda bundle: setting.run("aotbundle", "verify", str(bundle)), bundles, setting.jobs)
    failures += [f"aotbundle verify {bundle.name}\n{result.tail()}" for bundle, result in verified if result.status]
    say(f"    {len(bundles)} bundles verified")
    left_out = [arch for arch, tier in setting.tiers.items() if not _is_done(arch, tier)]
    skipped = [f"compiling for {', '.join(left_out)}"]
    return Findings(f"{len(SMALL)} manifests for {len(archs)} architectures each", failures, skipped)


def _is_built(arch: str, tier: str) -> bool:
    return arch in NVIDIA or (arch.startswith("gfx") and arch != WHOLE_ARCH and tier != "experimental")


def _is_done(arch: str, tier: str) -> bool:
    return arch == WHOLE_ARCH or _is_built(arch, tier)
