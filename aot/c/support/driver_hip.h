/* ---- AMD GPUs: the functions of libamdhip64 that a call needs ----------------------------------------------------
 * Defining AOT_LINK_DRIVER has them linked; otherwise they are looked up when a bundle is first opened: in what the
 * process has loaded already, in the file that AOTBUILD_HIP_LIBRARY names, then wherever the dynamic loader looks. No
 * header of HIP is needed: these are its types as the binary interface has them. */

#define AOT_FUNCTIONS(X)                                                                                     \
    X(hipGetDeviceCount, (int *count))                                                                       \
    X(hipGetDevice, (int *device))                                                                           \
    X(hipSetDevice, (int device))                                                                            \
    X(hipGetDevicePropertiesR0600, (void *properties, int device))                                           \
    X(hipDeviceGetAttribute, (int *value, int attribute, int device))                                        \
    X(hipThreadExchangeStreamCaptureMode, (int *mode))                                                       \
    X(hipModuleLoadData, (void **module, const void *image))                                                 \
    X(hipModuleUnload, (void *module))                                                                       \
    X(hipModuleGetFunction, (void **function, void *module, const char *name))                               \
    X(hipModuleLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,      \
                              void *stream, void **parameters, void **extra))                                \
    X(hipMalloc, (void **address, size_t bytes))                                                             \
    X(hipFree, (void *address))                                                                              \
    X(hipMemPoolCreate, (void **pool, const void *properties))                                               \
    X(hipMemPoolDestroy, (void *pool))                                                                       \
    X(hipMemPoolSetAttribute, (void *pool, int attribute, void *value))                                      \
    X(hipMallocFromPoolAsync, (void **address, size_t bytes, void *pool, void *stream))                      \
    X(hipFreeAsync, (void *address, void *stream))                                                           \
    X(hipMemsetD8Async, (void *address, unsigned char byte, size_t count, void *stream))

enum { AOT_XCCS = 10018, AOT_POOLS = 88 };                                    /* attributes of devices */
enum { AOT_PROPERTIES = 1472, AOT_MULTIPROCESSORS = 388, AOT_ARCH_NAME = 1160 }; /* hipDeviceProp_tR0600, in bytes */
enum { AOT_LAUNCH_END = 3 };

#include "driver_functions.h"

#define AOT_LIBRARY_NAMES {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"}
#define AOT_LIBRARY_VARIABLE "AOTBUILD_HIP_LIBRARY"

static const char *aot_status_name(int status)
{
    const char *(*name)(int) = NULL;
    aot_find_symbol("hipGetErrorName", &name, sizeof name);
    return name == NULL ? "an error" : name(status);
}

static bool aot_device_enter(const aot_opened *b, uintptr_t *before, aot_status *status)
{
    int current = 0;
    AOT_TRY(status, hipGetDevice, (&current));
    *before = (uintptr_t)current;
    if (current != b->device) AOT_TRY(status, hipSetDevice, (b->device));
    return true;
}

static void aot_device_leave(const aot_opened *b, uintptr_t before)
{
    if ((int)before != b->device) (void)aot_driver.hipSetDevice((int)before);
}

/* The architecture of a device, and its numbers of compute units and XCDs. */
static bool aot_device_properties(aot_opened *b, aot_status *status)
{
    unsigned char properties[AOT_PROPERTIES + 1024]; /* later versions of the structure may be longer */
    int count = 0;
    AOT_TRY(status, hipGetDeviceCount, (&count));
    if (b->device < 0 || b->device >= count)
        return aot_fail(status, AOT_DEVICE, "there is no device %d; the driver has %d", b->device, count);
    memset(properties, 0, sizeof properties);
    AOT_TRY(status, hipGetDevicePropertiesR0600, (properties, b->device));
    memcpy(b->arch, properties + AOT_ARCH_NAME, sizeof b->arch - 1);
    b->arch[strcspn(b->arch, ":")] = 0;
    memcpy(&b->num_cus, properties + AOT_MULTIPROCESSORS, sizeof b->num_cus);
    if (aot_driver.hipDeviceGetAttribute(&b->num_xcds, AOT_XCCS, b->device) != 0) b->num_xcds = 0;
    if (aot_driver.hipDeviceGetAttribute(&b->has_pools, AOT_POOLS, b->device) != 0) b->has_pools = 0;
    return true;
}

static void aot_device_release(const aot_opened *b) { (void)b; }

/* A code object; it is loaded whatever the process captures. HIP reads the image for as long as the module lives. */
static bool aot_load_module(const void *image, void **module, aot_status *status)
{
    int mode = 2, unused; /* relaxed */
    AOT_TRY(status, hipThreadExchangeStreamCaptureMode, (&mode));
    int result = aot_driver.hipModuleLoadData(module, image);
    unused = aot_driver.hipThreadExchangeStreamCaptureMode(&mode);
    (void)unused;
    return result == 0 || aot_driver_fail(status, "hipModuleLoadData", result);
}

static bool aot_find_function(void *module, const aot_variant *variant, void **function, aot_status *status)
{
    AOT_TRY(status, hipModuleGetFunction, (function, module, variant->symbol));
    return true;
}

static void aot_unload_module(void *module) { (void)aot_driver.hipModuleUnload(module); }

static bool aot_create_pool(aot_opened *b, aot_status *status)
{
    aot_pool_properties properties = aot_pool_of(b->device);
    uint64_t keep_everything = UINT64_MAX;
    if (b->pool != NULL || !b->has_pools) return true;
    AOT_TRY(status, hipMemPoolCreate, (&b->pool, &properties));
    AOT_TRY(status, hipMemPoolSetAttribute, (b->pool, AOT_RELEASE_THRESHOLD, &keep_everything));
    return true;
}

static void aot_destroy_pool(aot_opened *b)
{
    if (b->pool != NULL) (void)aot_driver.hipMemPoolDestroy(b->pool);
}

static bool aot_pool_allocate(aot_opened *b, uint64_t bytes, void *stream, uint64_t *address, aot_status *status)
{
    void *found = NULL;
    if (b->pool != NULL) AOT_TRY(status, hipMallocFromPoolAsync, (&found, (size_t)bytes, b->pool, stream));
    else AOT_TRY(status, hipMalloc, (&found, (size_t)bytes));
    *address = (uint64_t)(uintptr_t)found;
    return true;
}

/* Without a pool, the driver waits for the device first. */
static void aot_pool_release(aot_opened *b, uint64_t address, void *stream)
{
    if (b->pool != NULL) (void)aot_driver.hipFreeAsync((void *)(uintptr_t)address, stream);
    else (void)aot_driver.hipFree((void *)(uintptr_t)address);
}

static bool aot_zero(uint64_t address, uint64_t bytes, void *stream, aot_status *status)
{
    AOT_TRY(status, hipMemsetD8Async, ((void *)(uintptr_t)address, 0, (size_t)bytes, stream));
    return true;
}

static bool aot_enqueue(void *function, const uint32_t *grid, const aot_variant *variant, void *stream, void **extra,
                        aot_status *status)
{
    AOT_TRY(status, hipModuleLaunchKernel, (function, grid[0], grid[1], grid[2], variant->threads, 1, 1,
                                            variant->lds_bytes, stream, NULL, extra));
    return true;
}
