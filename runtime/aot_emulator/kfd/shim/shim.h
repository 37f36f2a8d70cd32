// The library that a HIP program is started with (LD_PRELOAD) so that AMD's own ROCr finds GPUs where there is none.
//
//   files.c    /dev/kfd, /dev/dri/renderD*, and the folders of sysfs that describe GPUs
//   driver.c   the ioctls of /dev/kfd
//   events.c   those of them that are about events, and faults
//   render.c   the functions of libdrm and libdrm_amdgpu that ROCr calls
//
// What a GPU does is done by another process, the GPU's (`aot_emulator.kfd.gpu`). The two share memory: a page with
// doorbells and events, and for each device a file with all the memory that the driver gives. All else that process is
// told over a socket, in messages of one fixed size; the order of a message and a doorbell is that of the program.
// The names and layouts that both sides rely on are in `aot_emulator.kfd.protocol`.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "abi.h"

#define SHOWN __attribute__((visibility("default")))  // to the program, in place of another library's

enum { MAX_DEVICES = 16, MAX_EVENTS = 4096, QUEUES = 256 };

// The file that is shared besides memory.
enum {
    MMIO_AT = 0, FAULT_AT = 0x1000,
    DOORBELLS_AT = 0x10000, DOORBELL_BYTES = 0x2000,  // of each device
    RAISED_AT = 0x40000,                              // by the GPU: a count of each event
    SHARED_BYTES = 0x50000,
};
#define MEMORY_BYTES (1ull << 40)  // of each device's file, which is sparse

enum fault_kind { NO_FAULT, MEMORY_FAULT, HANG };
struct fault { uint64_t address; uint32_t kind, device, read_only, pad; };

enum operation { HELLO = 1, MAP, MAP_USER, UNMAP, CREATE_QUEUE, DESTROY_QUEUE, RUNTIME };
struct message { uint32_t operation, device; uint64_t values[7]; };

struct device {  // as the file `devices` lists them
    uint32_t gpu_id, pci_id, family, pad;
    uint64_t memory_bytes, engine_khz, memory_khz;
    char name[64];
};

struct object {  // memory that the driver gave
    uint64_t handle, va, size, offset;
    uint32_t flags, device;
    struct object *next;
};

extern pthread_mutex_t lock;
extern struct device devices[MAX_DEVICES];
extern unsigned device_count;
extern int memory_fds[MAX_DEVICES];
extern char *shared;

// files.c
const char *folder(void);                    // of this emulated machine; NULL outside of one
bool open_machine(void);                     // read the list of devices
bool peer_is_gone(void);                     // the GPU's process has ended
void tell(struct message message);
int duplicate(int fd);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

// driver.c
int serve(unsigned long request, void *argument);
void forget_memory(void);
struct object *object_of(uint64_t handle);

// events.c
int create_event(struct create_event *event);
void forget_events(void);
int set_event(uint32_t id);
int reset_event(uint32_t id);
int wait_events(struct wait_events *wait);
uint64_t nanoseconds(int clock);

static inline int refuse(int code) { errno = code; return -1; }
