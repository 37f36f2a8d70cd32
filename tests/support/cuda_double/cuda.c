/* A test double of libcuda for one process: one device, an H100 as far as a bundle asks, whose memory is host memory.
 * Work is done at once. Kernels are not run: a launch is kept for the test to look at.
 *
 * A tensor map that it encodes holds what it was encoded from, in place of NVIDIA's own form; what CUDA's documents
 * forbid is an invalid value. The map's second word is all ones, so that what a program changes in it shows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, STATIC_LIMIT = 48 << 10, SHARED = 232448, MAX_ARGS = 4096 };

typedef struct launch {
  const void *image;
  char kernel[256];
  unsigned grid[3], block, shared, size, early;
  void *stream;
  unsigned char kernargs[MAX_ARGS];
} launch;

typedef struct function {
  const void *image;
  char name[256];
  int limit;
} function;

static launch launches[256];
static int launched, encoded, version = 13000;
static void *context = (void *)0x10, *current;

/* What the test asks. */
int cuda_double_launched(void) { return launched; }
const launch *cuda_double_launch(int i) { return &launches[i]; }
int cuda_double_encoded(void) { return encoded; }
void cuda_double_version(int value) { version = value; }

int cuInit(unsigned flags) { return flags != 0; }
int cuDriverGetVersion(int *value) { return *value = version, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal != 0; }
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, (size_t)size, "double"), device != 0; }
int cuDeviceTotalMem(size_t *bytes, int device) { return *bytes = (size_t)1 << 30, device != 0; }
int cuDevicePrimaryCtxRetain(void **found, int device) { return *found = context, device != 0; }
int cuDevicePrimaryCtxRelease(int device) { return device != 0; }
int cuCtxGetCurrent(void **found) { return *found = current, SUCCESS; }
int cuCtxSetCurrent(void *wanted) { return current = wanted, SUCCESS; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, SUCCESS; }
int cuGetErrorName(int status, const char **name) { return *name = status ? "CUDA_ERROR" : "CUDA_SUCCESS", SUCCESS; }
int cuGetErrorString(int status, const char **text) { return *text = status ? "an error" : "no error", SUCCESS; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 10: *value = 32; break;      /* warp size */
    case 16: *value = 132; break;     /* multiprocessors */
    case 75: *value = 9; break;       /* compute capability */
    case 76: *value = 0; break;
    case 97: *value = SHARED; break;  /* shared memory of a block, opt-in */
    case 115: *value = 1; break;      /* pools */
    default: *value = 0;
  }
  return device != 0;
}

/* Memory. */
int cuMemAlloc(uint64_t *address, size_t bytes) {
  return *address = (uint64_t)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256), SUCCESS;
}
int cuMemFree(uint64_t address) { return free((void *)(uintptr_t)address), SUCCESS; }
int cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, void *pool, void *stream) {
  return (void)stream, pool == NULL ? INVALID_VALUE : cuMemAlloc(address, bytes);
}
int cuMemFreeAsync(uint64_t address, void *stream) { return (void)stream, cuMemFree(address); }
int cuMemPoolCreate(void **pool, const void *properties) { return *pool = malloc(1), properties == NULL; }
int cuMemPoolDestroy(void *pool) { return free(pool), SUCCESS; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return (void)attribute, !pool || !value; }
int cuMemPoolTrimTo(void *pool, size_t keep) { return (void)keep, pool == NULL; }
int cuMemGetInfo(size_t *unused, size_t *total) { return *unused = *total = (size_t)1 << 30, SUCCESS; }
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { return (void)flags, *address = malloc(bytes), SUCCESS; }
int cuMemFreeHost(void *address) { return free(address), SUCCESS; }
int cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t bytes, void *stream) {
  return (void)stream, memcpy((void *)(uintptr_t)to, from, bytes), SUCCESS;
}
int cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, void *stream) {
  return (void)stream, memcpy(to, (void *)(uintptr_t)from, bytes), SUCCESS;
}
int cuMemsetD8Async(uint64_t address, unsigned char byte, size_t count, void *stream) {
  return (void)stream, memset((void *)(uintptr_t)address, byte, count), SUCCESS;
}

/* Streams and events, which nothing waits for. */
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = malloc(1), SUCCESS; }
int cuStreamDestroy(void *stream) { return free(stream), SUCCESS; }
int cuStreamSynchronize(void *stream) { return (void)stream, SUCCESS; }
int cuStreamQuery(void *stream) { return (void)stream, SUCCESS; }
int cuStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = 0, SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)stream, (void)flags, event == NULL; }
int cuEventCreate(void **event, unsigned flags) { return (void)flags, *event = malloc(1), SUCCESS; }
int cuEventDestroy(void *event) { return free(event), SUCCESS; }
int cuEventRecord(void *event, void *stream) { return (void)stream, event == NULL; }
int cuEventSynchronize(void *event) { return event == NULL; }

/* Code. */
int cuModuleLoadData(void **module, const void *image) { return *module = (void *)image, SUCCESS; }
int cuModuleUnload(void *module) { return module == NULL; }
int cuModuleGetFunction(void **found, void *module, const char *name) {
  function *made = calloc(1, sizeof *made);
  made->image = module;
  made->limit = STATIC_LIMIT;
  (void)snprintf(made->name, sizeof made->name, "%s", name);
  return *found = made, SUCCESS;
}
int cuFuncGetAttribute(int *value, int attribute, function *f) { return *value = f->limit, attribute != 8; }
int cuFuncSetAttribute(function *f, int attribute, int value) {
  if (attribute == 8) f->limit = value;
  return attribute == 8 && value > SHARED ? INVALID_VALUE : SUCCESS;
}

int cuLaunchKernel(function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  launch *kept = &launches[launched % 256];
  size_t size = *(size_t *)extra[3];
  if (current != context || parameters || by != 1 || bz != 1 || (int)shared > f->limit || size > MAX_ARGS) return INVALID_VALUE;
  if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != NULL) return INVALID_VALUE;
  memset(kept, 0, sizeof *kept);
  kept->image = f->image;
  memcpy(kept->kernel, f->name, sizeof kept->kernel);
  kept->grid[0] = x, kept->grid[1] = y, kept->grid[2] = z;
  kept->block = bx, kept->shared = shared, kept->size = (unsigned)size, kept->stream = stream;
  memcpy(kept->kernargs, extra[1], size);
  launched++;
  return SUCCESS;
}

typedef struct attribute { /* of those that there are, only programmatic stream serialization */
  unsigned id, padding, value[16];
} attribute;

typedef struct config {
  unsigned grid[3], block[3], shared;
  void *stream;
  const attribute *attributes;
  unsigned num_attributes;
} config;

int cuLaunchKernelEx(const config *c, function *f, void **parameters, void **extra) {
  unsigned early = c->num_attributes;
  if (early > 1 || (early && (c->attributes->id != 6 || c->attributes->value[0] != 1))) return INVALID_VALUE;
  int status = cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                              c->stream, parameters, extra);
  if (status == SUCCESS) launches[(launched - 1) % 256].early = early;
  return status;
}

typedef struct map {
  unsigned char dtype, rank, interleave, swizzle, promotion, fill, unused[2];
  uint64_t ones, address, dims[5], strides[4];
  uint32_t box[5], rest[3];
} map;

int cuTensorMapEncodeTiled(map *made, int dtype, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  static const unsigned char bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  map found = {0};
  _Static_assert(sizeof found == 128, "a CUtensorMap");
  if ((uintptr_t)made % 64 || (uintptr_t)address % 16 || rank < 1 || rank > 5 || dtype < 0 || dtype > 12) return INVALID_VALUE;
  if (interleave != 0 || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3) return INVALID_VALUE;
  if (fill != 0 && (fill != 1 || dtype < 6)) return INVALID_VALUE; /* NaN, which integers lack */
  uint32_t row = box[0] * bytes[dtype];
  if (row % 16 || (swizzle && row > 16u << swizzle)) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++) {
    if (dims[i] < 1 || dims[i] > (uint64_t)1 << 32 || box[i] < 1 || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
    if (i + 1 < rank && (strides[i] == 0 || strides[i] % 16 || strides[i] >> 40)) return INVALID_VALUE;
    found.dims[i] = dims[i];
    found.box[i] = box[i];
    if (i + 1 < rank) found.strides[i] = strides[i];
  }
  found.dtype = (unsigned char)dtype, found.rank = (unsigned char)rank, found.swizzle = (unsigned char)swizzle;
  found.promotion = (unsigned char)promotion, found.fill = (unsigned char)fill;
  found.ones = UINT64_MAX, found.address = (uint64_t)(uintptr_t)address;
  memcpy(made, &found, sizeof found);
  encoded++;
  return SUCCESS;
}

/* The names that programs link against, and how cuda-bindings finds all functions. */
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return cuMemAlloc(address, bytes); }
int cuMemFree_v2(uint64_t address) { return cuMemFree(address); }
int cuDevicePrimaryCtxRelease_v2(int device) { return cuDevicePrimaryCtxRelease(device); }

int cuGetProcAddress_v2(const char *name, void **found, int wanted, uint64_t flags, int *status) {
  Dl_info info;
  (void)wanted, (void)flags;
  *found = NULL;
  if (dladdr((void *)cuGetProcAddress_v2, &info)) {
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (strcmp(name, "cuGetProcAddress") == 0) *found = (void *)cuGetProcAddress_v2;
    else *found = dlsym(library, name);
  }
  if (status) *status = *found ? 0 : 1;
  return *found ? SUCCESS : NOT_FOUND;
}
