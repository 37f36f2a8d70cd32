"""python raw.py FOLDER API LIBRARY IMAGE SYMBOL GRID THREADS LDS KERNARGS OFFSETS: the minimum for a result.

The driver's API through ctypes and nothing else: context, module, memory, copies, launch. KERNARGS is the segment in
hex; OFFSETS has the offsets of the addresses of q, k, v and out in it.
"""

import sys
import time

phases = {"start": time.monotonic()}
folder, api, library_path, image_path, symbol, grid, threads, lds_bytes, kernargs, offsets = sys.argv[1:]

import numpy as np  # noqa: E402

q, k, v = (np.load(f"{folder}/{name}.npy") for name in "qkv")
phases["numpy, data"] = time.monotonic()

import ctypes  # noqa: E402

library = ctypes.CDLL(library_path)


def call(name, *arguments):
    if status := getattr(library, name)(*arguments):
        sys.exit(f"{name}: status {status}")


def create(name, *arguments):
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    return handle


def size(number):
    return ctypes.c_size_t(number)


if api == "cuda":
    call("cuInit", 0)
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxSetCurrent", create("cuDevicePrimaryCtxRetain", device))
    allocate, copy_in, copy_out = "cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"
    load, find, launch, end = "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", 0
else:
    call("hipSetDevice", 0)
    allocate, copy_in, copy_out = "hipMalloc", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync"
    load, find, launch, end = "hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel", 3
phases["context"] = time.monotonic()

image = np.fromfile(image_path, np.uint8)
function = create(find, create(load, ctypes.c_void_p(image.ctypes.data)), symbol.encode())
if api == "cuda" and int(lds_bytes) > 48 << 10:
    call("cuFuncSetAttribute", function, 8, int(lds_bytes))  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
phases["module"] = time.monotonic()

out = np.empty_like(q)
segment = bytearray.fromhex(kernargs)
memory = []
for array, offset in zip((q, k, v, out), offsets.split(","), strict=True):
    address = create(allocate, size(array.nbytes))
    memory.append(address)
    segment[int(offset) : int(offset) + 8] = address.value.to_bytes(8, "little")
    if array is not out:
        call(copy_in, address, ctypes.c_void_p(array.ctypes.data), size(array.nbytes), None)
buffer = (ctypes.c_char * len(segment)).from_buffer(segment)
length = size(len(segment))
extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), end)
call(launch, function, *map(int, grid.split(",")), int(threads), 1, 1, int(lds_bytes), None, None, extra)
call(copy_out, ctypes.c_void_p(out.ctypes.data), memory[3], size(out.nbytes), None)
call("cuStreamSynchronize" if api == "cuda" else "hipStreamSynchronize", None)
phases["copies, launch"] = time.monotonic()

np.save(f"{folder}/out.npy", out)
print(phases)
