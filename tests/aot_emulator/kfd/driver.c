// A program that uses /dev/kfd by its ioctls alone, as ROCr does: argv[1] says what it tries, argv[2] how many ms it
// waits. Layouts: linux/kfd_ioctl.h.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL(number, type, ...) ({ struct type a_ = {__VA_ARGS__}; \
    int s_ = ioctl(kfd, _IOWR('K', number, struct type), &a_); if (s_) { perror(#number); exit(9); } a_; })
struct version { uint32_t major, minor; };
struct alloc { uint64_t va, size, handle, offset; uint32_t gpu, flags; };
struct map { uint64_t handle, ids; uint32_t count, done; };
struct queue { uint64_t ring, write, read, doorbell; uint32_t size, gpu, type, percentage, priority, id;
               uint64_t eop, eop_size, save; uint32_t save_size, stack, engine, metadata; };
struct event { uint64_t page; uint32_t trigger, type, resets, node, id, slot; };
struct waited { uint64_t data[5]; uint32_t id, pad; };
struct waiting { uint64_t events; uint32_t count, all, timeout, result; };
struct apertures { uint64_t array; uint32_t count, pad; };
struct aperture { uint64_t bounds[6]; uint32_t gpu, pad; };
struct available { uint64_t bytes; uint32_t gpu, pad; };
struct svm { uint64_t start, size; uint32_t op, count; };

static int kfd, render;
static uint32_t gpu;

static void *allocate(uint64_t size, uint32_t flags) {  // of the driver, mapped for the program and the GPU alike
    void *va = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct alloc given = CALL(0x16, alloc, (uint64_t)va, size, 0, 0, gpu, flags);
    void *here = mmap(va, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, render, (off_t)given.offset);
    CALL(0x18, map, given.handle, (uint64_t)&gpu, 1, 0);
    return here == va ? va : NULL;
}

struct signal { int64_t kind, value; uint64_t mailbox; uint32_t event, pad; uint64_t start, end, queue, pad2; };

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "fork")) {  // the parent's memory, queue and event are none of the child's
        kfd = open("/dev/kfd", O_RDWR), render = open("/dev/dri/renderD128", O_RDWR);
        struct aperture found[8];
        CALL(0x14, apertures, (uint64_t)found, 8);
        gpu = found[0].gpu;
        strcpy(allocate(1 << 20, 1), "the parent's");
        CALL(8, event, 0, 0, 0, 1);
        int status = 0;
        if (fork()) return wait(&status) < 0 ? 8 : WEXITSTATUS(status);
        argv[1] = "copy";
    }
    kfd = open("/dev/kfd", O_RDWR), render = open("/dev/dri/renderD128", O_RDWR);
    if (kfd < 0 || render < 0) return 3;
    struct version version = CALL(1, version, 0);
    struct aperture found[8];
    struct apertures all = CALL(0x14, apertures, (uint64_t)found, 8);
    gpu = found[0].gpu;
    printf("version %u.%u, %u GPUs\n", version.major, version.minor, all.count);
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        struct svm svm = {0};
        for (int i = 0; i < 2; i++) printf("svm %d\n", ioctl(kfd, _IOWR('K', 0x20, struct svm), &svm));
        printf("unknown %d\n", ioctl(kfd, _IO('K', 0x7F)));
        return 0;
    }
    char *memory = allocate(1 << 20, 1), *rings = allocate(1 << 16, 2);
    struct available left = CALL(0x23, available, 0, gpu);
    printf("left %llu\n", (unsigned long long)left.bytes);
    struct signal *signal = (void *)(rings + 0x8000);
    uint64_t *pointers = (void *)(rings + 0x9000), *mailbox = (void *)(rings + 0xA000);
    int is_served = strcmp(argv[1], "agent");
    struct event event = CALL(8, event, 0, 0, is_served ? 0 : 3, 1);  // of a signal, or of a hardware exception
    *signal = (struct signal){1, 1, (uint64_t)mailbox, event.id};
    struct queue queue = CALL(2, queue, (uint64_t)rings, (uint64_t)(pointers + 7), (uint64_t)(pointers + 16), 0, 0x1000,
                              gpu, argc > 1 && !strcmp(argv[1], "copy") ? 1 : 2, 100, 0);
    char *bells = mmap(NULL, 0x2000, PROT_READ | PROT_WRITE, MAP_SHARED, kfd, (off_t)(queue.doorbell & ~0x1FFFull));
    volatile uint64_t *bell = (void *)(bells + (queue.doorbell & 0x1FFF));
    uint64_t at = (uint64_t)memory;
    if (!strcmp(argv[1], "copy")) {
        strcpy(memory, "copied by the engine");
        uint64_t to = at + 5000, value = (uint64_t)&signal->value;
        uint32_t commands[] = {1, 99, 0, (uint32_t)at, at >> 32, (uint32_t)to, to >> 32,                       // copy
                               10 | 47u << 25, (uint32_t)value, value >> 32, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0,  // signal - 1
                               6, event.id};                                                                  // trap
        memcpy(rings, commands, sizeof commands);
        *bell = sizeof commands;
    } else {
        uint16_t header = is_served ? 3 : 4;  // a barrier-AND, an agent dispatch
        memcpy(rings + 56, &(uint64_t){(uint64_t)signal}, 8);
        memcpy(rings, &header, 2);
        pointers[7] = 1;
        *bell = 0;
    }
    struct waited waited = {.id = event.id};
    struct waiting wait = CALL(0x0C, waiting, (uint64_t)&waited, 1, 0, argc > 2 ? atoi(argv[2]) : 20000);
    printf("waited %u, signal %lld, %s\n", wait.result, (long long)signal->value, memory + 5000);
    return 0;
}
