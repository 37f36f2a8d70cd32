// The functions of libdrm and libdrm_amdgpu that ROCr calls, by their own names and types (xf86drm.h, amdgpu.h).
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

enum { MAP_OPERATION = 1, GEM_MMAP = 1 };  // AMDGPU_VA_OP_MAP, DRM_AMDGPU_GEM_MMAP
enum { COUNTER_KHZ = 100000 };

// The render node that a file descriptor is of: all of one device are the same file.
static unsigned node_of(int fd) {
    struct stat given, own;
    unsigned i = 0;
    if (fstat(fd, &given)) return device_count;
    while (i < device_count && (fstat(memory_fds[i], &own) || own.st_ino != given.st_ino)) i++;
    return i;
}

SHOWN int drmOpenRender(int minor) {
    unsigned number = (unsigned)minor - 128;
    return open_machine() && number < device_count ? duplicate(memory_fds[number]) : -ENOENT;
}
SHOWN int drmClose(int fd) { return close(fd); }

SHOWN int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, struct device **device) {
    unsigned i = node_of(fd);
    if (i == device_count) return -ENODEV;
    *major = 3, *minor = 57, *device = &devices[i];
    return 0;
}
SHOWN int amdgpu_device_deinitialize(struct device *device) { (void)device; return 0; }
SHOWN int amdgpu_device_get_fd(struct device *device) { return memory_fds[device - devices]; }
SHOWN const char *amdgpu_get_marketing_name(struct device *device) { return device->name; }

SHOWN int amdgpu_query_gpu_info(struct device *device, struct drm_gpu_info *info) {
    *info = (struct drm_gpu_info){.asic_id = device->pci_id, .family = device->family, .engine_clock = device->engine_khz,
                                  .memory_clock = device->memory_khz, .counter_frequency = COUNTER_KHZ};
    return 0;
}

// Buffers that were exported as dma-bufs (driver.c) and are imported again, for memory that is mapped where one likes.
SHOWN int amdgpu_bo_import(struct device *device, int type, uint32_t fd, struct drm_import *to) {
    (void)device, (void)type;
    uint64_t handle;
    if (pread((int)fd, &handle, sizeof handle, 0) != (ssize_t)sizeof handle) return -EINVAL;
    pthread_mutex_lock(&lock);
    struct object *found = object_of(handle);
    if (found) *to = (struct drm_import){found, found->size};
    pthread_mutex_unlock(&lock);
    return found ? 0 : -ENOENT;
}
SHOWN int amdgpu_bo_free(struct object *buffer) { (void)buffer; return 0; }
SHOWN int amdgpu_bo_export(struct object *buffer, int type, uint32_t *to) {
    (void)type;
    *to = (uint32_t)buffer->handle;
    return 0;
}
SHOWN int amdgpu_bo_cpu_map(struct object *buffer, void **to) {
    *to = mmap(NULL, buffer->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fds[buffer->device], (off_t)buffer->offset);
    return *to == MAP_FAILED ? -ENOMEM : 0;
}
SHOWN int amdgpu_bo_va_op(struct object *buffer, uint64_t offset, uint64_t size, uint64_t va, uint64_t flags, uint32_t operation) {
    (void)flags;
    for (unsigned i = 0; i < device_count; i++)
        tell((struct message){operation == MAP_OPERATION ? MAP : UNMAP, i,
                              {va, size, buffer->offset + offset, buffer->device, buffer->flags}});
    return 0;
}
SHOWN int drmCommandWriteRead(int fd, unsigned long command, void *data, unsigned long size) {
    (void)size;
    unsigned node = node_of(fd);
    if (command != GEM_MMAP || node == device_count) return -EINVAL;
    uint64_t *word = data;  // a handle in, an offset out
    pthread_mutex_lock(&lock);
    struct object *found = object_of((uint64_t)devices[node].gpu_id << 32 | (uint32_t)*word);
    if (found) *word = found->offset;
    pthread_mutex_unlock(&lock);
    return found ? 0 : -EINVAL;
}
