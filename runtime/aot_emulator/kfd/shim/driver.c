// Serves the ioctls of /dev/kfd. Of memory it keeps what was given to whom; the GPU's process is told what is mapped.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

static struct object *objects;
static uint64_t next_handle = 1, next_offset[MAX_DEVICES], in_use[MAX_DEVICES];
static bool queue_used[MAX_DEVICES][QUEUES];
enum { GRANULE = 2 << 20 };  // of offsets in a device's file: what the program may map with large pages

void forget_memory(void) {
    objects = NULL;
    memset(next_offset, 0, sizeof next_offset);
    memset(in_use, 0, sizeof in_use);
    memset(queue_used, 0, sizeof queue_used);
}

static unsigned device_of(uint32_t gpu_id) {
    unsigned i = 0;
    while (i < device_count && devices[i].gpu_id != gpu_id) i++;
    return i;
}

struct object *object_of(uint64_t handle) {
    struct object *found = objects;
    while (found && found->handle != handle) found = found->next;
    return found;
}

static int get_version(struct version *a) {
    a->major = INTERFACE_MAJOR, a->minor = INTERFACE_MINOR;
    return 0;
}

static int create_queue(struct create_queue *a) {
    unsigned device = device_of(a->gpu_id), slot = 0;
    if (device == device_count) return refuse(EINVAL);
    while (slot < QUEUES && queue_used[device][slot]) slot++;
    if (slot == QUEUES) return refuse(ENOMEM);
    queue_used[device][slot] = true;
    a->queue_id = device * QUEUES + slot;
    a->doorbell_offset = DOORBELLS_AT + device * DOORBELL_BYTES + 8 * slot;
    *(volatile uint64_t *)(shared + a->doorbell_offset) = UINT64_MAX;
    tell((struct message){CREATE_QUEUE, device, {a->queue_id | (uint64_t)a->type << 32, a->ring, a->ring_size, a->read_pointer,
                          a->write_pointer, a->doorbell_offset, a->save_address}});
    return 0;
}

static int destroy_queue(struct destroy_queue *a) {
    if (a->queue_id >= device_count * QUEUES || !queue_used[a->queue_id / QUEUES][a->queue_id % QUEUES]) return refuse(EINVAL);
    queue_used[a->queue_id / QUEUES][a->queue_id % QUEUES] = false;
    tell((struct message){DESTROY_QUEUE, a->queue_id / QUEUES, {a->queue_id}});
    return 0;
}

static int get_clock_counters(struct clock_counters *a) {
    a->cpu = nanoseconds(CLOCK_MONOTONIC_RAW), a->gpu = a->cpu / 10;
    a->system = nanoseconds(CLOCK_BOOTTIME), a->system_frequency = 1000000000;
    return 0;
}

static int get_process_apertures_new(struct apertures *a) {
    struct aperture *to = (void *)a->array;
    for (unsigned i = 0; to && i < a->count && i < device_count; i++)
        to[i] = (struct aperture){1ull << 48, (1ull << 48) + UINT32_MAX, 2ull << 48, (2ull << 48) + UINT32_MAX,
                                  1 << 14, (1ull << 47) - 1, devices[i].gpu_id, 0};
    a->count = device_count;
    return 0;
}

static int alloc_memory_of_gpu(struct alloc_memory *a) {
    unsigned device = device_of(a->gpu_id);
    if (device == device_count) return refuse(EINVAL);
    bool is_vram = a->flags & MEMORY_VRAM;
    if (is_vram && a->size > devices[device].memory_bytes - in_use[device]) return refuse(ENOMEM);
    if (a->flags & MEMORY_DOORBELL) a->offset = DOORBELLS_AT + device * DOORBELL_BYTES;
    else if (a->flags & MEMORY_MMIO) a->offset = MMIO_AT;
    else if (!(a->flags & MEMORY_USERPTR)) {
        uint64_t size = (a->size + GRANULE - 1) & ~(uint64_t)(GRANULE - 1);
        if (next_offset[device] + size > MEMORY_BYTES) return refuse(ENOMEM);
        a->offset = next_offset[device];
        next_offset[device] += size;
        if (is_vram) in_use[device] += a->size;
    }
    struct object *made = malloc(sizeof *made);
    if (!made) return refuse(ENOMEM);
    a->handle = (uint64_t)a->gpu_id << 32 | next_handle++;
    *made = (struct object){a->handle, a->va, a->size, a->offset, a->flags, device, objects};
    objects = made;
    return 0;
}

static int free_memory_of_gpu(struct memory_name *a) {
    struct object **at = &objects, *found;
    while (*at && (*at)->handle != a->handle) at = &(*at)->next;
    if (!(found = *at)) return refuse(EINVAL);
    *at = found->next;
    for (unsigned i = 0; i < device_count; i++) tell((struct message){UNMAP, i, {found->va, found->size}});
    if (found->flags & MEMORY_VRAM) in_use[found->device] -= found->size;
    if (found->flags & (MEMORY_VRAM | MEMORY_GTT))
        fallocate(memory_fds[found->device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, found->offset, found->size);
    free(found);
    return 0;
}

static int each_device(struct map_memory *a, bool is_mapped) {
    struct object *found = object_of(a->handle);
    const uint32_t *gpu_ids = (void *)a->gpu_ids;
    if (!found || !gpu_ids) return refuse(EINVAL);
    for (; a->done < a->count; a->done++) {
        unsigned device = device_of(gpu_ids[a->done]);
        if (device == device_count) return refuse(EINVAL);
        if (found->flags & (MEMORY_DOORBELL | MEMORY_MMIO)) continue;
        enum operation operation = !is_mapped ? UNMAP : found->flags & MEMORY_USERPTR ? MAP_USER : MAP;
        tell((struct message){operation, device, {found->va, found->size, found->offset, found->device, found->flags}});
    }
    return 0;
}
static int map_memory_to_gpu(struct map_memory *a) { return each_device(a, true); }
static int unmap_memory_from_gpu(struct map_memory *a) { return each_device(a, false); }

static int get_tile_config(struct tile_config *a) {
    a->n_tiles = a->n_macro_tiles = a->address_config = a->banks = a->ranks = 0;
    return 0;
}

static int set_xnack_mode(struct xnack_mode *a) {
    if (a->enabled > 0) return refuse(EPERM);
    a->enabled = 0;
    return 0;
}

static int available_memory(struct available_memory *a) {
    unsigned device = device_of(a->gpu_id);
    if (device == device_count) return refuse(EINVAL);
    a->available = devices[device].memory_bytes - in_use[device];
    return 0;
}

static int export_dmabuf(struct export_dmabuf *a) {  // a file that holds the handle, which render.c reads
    if (!object_of(a->handle)) return refuse(EINVAL);
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &a->handle, sizeof a->handle) != (ssize_t)sizeof a->handle) return refuse(ENOMEM);
    a->fd = fd;
    return 0;
}

static int runtime_enable(struct runtime_enable *a) {
    tell((struct message){RUNTIME, 0, {a->mode & 1 ? a->r_debug : 0}});
    a->capabilities = 0;
    return 0;
}

static int set_event_ioctl(struct event_name *a) { return set_event(a->event_id); }
static int reset_event_ioctl(struct event_name *a) { return reset_event(a->event_id); }
static int no_effect(void *a) { (void)a; return 0; }  // on what is emulated

struct no_argument { char none; };
typedef int (*handler)(void *);
static const struct ioctl { const char *name; handler serve; size_t size; } ioctls[] = {
    // The table of docs/howto/emulate.md is held to this one.
#define SERVED(number, name, function, type) [number] = {#name, (handler)function, sizeof(struct type)}
#define REFUSED(number, name) [number] = {#name, NULL, 0}
    SERVED(0x01, GET_VERSION, get_version, version),
    SERVED(0x02, CREATE_QUEUE, create_queue, create_queue),
    SERVED(0x03, DESTROY_QUEUE, destroy_queue, destroy_queue),
    SERVED(0x04, SET_MEMORY_POLICY, no_effect, no_argument),
    SERVED(0x05, GET_CLOCK_COUNTERS, get_clock_counters, clock_counters),
    REFUSED(0x06, GET_PROCESS_APERTURES),
    SERVED(0x07, UPDATE_QUEUE, no_effect, no_argument),
    SERVED(0x08, CREATE_EVENT, create_event, create_event),
    SERVED(0x09, DESTROY_EVENT, no_effect, no_argument),
    SERVED(0x0A, SET_EVENT, set_event_ioctl, event_name),
    SERVED(0x0B, RESET_EVENT, reset_event_ioctl, event_name),
    SERVED(0x0C, WAIT_EVENTS, wait_events, wait_events),
    SERVED(0x11, SET_SCRATCH_BACKING_VA, no_effect, no_argument),
    SERVED(0x12, GET_TILE_CONFIG, get_tile_config, tile_config),
    SERVED(0x13, SET_TRAP_HANDLER, no_effect, no_argument),
    SERVED(0x14, GET_PROCESS_APERTURES_NEW, get_process_apertures_new, apertures),
    SERVED(0x15, ACQUIRE_VM, no_effect, no_argument),
    SERVED(0x16, ALLOC_MEMORY_OF_GPU, alloc_memory_of_gpu, alloc_memory),
    SERVED(0x17, FREE_MEMORY_OF_GPU, free_memory_of_gpu, memory_name),
    SERVED(0x18, MAP_MEMORY_TO_GPU, map_memory_to_gpu, map_memory),
    SERVED(0x19, UNMAP_MEMORY_FROM_GPU, unmap_memory_from_gpu, map_memory),
    SERVED(0x1A, SET_CU_MASK, no_effect, no_argument),
    REFUSED(0x1B, GET_QUEUE_WAVE_STATE),
    REFUSED(0x1C, GET_DMABUF_INFO),
    REFUSED(0x1D, IMPORT_DMABUF),
    REFUSED(0x1E, ALLOC_QUEUE_GWS),
    REFUSED(0x1F, SMI_EVENTS),
    REFUSED(0x20, SVM),
    SERVED(0x21, SET_XNACK_MODE, set_xnack_mode, xnack_mode),
    REFUSED(0x22, CRIU_OP),
    SERVED(0x23, AVAILABLE_MEMORY, available_memory, available_memory),
    SERVED(0x24, EXPORT_DMABUF, export_dmabuf, export_dmabuf),
    SERVED(0x25, RUNTIME_ENABLE, runtime_enable, runtime_enable),
    REFUSED(0x26, DBG_TRAP),
    REFUSED(0x27, CREATE_PROCESS),
    REFUSED(0x28, PROFILER),
};
enum { KNOWN = sizeof ioctls / sizeof *ioctls };

int serve(unsigned long request, void *argument) {
    static bool said[256];
    unsigned number = request & 0xFF, given = request >> 16 & 0x3FFF;
    const struct ioctl *found = number < KNOWN && ioctls[number].name ? &ioctls[number] : NULL;
    if (!found || !found->serve) {
        if (!said[number]) {
            said[number] = true;
            if (found) complain("the ioctl AMDKFD_IOC_%s (%#x) of /dev/kfd is not served", found->name, number);
            else complain("the ioctl %#x of /dev/kfd is not served", number);
        }
        return refuse(EOPNOTSUPP);
    }
    // A program may know an older structure, or a newer one: as in the kernel, what it lacks is 0.
    union { uint64_t aligned; char bytes[256]; } copy = {0};
    size_t size = found->size < given ? found->size : given;
    memcpy(copy.bytes, argument, size);
    bool waits = number == 0x0C;  // others must be served meanwhile
    if (!waits) pthread_mutex_lock(&lock);
    int status = found->serve(copy.bytes), code = errno;
    if (!waits) pthread_mutex_unlock(&lock);
    memcpy(argument, copy.bytes, size);
    errno = code;
    return status;
}
