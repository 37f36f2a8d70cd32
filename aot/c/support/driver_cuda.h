/* ---- NVIDIA GPUs: the functions of libcuda that a call needs -----------------------------------------------------
 * Defining AOT_LINK_DRIVER has them linked; otherwise they are looked up when a bundle is first opened: in what the
 * process has loaded already, in the file that AOTBUILD_CUDA_LIBRARY names, then wherever the dynamic loader looks. No
 * header of CUDA is needed: these are its types as the binary interface has them. A device is used in its primary
 * context, as the CUDA runtime does. */

#if AOT_MAPS
#define AOT_MAP_FUNCTIONS(X)                                                                                 \
    X(cuDriverGetVersion, (int *version))                                                                    \
    X(cuTensorMapEncodeTiled, (void *map, int type, uint32_t rank, void *address, const uint64_t *shape,     \
                               const uint64_t *strides, const uint32_t *box, const uint32_t *steps,          \
                               int interleave, int swizzle, int promotion, int fill))
#else
#define AOT_MAP_FUNCTIONS(X)
#endif

#define AOT_FUNCTIONS(X)                                                                                     \
    X(cuInit, (unsigned flags))                                                                              \
    X(cuDeviceGetCount, (int *count))                                                                        \
    X(cuDeviceGet, (int *device, int ordinal))                                                               \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                         \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                            \
    X(cuCtxGetCurrent, (void **context))                                                                     \
    X(cuCtxSetCurrent, (void *context))                                                                      \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                        \
    X(cuModuleLoadData, (void **module, const void *image))                                                  \
    X(cuModuleUnload, (void *module))                                                                        \
    X(cuModuleGetFunction, (void **function, void *module, const char *name))                                \
    X(cuFuncGetAttribute, (int *value, int attribute, void *function))                                       \
    X(cuFuncSetAttribute, (void *function, int attribute, int value))                                        \
    X(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
                       unsigned block_y, unsigned block_z, unsigned lds_bytes, void *stream,                 \
                       void **parameters, void **extra))                                                     \
    X(cuMemAlloc_v2, (uint64_t *address, size_t bytes))                                                      \
    X(cuMemFree_v2, (uint64_t address))                                                                      \
    X(cuMemPoolCreate, (void **pool, const void *properties))                                                \
    X(cuMemPoolDestroy, (void *pool))                                                                        \
    X(cuMemPoolSetAttribute, (void *pool, int attribute, void *value))                                       \
    X(cuMemAllocFromPoolAsync, (uint64_t *address, size_t bytes, void *pool, void *stream))                  \
    X(cuMemFreeAsync, (uint64_t address, void *stream))                                                      \
    X(cuMemsetD8Async, (uint64_t address, unsigned char byte, size_t count, void *stream))                   \
    AOT_MAP_FUNCTIONS(X)

enum { AOT_MULTIPROCESSORS = 16, AOT_MAJOR = 75, AOT_MINOR = 76, AOT_POOLS = 115 }; /* attributes of devices */
enum { AOT_MAX_SHARED = 8, AOT_CARVEOUT = 9, AOT_ALL_SHARED = 100 };                /* attributes of functions */
enum { AOT_LAUNCH_END = 0 };

#include "driver_functions.h"

#define AOT_LIBRARY_NAMES {"libcuda.so.1", "libcuda.so"}
#define AOT_LIBRARY_VARIABLE "AOTBUILD_CUDA_LIBRARY"

static const char *aot_status_name(int status)
{
    int (*name)(int, const char **) = NULL;
    const char *found = NULL;
    aot_find_symbol("cuGetErrorName", &name, sizeof name);
    return name == NULL || name(status, &found) != 0 || found == NULL ? "an error" : found;
}

static bool aot_device_enter(const aot_opened *b, uintptr_t *before, aot_status *status)
{
    void *current = NULL;
    AOT_TRY(status, cuCtxGetCurrent, (&current));
    *before = (uintptr_t)current;
    if (current != b->context) AOT_TRY(status, cuCtxSetCurrent, (b->context));
    return true;
}

static void aot_device_leave(const aot_opened *b, uintptr_t before)
{
    if (before != (uintptr_t)b->context) (void)aot_driver.cuCtxSetCurrent((void *)before);
}

/* The architecture of a device, and how many multiprocessors it has. */
static bool aot_device_properties(aot_opened *b, aot_status *status)
{
    int count = 0, device = 0, major = 0, minor = 0;
    AOT_TRY(status, cuInit, (0));
    AOT_TRY(status, cuDeviceGetCount, (&count));
    if (b->device < 0 || b->device >= count)
        return aot_fail(status, AOT_DEVICE, "there is no device %d; the driver has %d", b->device, count);
    AOT_TRY(status, cuDeviceGet, (&device, b->device));
    AOT_TRY(status, cuDeviceGetAttribute, (&major, AOT_MAJOR, device));
    AOT_TRY(status, cuDeviceGetAttribute, (&minor, AOT_MINOR, device));
    AOT_TRY(status, cuDeviceGetAttribute, (&b->num_cus, AOT_MULTIPROCESSORS, device));
    AOT_TRY(status, cuDeviceGetAttribute, (&b->has_pools, AOT_POOLS, device));
    AOT_TRY(status, cuDevicePrimaryCtxRetain, (&b->context, device));
    (void)snprintf(b->arch, sizeof b->arch, "sm_%d%d", major, minor);
    b->num_xcds = 1;
    return true;
}

/* The context is the device's own, and lives on where others hold it. */
static void aot_device_release(const aot_opened *b)
{
    int device = 0;
    if (b->context != NULL && aot_driver.cuDeviceGet(&device, b->device) == 0)
        (void)aot_driver.cuDevicePrimaryCtxRelease_v2(device);
}

/* A code object; it is loaded whatever the process captures. */
static bool aot_load_module(const void *image, void **module, aot_status *status)
{
    int mode = 2, unused; /* relaxed */
    AOT_TRY(status, cuThreadExchangeStreamCaptureMode, (&mode));
    int result = aot_driver.cuModuleLoadData(module, image);
    unused = aot_driver.cuThreadExchangeStreamCaptureMode(&mode);
    (void)unused;
    return result == 0 || aot_driver_fail(status, "cuModuleLoadData", result);
}

/* A block gets no more shared memory than its function asked for beforehand. */
static bool aot_find_function(void *module, const aot_variant *variant, void **function, aot_status *status)
{
    int most = 0;
    AOT_TRY(status, cuModuleGetFunction, (function, module, variant->symbol));
    AOT_TRY(status, cuFuncGetAttribute, (&most, AOT_MAX_SHARED, *function));
    if ((int64_t)variant->lds_bytes <= most) return true;
    AOT_TRY(status, cuFuncSetAttribute, (*function, AOT_MAX_SHARED, (int)variant->lds_bytes));
    AOT_TRY(status, cuFuncSetAttribute, (*function, AOT_CARVEOUT, AOT_ALL_SHARED));
    return true;
}

static void aot_unload_module(void *module) { (void)aot_driver.cuModuleUnload(module); }

static bool aot_create_pool(aot_opened *b, aot_status *status)
{
    aot_pool_properties properties = aot_pool_of(b->device);
    uint64_t keep_everything = UINT64_MAX;
    if (b->pool != NULL || !b->has_pools) return true;
    AOT_TRY(status, cuMemPoolCreate, (&b->pool, &properties));
    AOT_TRY(status, cuMemPoolSetAttribute, (b->pool, AOT_RELEASE_THRESHOLD, &keep_everything));
    return true;
}

static void aot_destroy_pool(aot_opened *b)
{
    if (b->pool != NULL) (void)aot_driver.cuMemPoolDestroy(b->pool);
}

static bool aot_pool_allocate(aot_opened *b, uint64_t bytes, void *stream, uint64_t *address, aot_status *status)
{
    if (b->pool != NULL) AOT_TRY(status, cuMemAllocFromPoolAsync, (address, (size_t)bytes, b->pool, stream));
    else AOT_TRY(status, cuMemAlloc_v2, (address, (size_t)bytes));
    return true;
}

/* Without a pool, the driver waits for the device first. */
static void aot_pool_release(aot_opened *b, uint64_t address, void *stream)
{
    if (b->pool != NULL) (void)aot_driver.cuMemFreeAsync(address, stream);
    else (void)aot_driver.cuMemFree_v2(address);
}

static bool aot_zero(uint64_t address, uint64_t bytes, void *stream, aot_status *status)
{
    AOT_TRY(status, cuMemsetD8Async, (address, 0, (size_t)bytes, stream));
    return true;
}

static bool aot_enqueue(void *function, const uint32_t *grid, const aot_variant *variant, void *stream, void **extra,
                        aot_status *status)
{
    AOT_TRY(status, cuLaunchKernel, (function, grid[0], grid[1], grid[2], variant->threads, 1, 1, variant->lds_bytes,
                                     stream, NULL, extra));
    return true;
}
