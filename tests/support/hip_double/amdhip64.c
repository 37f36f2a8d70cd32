/* A test double of libamdhip64 for one process: devices whose memory is host memory, streams that run work at once or,
 * where that is asked for, as late as is allowed, and strict books. What HIP would let pass, or leave undefined, is an error here: a copy outside an allocation, the
 * use of anything destroyed, a free by the wrong call, a code object for another arch or whose image has changed.
 *
 * A launch calls the function given to hip_double_on_launch, or does nothing.
 *
 * Environment, read when the double is loaded:
 *   HIP_DOUBLE_DEVICES  number of devices (1); 0: hipGetDeviceCount gives hipErrorNoDevice
 *   HIP_DOUBLE_ARCH     their gcnArchName (gfx942:sramecc+:xnack-); several, separated by commas, are of the devices
 *                       in turn, the last one of those that are left
 *   HIP_DOUBLE_CUS      their compute units (304)
 *   HIP_DOUBLE_XCCS     their dies (0: the library is too old to know)
 *   HIP_DOUBLE_MEMORY   bytes of memory of each (1 GiB)
 *   HIP_DOUBLE_POOLS    0: the devices have no memory pools
 *   HIP_DOUBLE_DEFERS   1: work is done when something waits for it, and not before
 */
#define _GNU_SOURCE
#include <elf.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"

/* ---- Statuses ---------------------------------------------------------------------------------------------- */

#define STATUSES(X)                                                     \
  X(hipSuccess, 0, "no error")                                          \
  X(hipErrorInvalidValue, 1, "invalid argument")                        \
  X(hipErrorOutOfMemory, 2, "out of memory")                            \
  X(hipErrorInvalidConfiguration, 9, "invalid configuration argument")  \
  X(hipErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")       \
  X(hipErrorNoDevice, 100, "no ROCm-capable device is detected")        \
  X(hipErrorInvalidDevice, 101, "invalid device ordinal")               \
  X(hipErrorInvalidImage, 200, "device kernel image is invalid")        \
  X(hipErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device") \
  X(hipErrorInvalidHandle, 400, "invalid resource handle")              \
  X(hipErrorIllegalState, 401, "the operation cannot be performed in the present state") \
  X(hipErrorNotFound, 500, "named symbol not found")                    \
  X(hipErrorIllegalAddress, 700, "an illegal memory access was encountered") \
  X(hipErrorContextIsDestroyed, 709, "context is destroyed")            \
  X(hipErrorLaunchFailure, 719, "unspecified launch failure")           \
  X(hipErrorNotSupported, 801, "operation not supported")               \
  X(hipErrorNotReady, 600, "device not ready") \
  X(hipErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
  X(hipErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
  X(hipErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream") \
  X(hipErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(hipErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
  X(hipErrorUnknown, 999, "unknown error")

typedef enum {
#define X(name, value, text) name = value,
  STATUSES(X)
#undef X
} hipError_t;

const char *hipGetErrorName(hipError_t status) {
  switch ((int)status) {
#define X(name, value, text) case value: return #name;
    STATUSES(X)
#undef X
  }
  return "hipErrorUnknown";
}

const char *hipGetErrorString(hipError_t status) {
  switch ((int)status) {
#define X(name, value, text) case value: return text;
    STATUSES(X)
#undef X
  }
  return "unknown error";
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

static void leave(int *held) {
  (void)held;
  pthread_mutex_unlock(&books);
}

/* Count the call, fail it if a test asked for that, and hold the books until the function returns. */
#define ENTER(name)                                                    \
  const hipError_t injected = enter(F_##name);                         \
  __attribute__((cleanup(leave), unused)) int held = 1;                \
  if (injected) return failed(injected)

static __thread hipError_t last_error;

/* Keep a status for hipGetLastError. */
static hipError_t failed(hipError_t status) { return last_error = status; }

#define CHECK(condition, status) \
  do {                           \
    if (!(condition)) return failed(status); \
  } while (0)

/* ---- Objects ------------------------------------------------------------------------------------------------ */

enum kind { MEMORY, HOST_MEMORY, POOL, MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXECUTABLE, KIND_COUNT };
static const char *const kind_names[] = {"memory", "host_memory", "pool",  "module",    "function",
                                         "stream", "event",       "graph", "executable"};

struct node;
struct object {
  enum kind kind;
  int device;
  struct object *next;
  struct object *owner; /* the pool of memory, the module of a function, the graph that a stream is captured into */
  char *address;        /* memory */
  size_t size;          /* of memory, of a module's image */
  const unsigned char *image;
  uint64_t checksum;
  char *name; /* a function's */
  size_t unused; /* bytes that a pool was given back and keeps */
  int is_blocking; /* whether a stream is ordered with its device's default stream */
  int mode, invalidated;
  pthread_t capturing_thread;
  struct node *first, **last; /* a graph's work */
  struct timespec recorded;   /* an event's time; 0 if it has none */
  struct object *captured_by; /* the graph that an event was recorded into */
  int has_no_time;            /* whether an event was made without one */
  uint64_t last_work;         /* of a stream, or before an event: the number of the newest work */
};

static struct object *objects; /* everything alive; what dies is unlinked, and its address never used again */

static struct object *new_object(enum kind kind, int device) {
  struct object *object = calloc(1, sizeof *object);
  object->kind = kind;
  object->device = device;
  object->last = &object->first;
  object->next = objects;
  return objects = object;
}

static struct object *find(const void *handle, enum kind kind) {
  for (struct object *o = objects; o; o = o->next)
    if (o == handle && o->kind == kind) return o;
  return NULL;
}

static size_t dead_bytes;

/* Bytes of what the books keep of objects that died: the double's own growth, which no caller is to blame for. */
size_t hip_double_dead_bytes(void) { return dead_bytes; }

static void unlink_object(struct object *object) {
  dead_bytes += malloc_usable_size(object) + sizeof(size_t);
  for (struct object **link = &objects; *link; link = &(*link)->next)
    if (*link == object) {
      *link = object->next;
      return;
    }
}

/* How many objects of a kind are alive: memory, host_memory, pool, module, function, stream, event, graph, executable;
 * -1 for another word. */
long hip_double_alive(const char *kind) {
  long count = 0;
  int known = 0;
  pthread_mutex_lock(&books);
  for (int i = 0; i < KIND_COUNT; i++) {
    if (strcmp(kind_names[i], kind)) continue;
    known = 1;
    for (struct object *o = objects; o; o = o->next) count += (int)o->kind == i;
  }
  pthread_mutex_unlock(&books);
  return known ? count : -1;
}

/* ---- Devices ------------------------------------------------------------------------------------------------ */

static __thread int current_device;
static int device_count = 1;
static size_t device_memory = (size_t)1 << 30;
static int has_pools = 1, defers;
static int compute_units = 304, dies;
static char arch_names[16][256] = {"gfx942:sramecc+:xnack-"};

/* For the fork of a process that has loaded the double and called nothing of it. */
__attribute__((constructor)) void hip_double_read_environment(void) {
  const char *text;
  if ((text = getenv("HIP_DOUBLE_DEVICES"))) device_count = atoi(text);
  if ((text = getenv("HIP_DOUBLE_CUS"))) compute_units = atoi(text);
  if ((text = getenv("HIP_DOUBLE_XCCS"))) dies = atoi(text);
  text = getenv("HIP_DOUBLE_ARCH");
  for (int i = 0; text && *text && i < 16; i++) {
    const size_t length = strcspn(text, ",");
    snprintf(arch_names[i], sizeof arch_names[i], "%.*s", (int)length, text);
    text += length + (text[length] == ',');
  }
  if ((text = getenv("HIP_DOUBLE_MEMORY"))) device_memory = strtoull(text, NULL, 0);
  if ((text = getenv("HIP_DOUBLE_POOLS"))) has_pools = atoi(text);
  if ((text = getenv("HIP_DOUBLE_DEFERS"))) defers = atoi(text);
}

/* The layout of hipDeviceProp_tR0600, whose order of fields is the library's binary interface. */
typedef struct {
  char name[256];
  char uuid[16], luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode;
  int textures[40]; /* maxTexture1D to maxSurfaceCubemapLayered */
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
  int unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor, streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
  int singleToDoublePrecisionPerfRatio, pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported;
  int canUseHostPointerForRegisteredMem, cooperativeLaunch, cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseHipArraySupported, hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers;
  int reserved[63], hipReserved[32];
  char gcnArchName[256];
  size_t maxSharedMemoryPerMultiProcessor;
  /* Fields that the double leaves alone follow. */
} hipDeviceProp_tR0600;

static const char *arch_of(int device) {
  while (device > 15 || !*arch_names[device]) device--;
  return arch_names[device];
}

static int is_arch(int device, const char *name) {
  const char *arch = arch_of(device);
  const size_t length = strlen(name);
  return !strncmp(arch, name, length) && (arch[length] == 0 || arch[length] == ':');
}

static size_t lds_bytes(int device) { return is_arch(device, "gfx950") ? 160 << 10 : 64 << 10; }

hipError_t hipGetDeviceCount(int *count) {
  ENTER(hipGetDeviceCount);
  CHECK(count, hipErrorInvalidValue);
  *count = device_count;
  CHECK(device_count, hipErrorNoDevice);
  return hipSuccess;
}

hipError_t hipGetDevice(int *device) {
  ENTER(hipGetDevice);
  CHECK(device, hipErrorInvalidValue);
  *device = current_device;
  return hipSuccess;
}

hipError_t hipSetDevice(int device) {
  ENTER(hipSetDevice);
  CHECK(device_count, hipErrorNoDevice);
  CHECK(device >= 0 && device < device_count, hipErrorInvalidDevice);
  current_device = device;
  return hipSuccess;
}

hipError_t hipGetLastError(void) {
  ENTER(hipGetLastError);
  const hipError_t found = last_error;
  last_error = hipSuccess;
  return found;
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *p, int device) {
  ENTER(hipGetDevicePropertiesR0600);
  CHECK(p, hipErrorInvalidValue);
  CHECK(device >= 0 && device < device_count, hipErrorInvalidDevice);
  snprintf(p->name, sizeof p->name, "Double of an AMD GPU");
  snprintf(p->gcnArchName, sizeof p->gcnArchName, "%s", arch_of(device));
  p->totalGlobalMem = device_memory;
  p->sharedMemPerBlock = p->sharedMemPerBlockOptin = p->maxSharedMemoryPerMultiProcessor = lds_bytes(device);
  p->warpSize = strncmp(arch_of(device), "gfx9", 4) ? 32 : 64;
  p->multiProcessorCount = compute_units;
  p->clockRate = 2100000;
  p->memoryClockRate = 1300000;
  p->pciDomainID = 0;
  p->pciBusID = 0xc1 + device;
  p->pciDeviceID = 0;
  p->maxThreadsPerBlock = 1024;
  p->memoryPoolsSupported = has_pools;
  return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int *value, int attribute, int device) {
  enum { MEMORY_POOLS_SUPPORTED = 88, NUMBER_OF_XCCS = 10018 };
  ENTER(hipDeviceGetAttribute);
  CHECK(value, hipErrorInvalidValue);
  CHECK(device_count, hipErrorNoDevice);
  CHECK(device >= 0 && device < device_count, hipErrorInvalidDevice);
  CHECK(attribute == MEMORY_POOLS_SUPPORTED || (attribute == NUMBER_OF_XCCS && dies), hipErrorInvalidValue);
  *value = attribute == NUMBER_OF_XCCS ? dies : has_pools;
  return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int *version) {
  ENTER(hipRuntimeGetVersion);
  CHECK(version, hipErrorInvalidValue);
  *version = 70226015;
  return hipSuccess;
}

/* ---- Capture's rule for calls that wait or allocate ---------------------------------------------------------- */

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
static __thread int thread_capture_mode = CAPTURE_GLOBAL;

hipError_t hipThreadExchangeStreamCaptureMode(int *mode) {
  ENTER(hipThreadExchangeStreamCaptureMode);
  CHECK(mode && *mode >= CAPTURE_GLOBAL && *mode <= CAPTURE_RELAXED, hipErrorInvalidValue);
  const int previous = thread_capture_mode;
  thread_capture_mode = *mode;
  *mode = previous;
  return hipSuccess;
}

/* Such a call breaks every capture that forbids it to this thread. */
static hipError_t check_unsafe_call(void) {
  hipError_t status = hipSuccess;
  if (thread_capture_mode == CAPTURE_RELAXED) return status;
  for (struct object *s = objects; s; s = s->next) {
    if (s->kind != STREAM || !s->owner || s->mode == CAPTURE_RELAXED) continue;
    const int ours = pthread_equal(s->capturing_thread, pthread_self());
    if (!ours && (s->mode == CAPTURE_THREAD_LOCAL || thread_capture_mode == CAPTURE_THREAD_LOCAL)) continue;
    s->invalidated = 1;
    status = failed(hipErrorStreamCaptureUnsupported);
  }
  return status;
}

/* ---- Streams ------------------------------------------------------------------------------------------------ */

struct target { /* a stream as a call names it */
  struct object *stream; /* NULL: the default stream */
  int device;
};

static hipError_t resolve(void *handle, struct target *target) {
  target->stream = handle ? find(handle, STREAM) : NULL;
  CHECK(!handle || target->stream, hipErrorContextIsDestroyed);
  target->device = target->stream ? target->stream->device : current_device;
  return hipSuccess;
}

#define RESOLVE(handle, target)                                  \
  struct target target;                                          \
  do {                                                           \
    const hipError_t unresolved = resolve(handle, &target);      \
    if (unresolved) return unresolved;                           \
  } while (0)

/* It is so until its next capture if one of it has failed. */
static int is_captured(struct target target) { return target.stream && (target.stream->owner || target.stream->invalidated); }

/* The default stream waits for the blocking streams of its device, so it cannot be used while one is captured: the call
 * fails, and the capture with it. */
static hipError_t check_default_stream(struct target target) {
  hipError_t status = hipSuccess;
  for (struct object *s = objects; s && !target.stream; s = s->next) {
    if (s->kind != STREAM || s->device != target.device || !s->owner || !s->is_blocking) continue;
    s->invalidated = 1;
    status = failed(hipErrorStreamCaptureImplicit);
  }
  return status;
}

/* A call that a capturing stream cannot take: it fails, and the capture with it. */
static hipError_t refuse_capture(struct target target) {
  if (!is_captured(target)) return check_default_stream(target);
  target.stream->invalidated = 1;
  return failed(hipErrorStreamCaptureUnsupported);
}

/* ---- Work that is not done yet ------------------------------------------------------------------------------ */

static uint64_t given; /* the number of the newest work, which counts from 1 */

/* Do all work up to a number, in the order in which it was given: an order that no stream and no event forbids. */
static hipError_t do_work(uint64_t last);
static void trim_pools(void);

static uint64_t last_work(struct target target) { return target.stream ? target.stream->last_work : given; }

hipError_t hipStreamCreateWithFlags(void **stream, unsigned flags) {
  ENTER(hipStreamCreateWithFlags);
  CHECK(stream, hipErrorInvalidValue);
  CHECK(flags <= 1, hipErrorInvalidValue);
  struct object *created = new_object(STREAM, current_device);
  created->is_blocking = flags == 0;
  *stream = created;
  return hipSuccess;
}

hipError_t hipStreamDestroy(void *handle) {
  ENTER(hipStreamDestroy);
  CHECK(handle, hipErrorInvalidHandle);
  RESOLVE(handle, target);
  const hipError_t status = do_work(last_work(target));
  unlink_object(target.stream);
  return status;
}

hipError_t hipStreamSynchronize(void *handle) {
  ENTER(hipStreamSynchronize);
  RESOLVE(handle, target);
  const hipError_t refused = refuse_capture(target);
  if (refused) return refused;
  const hipError_t status = do_work(last_work(target));
  trim_pools();
  return status;
}

/* ---- Memory ------------------------------------------------------------------------------------------------- */

static size_t allocated(int device) {
  size_t total = 0;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == MEMORY && o->device == device) total += o->size;
  return total;
}

/* Bytes of a device that are allocated now. */
size_t hip_double_allocated(int device) {
  pthread_mutex_lock(&books);
  const size_t total = allocated(device);
  pthread_mutex_unlock(&books);
  return total;
}

/* Address and size of a device's allocation number `index`; NULL behind the last one. For a launch's callback, during
 * which the books are held. */
void *hip_double_allocation(int device, size_t index, size_t *size) {
  for (struct object *o = objects; o; o = o->next) {
    if ((o->kind != MEMORY) || o->device != device || index--) continue;
    *size = o->size;
    return o->address;
  }
  return NULL;
}

/* New memory holds 0xFF: NaN in every floating-point format. */
static struct object *new_memory(enum kind kind, int device, size_t size) {
  struct object *memory = new_object(kind, device);
  memory->address = aligned_alloc(256, (size + 255) / 256 * 256);
  memory->size = size;
  memset(memory->address, 0xFF, size);
  return memory;
}

static void delete_memory(struct object *memory) {
  memset(memory->address, 0xFF, memory->size);
  free(memory->address);
  unlink_object(memory);
}

/* Bytes that pools of a device keep, though nothing uses them. */
static size_t kept(int device) {
  size_t total = 0;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == POOL && o->device == device) total += o->unused;
  return total;
}

/* Bytes of a device that its pools keep, though nothing uses them. */
size_t hip_double_kept(int device) {
  pthread_mutex_lock(&books);
  const size_t total = kept(device);
  pthread_mutex_unlock(&books);
  return total;
}

/* Memory of a pool is what it keeps, as far as that goes. */
static hipError_t allocate(void **address, size_t size, int device, struct object *pool) {
  CHECK(address, hipErrorInvalidValue);
  *address = NULL;
  if (!size) return hipSuccess;
  const size_t reused = !pool ? 0 : pool->unused < size ? pool->unused : size, fresh = size - reused;
  CHECK(fresh <= device_memory && allocated(device) + kept(device) <= device_memory - fresh, hipErrorOutOfMemory);
  if (pool) pool->unused -= reused;
  struct object *memory = new_memory(MEMORY, device, size);
  memory->owner = pool;
  *address = memory->address;
  return hipSuccess;
}

/* The memory that holds all of a range. */
static struct object *holder(const void *address, size_t size, enum kind kind) {
  const char *at = address;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == kind && at >= o->address && size <= o->size && (size_t)(at - o->address) <= o->size - size) return o;
  return NULL;
}

static int touches_device(const void *address, size_t size) {
  const char *at = address;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == MEMORY && at < o->address + o->size && o->address < at + size) return 1;
  return 0;
}

static struct object *memory_at(const void *address, enum kind kind) {
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == kind && o->address == address) return o;
  return NULL;
}

hipError_t hipMalloc(void **address, size_t size) {
  ENTER(hipMalloc);
  const hipError_t unsafe = check_unsafe_call();
  return unsafe ? unsafe : allocate(address, size, current_device, NULL);
}

hipError_t hipFree(void *address) {
  ENTER(hipFree);
  const hipError_t unsafe = check_unsafe_call();
  if (unsafe || !address) return unsafe;
  struct object *memory = memory_at(address, MEMORY);
  CHECK(memory, hipErrorInvalidValue);
  const hipError_t status = do_work(given);
  delete_memory(memory);
  return status;
}

hipError_t hipHostMalloc(void **address, size_t size, unsigned flags) {
  (void)flags;
  ENTER(hipHostMalloc);
  const hipError_t unsafe = check_unsafe_call();
  if (unsafe) return unsafe;
  CHECK(address, hipErrorInvalidValue);
  *address = NULL;
  if (!size) return hipSuccess;
  *address = new_memory(HOST_MEMORY, current_device, size)->address;
  return hipSuccess;
}

hipError_t hipHostFree(void *address) {
  ENTER(hipHostFree);
  if (!address) return hipSuccess;
  struct object *memory = memory_at(address, HOST_MEMORY);
  CHECK(memory, hipErrorInvalidValue);
  const hipError_t status = do_work(given);
  delete_memory(memory);
  return status;
}

static size_t used_of(const struct object *pool) {
  size_t used = 0;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == MEMORY && o->owner == pool) used += o->size;
  return used;
}

/* Have a pool keep no more than so many bytes, those in use included. */
static void trim_pool(struct object *pool, size_t least) {
  const size_t used = used_of(pool);
  const size_t allowed = least > used ? least - used : 0;
  if (pool->unused > allowed) pool->unused = allowed;
}

/* Waiting has the pools give back what is above their thresholds. */
static void trim_pools(void) {
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == POOL) trim_pool(o, o->size);
}

typedef struct {
  int allocType, handleTypes;
  struct { int type, id; } location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
} hipMemPoolProps;

hipError_t hipMemPoolCreate(void **pool, const hipMemPoolProps *p) {
  enum { PINNED = 1, ON_DEVICE = 1 };
  static const unsigned char zeros[sizeof p->reserved];
  ENTER(hipMemPoolCreate);
  CHECK(pool && p, hipErrorInvalidValue);
  CHECK(has_pools, hipErrorNotSupported);
  CHECK(p->allocType == PINNED && p->handleTypes == 0 && p->location.type == ON_DEVICE, hipErrorInvalidValue);
  CHECK(p->location.id >= 0 && p->location.id < device_count, hipErrorInvalidValue);
  CHECK(!p->maxSize && !p->win32SecurityAttributes, hipErrorInvalidValue);
  CHECK(!memcmp(p->reserved, zeros, sizeof zeros), hipErrorInvalidValue);
  *pool = new_object(POOL, p->location.id);
  return hipSuccess;
}

hipError_t hipMemPoolDestroy(void *handle) {
  ENTER(hipMemPoolDestroy);
  struct object *pool = find(handle, POOL);
  CHECK(pool, hipErrorInvalidValue);
  unlink_object(pool);
  return hipSuccess;
}

hipError_t hipMemPoolSetAttribute(void *handle, int attribute, void *value) {
  enum { RELEASE_THRESHOLD = 4 };
  ENTER(hipMemPoolSetAttribute);
  struct object *pool = find(handle, POOL);
  CHECK(pool && attribute == RELEASE_THRESHOLD && value, hipErrorInvalidValue);
  pool->size = *(uint64_t *)value;
  return hipSuccess;
}

hipError_t hipMemPoolGetAttribute(void *handle, int attribute, void *value) {
  enum { RESERVED_NOW = 5, USED_NOW = 7 };
  ENTER(hipMemPoolGetAttribute);
  const struct object *pool = find(handle, POOL);
  CHECK(pool && (attribute == RESERVED_NOW || attribute == USED_NOW) && value, hipErrorInvalidValue);
  *(uint64_t *)value = used_of(pool) + (attribute == RESERVED_NOW ? pool->unused : 0);
  return hipSuccess;
}

hipError_t hipMemGetInfo(size_t *unused, size_t *total) {
  ENTER(hipMemGetInfo);
  if (total) *total = device_memory;
  if (unused) *unused = device_memory - allocated(current_device) - kept(current_device);
  return hipSuccess;
}

hipError_t hipMemPoolTrimTo(void *handle, size_t least) {
  ENTER(hipMemPoolTrimTo);
  struct object *pool = find(handle, POOL);
  CHECK(pool, hipErrorInvalidValue);
  trim_pool(pool, least);
  return hipSuccess;
}

/* The release threshold of a device's newest pool, 0 if it has none. */
uint64_t hip_double_release_threshold(int device) {
  uint64_t threshold = 0;
  pthread_mutex_lock(&books);
  for (struct object *o = objects; o && !threshold; o = o->next)
    if (o->kind == POOL && o->device == device) threshold = o->size;
  pthread_mutex_unlock(&books);
  return threshold;
}

hipError_t hipMallocFromPoolAsync(void **address, size_t size, void *handle, void *stream) {
  ENTER(hipMallocFromPoolAsync);
  RESOLVE(stream, target);
  struct object *pool = find(handle, POOL);
  CHECK(pool && target.device == pool->device, hipErrorInvalidValue);
  const hipError_t refused = refuse_capture(target);
  return refused ? refused : allocate(address, size, pool->device, pool);
}

hipError_t hipFreeAsync(void *address, void *stream) {
  ENTER(hipFreeAsync);
  RESOLVE(stream, target);
  struct object *memory = memory_at(address, MEMORY);
  CHECK(memory && memory->owner && target.device == memory->device, hipErrorInvalidValue);
  const hipError_t refused = refuse_capture(target);
  if (refused) return refused;
  const hipError_t status = do_work(given);
  struct object *pool = memory->owner;
  if (find(pool, POOL)) pool->unused += memory->size;
  delete_memory(memory);
  return status;
}

typedef struct {
  int type, device;
  void *devicePointer, *hostPointer;
  int isManaged;
  unsigned allocationFlags;
} hipPointerAttribute_t;

hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *address) {
  enum { UNREGISTERED, HOST, DEVICE };
  ENTER(hipPointerGetAttributes);
  CHECK(attributes, hipErrorInvalidValue);
  const struct object *device = holder(address, 1, MEMORY), *host = holder(address, 1, HOST_MEMORY);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = device ? DEVICE : host ? HOST : UNREGISTERED;
  attributes->device = device ? device->device : host ? host->device : -2;
  attributes->devicePointer = device ? (void *)address : NULL;
  return hipSuccess;
}

/* ---- Code objects ------------------------------------------------------------------------------------------- */

static const struct { const char *arch; unsigned machine; } machines[] = {
    {"gfx906", 0x2f},  {"gfx908", 0x30},  {"gfx90a", 0x3f},  {"gfx942", 0x4c},  {"gfx950", 0x4f},  {"gfx1030", 0x36},
    {"gfx1100", 0x41}, {"gfx1101", 0x46}, {"gfx1102", 0x47}, {"gfx1103", 0x44}, {"gfx1150", 0x43}, {"gfx1151", 0x4a},
    {"gfx1152", 0x55}, {"gfx1153", 0x58}, {"gfx1200", 0x48}, {"gfx1201", 0x4e}, {"gfx1250", 0x49},
};

static int matches_device(unsigned machine) {
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
    if (machines[i].machine == machine) return is_arch(current_device, machines[i].arch);
  return 0;
}

static uint64_t checksum(const unsigned char *bytes, size_t size) {
  uint64_t sum = 14695981039346656037u; /* FNV-1a */
  for (size_t i = 0; i < size; i++) sum = (sum ^ bytes[i]) * 1099511628211u;
  return sum;
}

/* A kernel is there if the dynamic symbol of its descriptor is. */
static int has_kernel(const unsigned char *image, const char *kernel) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  const size_t length = strlen(kernel);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
    const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
    for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
      const char *name = names + symbols[s].st_name;
      if (!strncmp(name, kernel, length) && !strcmp(name + length, ".kd")) return 1;
    }
  }
  return 0;
}

hipError_t hipModuleLoadData(void **module, const void *image) {
  const Elf64_Ehdr *header = image;
  ENTER(hipModuleLoadData);
  const hipError_t unsafe = check_unsafe_call();
  if (unsafe) return unsafe;
  CHECK(module && image, hipErrorInvalidValue);
  CHECK(!memcmp(image, ELFMAG, SELFMAG) && header->e_ident[EI_CLASS] == ELFCLASS64, hipErrorInvalidImage);
  CHECK(header->e_machine == EM_AMDGPU, hipErrorInvalidImage);
  CHECK(matches_device(header->e_flags & 0xff), hipErrorNoBinaryForGpu);
  struct object *loaded = new_object(MODULE, current_device);
  loaded->image = image;
  loaded->size = image_size(image);
  loaded->checksum = checksum(image, loaded->size);
  *module = loaded;
  return hipSuccess;
}

hipError_t hipModuleUnload(void *handle) {
  ENTER(hipModuleUnload);
  struct object *module = find(handle, MODULE), *next;
  CHECK(handle, hipErrorInvalidHandle);
  CHECK(module, hipErrorNotFound);
  const hipError_t status = do_work(given);
  for (struct object *o = objects; o; o = next) {
    next = o->next;
    if (o->kind == FUNCTION && o->owner == module) unlink_object(o);
  }
  unlink_object(module);
  return status;
}

/* HIP reads the image as long as the module lives: whoever loaded it must have kept it as it was. */
static int is_intact(const struct object *module) { return checksum(module->image, module->size) == module->checksum; }

hipError_t hipModuleGetFunction(void **function, void *handle, const char *name) {
  ENTER(hipModuleGetFunction);
  struct object *module = find(handle, MODULE);
  CHECK(function && name && *name, hipErrorInvalidValue);
  CHECK(handle, hipErrorInvalidHandle);
  CHECK(module, hipErrorNotFound);
  CHECK(module->device == current_device, hipErrorInvalidHandle);
  CHECK(is_intact(module), hipErrorInvalidImage);
  CHECK(has_kernel(module->image, name), hipErrorNotFound);
  struct object *found = new_object(FUNCTION, module->device);
  found->owner = module;
  found->name = strdup(name);
  *function = found;
  return hipSuccess;
}

/* ---- Work: what streams run and graphs hold ------------------------------------------------------------------ */

struct node {
  enum { LAUNCH, FILL, COPY_IN, COPY_OUT } work;
  struct node *next;
  struct object *function;
  unsigned grid[3], block[3], lds_bytes;
  void *kernargs; /* the node's own once it is in a graph */
  size_t kernarg_size;
  char *target;
  const char *source;
  size_t size;
  int byte;
  struct target target_stream; /* of work that is not done yet: where, and its number */
  uint64_t number;
};

static on_launch launch_callback;

/* Have launches call a function, in the launching thread, which returns a status; NULL: launches do nothing. */
void hip_double_on_launch(on_launch callback) {
  pthread_mutex_lock(&books);
  launch_callback = callback;
  pthread_mutex_unlock(&books);
}

static hipError_t run_launch(const struct node *n, struct target target) {
  CHECK(find(n->function, FUNCTION), hipErrorInvalidHandle);
  const struct object *module = n->function->owner;
  const on_launch callback = launch_callback;
  if (!callback) return hipSuccess;
  CHECK(is_intact(module), hipErrorInvalidImage);
  /* The callback may use the library, and may wait for a lock of the interpreter that another caller holds. */
  pthread_mutex_unlock(&books);
  const int status = callback(module->image, module->size, n->function->name, n->grid[0], n->grid[1], n->grid[2],
                              n->block[0], n->block[1], n->block[2], n->lds_bytes, n->kernargs, n->kernarg_size,
                              n->function->device, target.stream);
  pthread_mutex_lock(&books);
  return status;
}

static hipError_t run_node(const struct node *n, struct target target) {
  if (n->work == LAUNCH) return run_launch(n, target);
  if (!n->size) return hipSuccess;
  CHECK(n->target && (n->work == FILL || n->source), hipErrorInvalidValue);
  if (n->work == COPY_OUT) {
    CHECK(holder(n->source, n->size, MEMORY), hipErrorInvalidValue);
    CHECK(!touches_device(n->target, n->size), hipErrorInvalidMemcpyDirection);
  } else {
    CHECK(holder(n->target, n->size, MEMORY), hipErrorInvalidValue);
    CHECK(n->work == FILL || !touches_device(n->source, n->size), hipErrorInvalidMemcpyDirection);
  }
  if (n->work == FILL)
    memset(n->target, n->byte, n->size);
  else
    memmove(n->target, n->source, n->size);
  return hipSuccess;
}

static void append(struct object *graph, const struct node *n) {
  struct node *copy = malloc(sizeof *copy);
  *copy = *n;
  copy->next = NULL;
  if (n->kernarg_size) copy->kernargs = memcpy(malloc(n->kernarg_size), n->kernargs, n->kernarg_size);
  *graph->last = copy;
  graph->last = &copy->next;
}

static void delete_node(struct node *n) {
  if (n->kernarg_size) free(n->kernargs);
  free(n);
}

static struct object waiting = {.last = &waiting.first}; /* work that is not done yet */
static pthread_t worker;
static int is_working; /* a launch's callback lets other threads in */

static hipError_t do_work(uint64_t last) {
  hipError_t status = hipSuccess;
  if (is_working && pthread_equal(worker, pthread_self())) return status;
  while (is_working) {
    pthread_mutex_unlock(&books);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pthread_mutex_lock(&books);
  }
  is_working = 1;
  worker = pthread_self();
  while (waiting.first && waiting.first->number <= last && !status) {
    struct node *n = waiting.first;
    if (!(waiting.first = n->next)) waiting.last = &waiting.first;
    status = run_node(n, n->target_stream);
    delete_node(n);
  }
  is_working = 0;
  return status;
}

hipError_t hipStreamQuery(void *handle) {
  ENTER(hipStreamQuery);
  RESOLVE(handle, target);
  const hipError_t refused = refuse_capture(target);
  if (refused) return refused;
  return waiting.first && waiting.first->number <= last_work(target) ? hipErrorNotReady : hipSuccess;
}

/* Do work now or, where that is asked for, when something waits for it. */
static hipError_t do_or_defer(struct node *n, struct target target) {
  if (!defers) return run_node(n, target);
  n->target_stream = target;
  n->number = ++given;
  if (target.stream) target.stream->last_work = given;
  append(&waiting, n);
  return hipSuccess;
}

static hipError_t submit(struct node *n, void *stream) {
  RESOLVE(stream, target);
  const hipError_t implicit = check_default_stream(target);
  if (implicit) return implicit;
  if (!is_captured(target)) return do_or_defer(n, target);
  CHECK(!target.stream->invalidated, hipErrorStreamCaptureInvalidated);
  CHECK(n->work != FILL || n->size, hipErrorInvalidValue);
  append(target.stream->owner, n);
  return hipSuccess;
}

hipError_t hipMemcpyHtoDAsync(void *target, const void *source, size_t size, void *stream) {
  ENTER(hipMemcpyHtoDAsync);
  return submit(&(struct node){.work = COPY_IN, .target = target, .source = source, .size = size}, stream);
}

hipError_t hipMemcpyDtoHAsync(void *target, const void *source, size_t size, void *stream) {
  ENTER(hipMemcpyDtoHAsync);
  return submit(&(struct node){.work = COPY_OUT, .target = target, .source = source, .size = size}, stream);
}

hipError_t hipMemsetD8Async(void *target, unsigned char byte, size_t count, void *stream) {
  ENTER(hipMemsetD8Async);
  return submit(&(struct node){.work = FILL, .target = target, .byte = byte, .size = count}, stream);
}

/* The kernarg buffer and its size, from the list of keys and values that must hold just these. */
static hipError_t read_extra(void **extra, struct node *n) {
  enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2, END = 3 };
  CHECK(extra && (uintptr_t)extra[0] == BUFFER_POINTER && (uintptr_t)extra[2] == BUFFER_SIZE, hipErrorInvalidValue);
  CHECK((uintptr_t)extra[4] == END && extra[1] && extra[3], hipErrorInvalidValue);
  n->kernargs = extra[1];
  n->kernarg_size = *(size_t *)extra[3];
  return hipSuccess;
}

hipError_t hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned lds, void *stream, void **parameters,
                                 void **extra) {
  struct node n = {.work = LAUNCH,
                   .grid = {grid_x, grid_y, grid_z},
                   .block = {block_x, block_y, block_z},
                   .lds_bytes = lds};
  ENTER(hipModuleLaunchKernel);
  RESOLVE(stream, target);
  n.function = find(function, FUNCTION);
  CHECK(n.function, hipErrorInvalidHandle);
  CHECK(target.device == current_device, hipErrorInvalidHandle);
  CHECK(n.function->device == current_device, hipErrorInvalidDevice);
  CHECK(!parameters, hipErrorInvalidValue);
  const size_t threads = (size_t)block_x * block_y * block_z;
  CHECK(grid_x && grid_y && grid_z && threads && threads <= 1024, hipErrorInvalidValue);
  CHECK((uint64_t)grid_x * block_x <= UINT32_MAX, hipErrorInvalidValue);
  CHECK(lds <= lds_bytes(current_device), hipErrorInvalidValue);
  const hipError_t malformed = read_extra(extra, &n);
  return malformed ? malformed : submit(&n, stream);
}

/* ---- Capture and graphs ------------------------------------------------------------------------------------- */

hipError_t hipStreamGetCaptureInfo_v2(void *handle, int *status, void *id, void *graph, void *dependencies,
                                      void *dependency_count) {
  enum { NONE, ACTIVE, INVALIDATED };
  ENTER(hipStreamGetCaptureInfo_v2);
  CHECK(!id && !graph && !dependencies && !dependency_count, hipErrorNotSupported);
  CHECK(status, hipErrorInvalidValue);
  RESOLVE(handle, target);
  *status = !is_captured(target) ? NONE : target.stream->invalidated ? INVALIDATED : ACTIVE;
  return hipSuccess;
}

hipError_t hipStreamBeginCapture(void *handle, int mode) {
  ENTER(hipStreamBeginCapture);
  RESOLVE(handle, target);
  CHECK(target.stream, hipErrorStreamCaptureUnsupported);
  CHECK(mode >= CAPTURE_GLOBAL && mode <= CAPTURE_RELAXED, hipErrorInvalidValue);
  CHECK(!target.stream->owner, hipErrorIllegalState);
  target.stream->owner = new_object(GRAPH, target.device);
  target.stream->mode = mode;
  target.stream->invalidated = 0;
  target.stream->capturing_thread = pthread_self();
  return hipSuccess;
}

static void delete_graph(struct object *graph) {
  for (struct node *n = graph->first, *next; n; n = next) {
    next = n->next;
    delete_node(n);
  }
  unlink_object(graph);
}

hipError_t hipStreamEndCapture(void *handle, void **graph) {
  ENTER(hipStreamEndCapture);
  RESOLVE(handle, target);
  CHECK(target.stream && target.stream->owner, hipErrorIllegalState);
  struct object *captured = target.stream->owner;
  target.stream->owner = NULL;
  *graph = NULL;
  if (target.stream->invalidated) {
    delete_graph(captured);
    return failed(hipErrorStreamCaptureInvalidated);
  }
  *graph = captured;
  return hipSuccess;
}

hipError_t hipGraphInstantiateWithFlags(void **executable, void *handle, unsigned long long flags) {
  ENTER(hipGraphInstantiateWithFlags);
  struct object *graph = find(handle, GRAPH);
  CHECK(graph && executable && !flags, hipErrorInvalidValue);
  struct object *made = new_object(EXECUTABLE, graph->device);
  for (const struct node *n = graph->first; n; n = n->next) append(made, n);
  *executable = made;
  return hipSuccess;
}

hipError_t hipGraphDestroy(void *handle) {
  ENTER(hipGraphDestroy);
  struct object *graph = find(handle, GRAPH);
  CHECK(handle, hipErrorInvalidValue);
  CHECK(graph, hipErrorIllegalState);
  delete_graph(graph);
  return hipSuccess;
}

hipError_t hipGraphExecDestroy(void *handle) {
  ENTER(hipGraphExecDestroy);
  struct object *graph = find(handle, EXECUTABLE);
  CHECK(graph, hipErrorInvalidValue);
  delete_graph(graph);
  return hipSuccess;
}

hipError_t hipGraphLaunch(void *handle, void *stream) {
  ENTER(hipGraphLaunch);
  RESOLVE(stream, target);
  const struct object *graph = find(handle, EXECUTABLE);
  CHECK(graph, hipErrorInvalidValue);
  hipError_t status = refuse_capture(target); /* graphs within graphs are not modelled */
  for (struct node *n = graph->first; n && !status; n = n->next) {
    struct node copy = *n;
    status = do_or_defer(&copy, target);
  }
  return status;
}

/* ---- Events ------------------------------------------------------------------------------------------------- */

hipError_t hipEventCreateWithFlags(void **event, unsigned flags) {
  ENTER(hipEventCreateWithFlags);
  CHECK(event, hipErrorInvalidValue);
  enum { DISABLE_TIMING = 2 };
  CHECK(!flags || flags == DISABLE_TIMING, hipErrorInvalidValue);
  struct object *made = new_object(EVENT, current_device);
  made->has_no_time = flags == DISABLE_TIMING;
  *event = made;
  return hipSuccess;
}

hipError_t hipEventDestroy(void *handle) {
  ENTER(hipEventDestroy);
  CHECK(handle, hipErrorInvalidHandle);
  struct object *event = find(handle, EVENT);
  CHECK(event, hipErrorContextIsDestroyed);
  unlink_object(event);
  return hipSuccess;
}

hipError_t hipEventRecord(void *handle, void *stream) {
  ENTER(hipEventRecord);
  CHECK(handle, hipErrorInvalidHandle);
  RESOLVE(stream, target);
  struct object *event = find(handle, EVENT);
  CHECK(event, hipErrorContextIsDestroyed);
  CHECK(event->device == target.device, hipErrorInvalidHandle);
  const hipError_t implicit = check_default_stream(target);
  if (implicit) return implicit;
  event->captured_by = is_captured(target) ? target.stream->owner : NULL;
  event->last_work = last_work(target);
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  return hipSuccess;
}

hipError_t hipEventSynchronize(void *handle) {
  ENTER(hipEventSynchronize);
  CHECK(handle, hipErrorInvalidHandle);
  const struct object *event = find(handle, EVENT);
  CHECK(event, hipErrorContextIsDestroyed);
  CHECK(!event->captured_by, hipErrorCapturedEvent);
  return do_work(event->last_work);
}

hipError_t hipStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
  ENTER(hipStreamWaitEvent);
  CHECK(event_handle, hipErrorInvalidHandle);
  RESOLVE(handle, target);
  const struct object *event = find(event_handle, EVENT);
  CHECK(event, hipErrorContextIsDestroyed);
  CHECK(!flags, hipErrorInvalidValue);
  const struct object *capture = is_captured(target) ? target.stream->owner : NULL;
  if (event->captured_by == capture) return hipSuccess;
  /* A stream may join another's capture in HIP; that is not modelled. */
  return failed(capture ? hipErrorStreamCaptureIsolation : hipErrorStreamCaptureUnsupported);
}

hipError_t hipEventElapsedTime(float *ms, void *start_handle, void *end_handle) {
  ENTER(hipEventElapsedTime);
  CHECK(ms, hipErrorInvalidValue);
  const struct object *start = find(start_handle, EVENT), *end = find(end_handle, EVENT);
  CHECK(start_handle && end_handle, hipErrorInvalidHandle);
  CHECK(start && end, hipErrorContextIsDestroyed);
  CHECK(start->recorded.tv_sec && end->recorded.tv_sec, hipErrorInvalidHandle);
  CHECK(!start->has_no_time && !end->has_no_time, hipErrorInvalidHandle);
  CHECK(!start->captured_by && !end->captured_by, hipErrorCapturedEvent);
  const long seconds = end->recorded.tv_sec - start->recorded.tv_sec;
  *ms = seconds * 1e3f + (end->recorded.tv_nsec - start->recorded.tv_nsec) * 1e-6f;
  return hipSuccess;
}
