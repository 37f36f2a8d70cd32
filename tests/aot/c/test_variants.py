"""The C header of a bundle's variants compiles as C and C++, and agrees with the index."""

import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from aot.c.c_names import member_names, struct_name
from aot.c.variants import describe, variants_text
from aot_runtime.contract import records
from aot_runtime.contract.variant_names import variant_names
from tests.support.c_interface.calling import LANGUAGES, WARNINGS
from tests.support.sample_index import sample_index

PREFIX = "sample_gfx942"

# What a launch goes through in hip_runtime_api.h and cuda.h, with a body that prints what it was called with.
FAKE_API = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef int {status};
typedef void *{function};
typedef void *{stream};
enum {{ {success} = 0 }};
#define {macro}_END ((void *)3)
#define {macro}_BUFFER_POINTER ((void *)1)
#define {macro}_BUFFER_SIZE ((void *)2)
static {status} {launch}({function} f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned lds, {stream} s, void **params, void **extra)
{{
    const unsigned char *bytes = (const unsigned char *)extra[1];
    size_t size = *(size_t *)extra[3];
    int keys = extra[0] == {macro}_BUFFER_POINTER && extra[2] == {macro}_BUFFER_SIZE && extra[4] == {macro}_END;
    printf("[[%d,%d],[%u,%u,%u],[%u,%u,%u],%u,%d,%d,\\"", (int)(intptr_t)f, (int)(intptr_t)s, gx, gy, gz, bx, by, bz,
           lds, params == NULL, keys);
    for (size_t i = 0; i < size; i++) printf("%02x", bytes[i]);
    printf("\\"]\\n");
    return 7;
}}
"""
HIP = {
    "status": "hipError_t", "function": "hipFunction_t", "stream": "hipStream_t", "success": "hipSuccess",
    "macro": "HIP_LAUNCH_PARAM", "launch": "hipModuleLaunchKernel",
}  # fmt: skip
CUDA = {
    "status": "CUresult", "function": "CUfunction", "stream": "CUstream", "success": "CUDA_SUCCESS",
    "macro": "CU_LAUNCH_PARAM", "launch": "cuLaunchKernel",
}  # fmt: skip


def compile_source(folder: Path, source: str, language: str, *flags: str) -> Path:
    """Compile and link a program; every warning is an error."""
    (folder / "program.src").write_text(source)
    program = folder / "program"
    command = [*LANGUAGES[language], *WARNINGS, *flags, str(folder / "program.src"), "-o", str(program)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return program


def printed(folder: Path, index: records.Index, language: str, body: str, before: str = "") -> list[object]:
    """Return the lines of JSON that a program prints. It includes the header of an index."""
    (folder / "sample.h").write_text(variants_text(index))
    source = f'{before}\n#include "sample.h"\n#include <stdio.h>\nint main(void)\n{{\n{body}\nreturn 0;\n}}\n'
    output = subprocess.run([compile_source(folder, source, language)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in output.stdout.splitlines()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_sees_every_offset_and_launch_parameter(sample: records.Index, tmp_path: Path, language: str):
    constants = [f"{PREFIX.upper()}_{name}" for name in ("BUNDLE_ID", "ARCH", "WARP_SIZE", "VARIANTS", "CODE_OBJECTS")]
    lines = [f'printf("[\\"%s\\",\\"%s\\",%d,%d,%d]\\n", {", ".join(constants)});']
    expected: list[object] = [[sample.id, "gfx942", 64, len(sample.variants), 2]]
    for name, variant in zip(variant_names(sample), sample.variants, strict=True):
        members = member_names(variant)
        fields = ("block_threads", "lds_bytes", "kernarg_bytes", "global_scratch_bytes", "profile_scratch_bytes")
        numbers = [f"(size_t){name}.{field}" for field in fields] + [f"sizeof({name}_kernargs)"]
        for member in members:
            numbers += [f"offsetof({name}_kernargs, {member})", f"sizeof((({name}_kernargs *)0)->{member})"]
        form = f'[\\"%s\\",\\"%s\\"{",%zu" * len(numbers)}]\\n'
        lines.append(f'printf("{form}", {name}.symbol, {name}.code_object, {", ".join(numbers)});')
        expected.append([
            variant.symbol, sample.blobs[variant.code].file, variant.num_warps * variant.warp_size, variant.lds_bytes,
            variant.kernarg_bytes, variant.global_scratch.bytes, variant.profile_scratch.bytes, variant.kernarg_bytes,
            *(number for arg in variant.kernargs for number in (arg.offset, arg.size)),
        ])  # fmt: skip
    assert printed(tmp_path, sample, language, "\n".join(lines)) == expected


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("arch", "backend", "api"), [("gfx942", "hip", HIP), ("sm_90", "cuda", CUDA)])
def test_a_launch_passes_the_struct_as_the_kernarg_segment(
    tmp_path: Path, language: str, arch: str, backend: str, api: dict[str, str]
):
    index = sample_index(arch, backend)
    named = zip(variant_names(index), index.variants, strict=True)
    name, variant = next((n, v) for n, v in named if v.op == "reduce" and not v.aligned and v.lds_bytes == 512)
    body = f"""
    {name}_kernargs args;
    memset(&args, 0, sizeof args);
    args.x = 0x1122334455667788u;
    args.seed = -2;
    args.scale = 1.5f;
    int first = {name}_launch(({api["function"]})21, 5, 6, 7, &args, ({api["stream"]})22);
    int empty = {name}_launch(({api["function"]})21, 5, 0, 7, &args, ({api["stream"]})22);
    printf("[%d,%d]\\n", first, empty);
"""
    launched, statuses = printed(tmp_path, index, language, body, FAKE_API.format(**api))
    segment = bytearray(variant.kernarg_bytes)
    segment[0:8] = (0x1122334455667788).to_bytes(8, "little")
    segment[40:48] = (-2).to_bytes(8, "little", signed=True)
    segment[48:52] = bytes.fromhex("0000c03f")
    threads = variant.num_warps * variant.warp_size
    assert launched == [[21, 22], [5, 6, 7], [threads, 1, 1], 512, 1, 1, segment.hex()]
    assert statuses == [7, 0], "the API's status is returned, and an empty grid is not launched"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("arch", "backend", "include"),
    [
        ("gfx942", "hip", "#define __HIP_PLATFORM_AMD__\n#include <hip/hip_runtime_api.h>"),
        ("sm_90", "cuda", "#include <cuda.h>"),
    ],
)
def test_launchers_compile_against_the_real_api(tmp_path: Path, language: str, arch: str, backend: str, include: str):
    backends = Path(pytest.importorskip("triton").__file__).parent / "backends"
    index = sample_index(arch, backend)
    (tmp_path / "sample.h").write_text(variants_text(index))
    name = variant_names(index)[0]
    used = f'{include}\n#include "sample.h"\nint main(void) {{ return sizeof(&{name}_launch) == 0; }}\n'
    flags = [item for vendor in ("amd", "nvidia") for item in ("-isystem", str(backends / vendor / "include"))]
    compile_source(tmp_path, used, language, "-c", *flags)


def test_structs(sample: records.Index):
    """Variants of one layout share a struct. Gaps are members, so offsets do not depend on a compiler's padding."""
    text = variants_text(sample)
    names = {struct_name(PREFIX, variant) for variant in sample.variants}
    assert len(names) == 4  # reduce: aligned, general, its second launch; swap
    assert all(text.count(f"struct {name} {{") == 1 for name in names)
    for declaration in ("padding_17[7]", "padding_33[1]", "padding_52[4]"):
        assert f"    uint8_t {declaration};" in text


def test_names_do_not_depend_on_the_rest_of_the_bundle(sample: records.Index):
    names = variant_names(sample)
    assert len(set(names)) == len(names)
    fewer = msgspec.structs.replace(sample, variants=sample.variants[5:])
    text = variants_text(fewer)
    assert all(f"static const aot_kernel {name} = " in text for name in names[5:])
    assert not any(name in text for name in names[:5])


def test_headers_of_two_architectures_fit_in_one_program(tmp_path: Path):
    for arch in ("gfx942", "gfx950"):
        (tmp_path / f"{arch}.h").write_text(variants_text(sample_index(arch)))
    source = '#include "gfx942.h"\n#include "gfx950.h"\n#include "gfx942.h"\nint main(void) { return 0; }\n'
    for language in LANGUAGES:
        compile_source(tmp_path, source, language)


def test_a_variant_is_described_in_a_comment(sample: records.Index):
    text = variants_text(sample)
    variant = next(v for v in sample.variants if v.launch == 0 and v.config == 1 and v.axis_values["WEIGHTED"])
    described = describe(sample.ops[0], variant)
    assert described == (
        "reduce[T=float16, WEIGHTED=True, WIDTH=64], aligned\n"
        "kernel reduce_rows; grid cdiv(rows, BLOCK), splits, 1\n"
        "config 'wide', when num_cus > 100 and cols > 64: BLOCK=64, num_warps=4, waves_per_eu=2"
    )
    assert "\n".join(f" * {line}" for line in described.splitlines()) in text


def test_text_of_the_index_cannot_break_out_of_its_comment_or_string(sample: records.Index, tmp_path: Path):
    first = sample.variants[0]
    hostile = '"; int x = 1; /* */ ??/\\'
    op = msgspec.structs.replace(sample.ops[0], launches=(
        msgspec.structs.replace(sample.ops[0].launches[0], kernel="a */ b", configs=(
            records.Config("*/ /* \\", {"BLOCK": "*/"}, {}), *sample.ops[0].launches[0].configs[1:])),
        sample.ops[0].launches[1]))  # fmt: skip
    arg = msgspec.structs.replace(first.kernargs[0], name="x */ y", value="*/")
    index = msgspec.structs.replace(
        sample,
        ops=(op, sample.ops[1]),
        variants=(msgspec.structs.replace(first, symbol=hostile, kernargs=(arg, *first.kernargs[1:])),),
    )
    (name,) = variant_names(index)
    body = f'for (const char *c = {name}.symbol; *c; c++) printf("%d\\n", *c);'
    for language in LANGUAGES:
        assert bytes(printed(tmp_path, index, language, body)).decode() == hostile
