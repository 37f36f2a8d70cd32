/* For the double and for the library of AMD's that is watched: the functions whose calls tests count and make fail. */
#pragma once
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#define FUNCTIONS(X)                                                                                             \
  X(hipGetDeviceCount) X(hipGetDevice) X(hipSetDevice) X(hipGetDevicePropertiesR0600) X(hipDeviceGetAttribute)   \
  X(hipRuntimeGetVersion) X(hipGetLastError) X(hipMalloc) X(hipFree) X(hipHostMalloc) X(hipHostFree)   \
  X(hipMemPoolCreate) X(hipMemPoolDestroy) X(hipMemPoolSetAttribute) X(hipMemPoolGetAttribute) X(hipMemPoolTrimTo) \
  X(hipMemGetInfo)                                                                                               \
  X(hipMallocFromPoolAsync) X(hipFreeAsync)                                                                      \
  X(hipMemcpyHtoDAsync) X(hipMemcpyDtoHAsync) X(hipMemsetD8Async)                                                \
  X(hipPointerGetAttributes) X(hipModuleLoadData) X(hipModuleUnload) X(hipModuleGetFunction)                     \
  X(hipModuleLaunchKernel) X(hipStreamCreateWithFlags) X(hipStreamDestroy) X(hipStreamSynchronize)               \
  X(hipStreamQuery)                                                                                              \
  X(hipStreamWaitEvent) X(hipStreamGetCaptureInfo_v2) X(hipStreamBeginCapture)             \
  X(hipStreamEndCapture) X(hipThreadExchangeStreamCaptureMode) X(hipEventCreateWithFlags) X(hipEventDestroy)     \
  X(hipEventRecord) X(hipEventSynchronize) X(hipEventElapsedTime) X(hipGraphInstantiateWithFlags)                \
  X(hipGraphDestroy) X(hipGraphExecDestroy) X(hipGraphLaunch)

enum {
#define X(function) F_##function,
  FUNCTIONS(X)
#undef X
  FUNCTION_COUNT
};

static struct {
  const char *name;
  long calls, failures_left; /* failures_left < 0: every call fails */
  int failure; /* a status */
} functions[] = {
#define X(function) {.name = #function},
    FUNCTIONS(X)
#undef X
};

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

/* Count a call, and lock the books: the status that it is to fail with, or 0. */
static int enter(int function) {
  pthread_mutex_lock(&books);
  functions[function].calls++;
  if (functions[function].failures_left == 0) return 0;
  if (functions[function].failures_left > 0) functions[function].failures_left--;
  return functions[function].failure;
}

static int function_named(const char *name) {
  for (int i = 0; i < FUNCTION_COUNT; i++)
    if (!strcmp(functions[i].name, name)) return i;
  return -1;
}

/* Make the next `count` calls of a function return `status` and do nothing else; count -1: every call from now on.
 * Returns 0, or -1 for a function that the double does not have. */
int hip_double_fail(const char *name, int status, int count) {
  const int function = function_named(name);
  if (function < 0) return -1;
  pthread_mutex_lock(&books);
  functions[function].failure = status;
  functions[function].failures_left = count;
  pthread_mutex_unlock(&books);
  return 0;
}

/* How often a function was called, failed calls included; -1 for a function that the double does not have. */
long hip_double_calls(const char *name) {
  const int function = function_named(name);
  return function < 0 ? -1 : functions[function].calls;
}

/* A test's function that each launch calls, in the launching thread: it returns a status. */
typedef int (*on_launch)(const void *image, size_t image_size, const char *kernel, unsigned grid_x, unsigned grid_y,
                         unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                         const void *kernargs, size_t kernarg_size, int device, void *stream);

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* The API is not told an image's size: it is where the last of what the ELF headers speak of ends. */
static size_t image_size(const unsigned char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Phdr *segments = (const Elf64_Phdr *)(image + header->e_phoff);
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  size_t end = sizeof *header;
  end = larger(end, header->e_phoff + header->e_phnum * sizeof *segments);
  end = larger(end, header->e_shoff + header->e_shnum * sizeof *sections);
  for (int i = 0; i < header->e_phnum; i++) end = larger(end, segments[i].p_offset + segments[i].p_filesz);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS) end = larger(end, sections[i].sh_offset + sections[i].sh_size);
  return end;
}
