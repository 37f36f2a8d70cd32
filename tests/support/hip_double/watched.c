/* AMD's own libamdhip64, watched: calls are counted, fail where a test asks for that, and books are kept of what they
 * make and destroy. Tests look into these as they do into the double's; all else is the library's, which this one is
 * linked to, and where functions that are not listed are found.
 *
 * Every argument is an integer or an address. So one signature passes on the calls of all functions: as many words as
 * the longest has, the last of which are meaningless to the others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "common.h"

typedef uint64_t word;
typedef int (*passed_on)(word, word, word, word, word, word, word, word, word, word, word);

static void *library;
static passed_on originals[FUNCTION_COUNT];

__attribute__((constructor)) static void find_originals(void) {
  library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; i < FUNCTION_COUNT; i++)
    if (!(originals[i] = (passed_on)dlsym(library, functions[i].name))) abort();
}

/* The library reads its own variables when it is first used. */
void hip_double_read_environment(void) {}

/* ---- Books -------------------------------------------------------------------------------------------------- */

enum kind { NONE, MEMORY, HOST_MEMORY, POOL, MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXECUTABLE, KIND_COUNT };
static const char *const kind_names[] = {"",         "memory", "host_memory", "pool",  "module",
                                         "function", "stream", "event",       "graph", "executable"};

struct object {
  enum kind kind;
  word handle;
  int device;
  word size;  /* of memory */
  word owner; /* the module of a function */
  const void *image;
  char *name;
  struct object *next;
};

static struct object *objects;

static const struct { enum kind makes, ends; int made; } effects[FUNCTION_COUNT] = {
    [F_hipMalloc] = {.makes = MEMORY},
    [F_hipMallocFromPoolAsync] = {.makes = MEMORY},
    [F_hipFree] = {.ends = MEMORY},
    [F_hipFreeAsync] = {.ends = MEMORY},
    [F_hipHostMalloc] = {.makes = HOST_MEMORY},
    [F_hipHostFree] = {.ends = HOST_MEMORY},
    [F_hipMemPoolCreate] = {.makes = POOL},
    [F_hipMemPoolDestroy] = {.ends = POOL},
    [F_hipModuleLoadData] = {.makes = MODULE},
    [F_hipModuleUnload] = {.ends = MODULE},
    [F_hipModuleGetFunction] = {.makes = FUNCTION},
    [F_hipStreamCreateWithFlags] = {.makes = STREAM},
    [F_hipStreamDestroy] = {.ends = STREAM},
    [F_hipEventCreateWithFlags] = {.makes = EVENT},
    [F_hipEventDestroy] = {.ends = EVENT},
    [F_hipStreamEndCapture] = {.makes = GRAPH, .made = 1},
    [F_hipGraphDestroy] = {.ends = GRAPH},
    [F_hipGraphInstantiateWithFlags] = {.makes = EXECUTABLE},
    [F_hipGraphExecDestroy] = {.ends = EXECUTABLE},
};

static struct object *find(enum kind kind, word handle) {
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == kind && o->handle == handle) return o;
  return NULL;
}

static struct object *taken(enum kind kind, word handle) {
  for (struct object **link = &objects, *o; (o = *link); link = &o->next)
    if (o->kind == kind && o->handle == handle) {
      *link = o->next;
      return o;
    }
  return NULL;
}

static void put(struct object *object) {
  object->next = objects;
  objects = object;
}

static void note(int function, const word *arguments) {
  const enum kind kind = effects[function].makes;
  const word handle = *(word *)arguments[effects[function].made];
  if (!handle || find(kind, handle)) return;
  struct object *made = calloc(1, sizeof *made);
  *made = (struct object){.kind = kind, .handle = handle};
  originals[F_hipGetDevice]((word)&made->device, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  if (kind == MEMORY) made->size = arguments[1];
  if (kind == MODULE) made->image = (const void *)arguments[1];
  if (kind == FUNCTION) {
    made->owner = arguments[1];
    made->name = strdup((const char *)arguments[2]);
  }
  put(made);
}

static void drop(struct object *object) {
  for (struct object *o = objects, *next; o && object->kind == MODULE; o = next) {
    next = o->next;
    if (o->kind == FUNCTION && o->owner == object->handle) drop(taken(FUNCTION, o->handle));
  }
  free(object->name);
  free(object);
}

/* ---- Launches ----------------------------------------------------------------------------------------------- */

static on_launch launch_callback;

/* Have a function called before each launch, which may give a status: the launch then fails with it. */
void hip_double_on_launch(on_launch callback) { launch_callback = callback; }

static int announce(const word *a) {
  pthread_mutex_lock(&books);
  const struct object *function = find(FUNCTION, a[0]), *module = function ? find(MODULE, function->owner) : NULL;
  const void *image = module ? module->image : NULL;
  pthread_mutex_unlock(&books);
  void **extra = (void **)a[10];
  if (!launch_callback || !image || !extra) return 0;
  return launch_callback(image, image_size(image), function->name, a[1], a[2], a[3], a[4], a[5], a[6], a[7], extra[1],
                         *(size_t *)extra[3], function->device, (void *)a[8]);
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

static int call(int function, const word *a) {
  const int injected = enter(function);
  /* What ends is taken from the books before its handle can be another's. */
  struct object *ending = injected || !effects[function].ends ? NULL : taken(effects[function].ends, a[0]);
  pthread_mutex_unlock(&books);
  if (injected) return injected;
  int status = function == F_hipModuleLaunchKernel ? announce(a) : 0;
  if (!status) status = originals[function](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
  pthread_mutex_lock(&books);
  if (ending && status) put(ending);
  if (ending && !status) drop(ending);
  if (effects[function].makes && !status) note(function, a);
  pthread_mutex_unlock(&books);
  return status;
}

#define X(name)                                                                                          \
  int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k) {     \
    return call(F_##name, (const word[]){a, b, c, d, e, f, g, h, i, j, k});                              \
  }
FUNCTIONS(X)
#undef X

/* ---- For tests ---------------------------------------------------------------------------------------------- */

long hip_double_alive(const char *kind) {
  long count = -1;
  pthread_mutex_lock(&books);
  for (int i = 1; i < KIND_COUNT; i++) {
    if (strcmp(kind_names[i], kind)) continue;
    count = 0;
    for (struct object *o = objects; o; o = o->next) count += (int)o->kind == i;
  }
  pthread_mutex_unlock(&books);
  return count;
}

size_t hip_double_allocated(int device) {
  size_t total = 0;
  pthread_mutex_lock(&books);
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == MEMORY && o->device == device) total += o->size;
  pthread_mutex_unlock(&books);
  return total;
}

/* An attribute of a device's newest pool; 0 if it has none. */
static word pool_figure(int device, int attribute) {
  word pool = 0, value = 0;
  pthread_mutex_lock(&books);
  for (struct object *o = objects; o && !pool; o = o->next)
    if (o->kind == POOL && o->device == device) pool = o->handle;
  pthread_mutex_unlock(&books);
  if (pool) originals[F_hipMemPoolGetAttribute](pool, attribute, (word)&value, 0, 0, 0, 0, 0, 0, 0, 0);
  return value;
}

enum { RELEASE_THRESHOLD = 4, RESERVED_NOW = 5, USED_NOW = 7 };

size_t hip_double_kept(int device) { return pool_figure(device, RESERVED_NOW) - pool_figure(device, USED_NOW); }

uint64_t hip_double_release_threshold(int device) { return pool_figure(device, RELEASE_THRESHOLD); }
