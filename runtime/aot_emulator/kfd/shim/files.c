// Opens what is asked for under the names of the driver's files, and connects to the process that plays the GPU.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim.h"

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct device devices[MAX_DEVICES];
unsigned device_count;
int memory_fds[MAX_DEVICES];
char *shared;
static int kfd_fd = -1, peer = -1;
static bool known;  // the list of devices
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

const char *folder(void) { return getenv("AOTBUILD_KFD"); }

void complain(const char *format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    dprintf(2, "aotbuild emulator: %s\n", text);
}

int duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

static int real_open(const char *path, int flags) {
    REAL(int, "open", const char *, int, ...);
    return real(path, flags, 0600);
}

static void mark(const char *name) {  // by an empty file, for who asks what the program has come to
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    int fd = real_open(path, O_CREAT | O_WRONLY | O_CLOEXEC);
    if (fd >= 0) close(fd);
}

static bool make_memory(int fd) {
    struct rlimit limit;  // beyond it ftruncate ends the program by a signal
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < MEMORY_BYTES) return refuse(EFBIG) == 0;
    return fd >= 0 && !ftruncate(fd, MEMORY_BYTES);
}

bool open_machine(void) {
    pthread_mutex_lock(&opening);
    if (!known) {
        char path[512];
        snprintf(path, sizeof path, "%s/devices", folder());
        int fd = real_open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = fd < 0 ? 0 : read(fd, devices, sizeof devices);
        if (fd >= 0) close(fd);
        device_count = size > 0 ? size / sizeof *devices : 0;
        for (unsigned i = 0; i < device_count; i++) {
            memory_fds[i] = memfd_create("gpu-memory", MFD_CLOEXEC);
            if (!make_memory(memory_fds[i])) {
                static bool said;
                if (!said) complain("a file for a GPU's memory, of 1 TiB and sparse, cannot be made (memfd_create): %s; is there a "
                         "limit on the size of files (ulimit -f)?", strerror(errno));
                said = true;
                device_count = 0;
                pthread_mutex_unlock(&opening);
                return false;
            }
        }
        if (!device_count) complain("%s: the list of GPUs cannot be read", path);
        known = device_count > 0;
    }
    pthread_mutex_unlock(&opening);
    return known;
}

void tell(struct message message) {
    if (peer >= 0 && send(peer, &message, sizeof message, MSG_NOSIGNAL) != (ssize_t)sizeof message && errno != EPIPE)
        complain("the process that plays the GPU cannot be told: %s", strerror(errno));
}

bool peer_is_gone(void) {
    static bool said;
    struct pollfd state = {.fd = peer};
    bool gone = peer < 0 || (poll(&state, 1, 0) > 0 && state.revents & (POLLHUP | POLLERR));
    if (gone && !said) {
        said = true;
        complain("the process that plays the GPU has ended");
    }
    return gone;
}

static bool greet(int shared_fd) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s/gpu", folder());
    peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(peer, (void *)&to, sizeof to)) {
        complain("no process plays the GPU at %s: %s", to.sun_path, strerror(errno));
        return false;
    }
    struct ucred other;
    socklen_t size = sizeof other;
    if (!getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &other, &size))  // it reads and writes memory that is registered
        prctl(PR_SET_PTRACER, (unsigned long)other.pid, 0, 0, 0);
    struct message hello = {HELLO, device_count, {getpid()}};
    int fds[1 + MAX_DEVICES] = {shared_fd};
    memcpy(fds + 1, memory_fds, sizeof memory_fds);
    size_t bytes = (1 + device_count) * sizeof *fds;
    char control[CMSG_SPACE(sizeof fds)] = {0};
    struct iovec part = {&hello, sizeof hello};
    struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&whole);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(header), fds, bytes);
    return sendmsg(peer, &whole, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
}

static int open_kfd(void) {
    mark("opened");
    if (!open_machine()) return refuse(ENOENT);
    pthread_mutex_lock(&opening);
    if (kfd_fd < 0) {
        int fd = memfd_create("kfd", MFD_CLOEXEC);
        if (fd >= 0 && !ftruncate(fd, SHARED_BYTES))
            shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared && shared != MAP_FAILED) {
            memset(shared + DOORBELLS_AT, 0xFF, MAX_DEVICES * DOORBELL_BYTES);  // no packet yet
            if (greet(fd)) kfd_fd = fd;
        }
    }
    pthread_mutex_unlock(&opening);
    return kfd_fd < 0 ? refuse(ENOENT) : duplicate(kfd_fd);
}

static void forget(void) {  // in the child of a fork, which has to open the driver anew
    kfd_fd = peer = -1;
    shared = NULL;
    known = false;
    forget_memory();
    forget_events();
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&opening, NULL);
}
__attribute__((constructor)) static void prepare(void) {
    pthread_atfork(NULL, NULL, forget);
    if (folder()) mark("loaded");
}

enum { NOT_OURS = -2 };

static int open_ours(const char *path) {
    if (!path || !folder()) return NOT_OURS;
    if (!strcmp(path, "/dev/kfd")) return open_kfd();
    if (strncmp(path, "/dev/dri/renderD", 16)) return NOT_OURS;
    unsigned number = (unsigned)atoi(path + 16) - 128;
    return open_machine() && number < device_count ? duplicate(memory_fds[number]) : refuse(ENOENT);
}

// Where a file of sysfs about GPUs lies instead.
static const char *instead(const char *path, char *buffer, size_t size) {
    static const char *const ours[][2] = {{"/sys/devices/virtual/kfd", "kfd"}, {"/sys/module/amdgpu", "amdgpu"}};
    for (unsigned i = 0; path && folder() && i < 2; i++) {
        size_t length = strlen(ours[i][0]);
        if (strncmp(path, ours[i][0], length) || (path[length] && path[length] != '/')) continue;
        snprintf(buffer, size, "%s/sys/%s%s", folder(), ours[i][1], path + length);
        return buffer;
    }
    return path;
}

#define OPEN(name) \
    SHOWN int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list values; \
        va_start(values, flags); \
        int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(values, int) : 0; \
        va_end(values); \
        char buffer[512]; \
        int fd = open_ours(path); \
        return fd != NOT_OURS ? fd : real(instead(path, buffer, sizeof buffer), flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define WITH_PATH(type, name, parameters, arguments) \
    SHOWN type name(const char *path parameters) { \
        REAL(type, #name, const char *parameters); \
        char buffer[512]; \
        path = instead(path, buffer, sizeof buffer); \
        return real arguments; \
    }
#define COMMA ,
WITH_PATH(FILE *, fopen, COMMA const char *mode, (path, mode))
WITH_PATH(FILE *, fopen64, COMMA const char *mode, (path, mode))
WITH_PATH(DIR *, opendir, , (path))

SHOWN int ioctl(int fd, unsigned long request, ...) {
    REAL(int, "ioctl", int, unsigned long, ...);
    va_list values;
    va_start(values, request);
    void *argument = va_arg(values, void *);
    va_end(values);
    bool is_ours = kfd_fd >= 0 && (request >> 8 & 0xFF) == 'K';
    return is_ours ? serve(request, argument) : real(fd, request, argument);
}
