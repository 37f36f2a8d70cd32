// Events, as Linux's drivers/gpu/drm/amd/amdkfd/kfd_events.c has them: one that is raised wakes all who wait for it. One
// that nobody waits for stays raised, for the next who waits if it resets itself, else until it is reset. A signal's
// event that has been raised since the program last saw its age counts as raised. Memory and hardware exceptions are
// raised for good by the fault that the GPU's process reports, or by its end.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

static uint32_t made, raised_here[MAX_EVENTS], consumed[MAX_EVENTS];
static uint8_t kinds[MAX_EVENTS];
static bool resets_itself[MAX_EVENTS];

uint64_t nanoseconds(int clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint32_t raised(uint32_t id) {
    return raised_here[id] + ((volatile uint32_t *)(shared + RAISED_AT))[id];
}

void forget_events(void) {
    made = 0;
    memset(raised_here, 0, sizeof raised_here);
    memset(consumed, 0, sizeof consumed);
}

static bool exists(uint32_t id) { return id > 0 && id <= made; }

int create_event(struct create_event *event) {
    if (made + 1 == MAX_EVENTS) return refuse(ENOSPC);
    uint32_t id = ++made;
    kinds[id] = event->type, resets_itself[id] = event->auto_reset;
    event->event_id = event->slot = event->trigger_data = id;
    if (!event->page_offset) event->page_offset = RAISED_AT;
    return 0;
}

int set_event(uint32_t id) {
    if (!exists(id)) return refuse(EINVAL);
    raised_here[id]++;
    return 0;
}

int reset_event(uint32_t id) {
    if (!exists(id)) return refuse(EINVAL);
    consumed[id] = raised(id);
    return 0;
}

// Whether an exception has happened; then the event is told what it is.
static bool is_exception(struct event_data *event, uint8_t kind) {
    const volatile struct fault *fault = (void *)(shared + FAULT_AT);
    uint32_t gpu_id = devices[fault->device].gpu_id;
    if (kind == EVENT_MEMORY && fault->kind == MEMORY_FAULT) {
        event->memory = (struct memory_exception){.not_present = !fault->read_only, .read_only = fault->read_only,
                                                  .va = fault->address, .gpu_id = gpu_id};
        return true;
    }
    if (kind == EVENT_HW_EXCEPTION && (fault->kind == HANG || peer_is_gone())) {
        event->hardware = (struct hardware_exception){.memory_lost = 1, .gpu_id = gpu_id};  // a reset after a hang
        return true;
    }
    return false;
}

struct waiter { uint32_t before; bool done; };

static unsigned check(struct event_data *events, struct waiter *waiters, unsigned count) {
    unsigned done = 0;
    for (unsigned i = 0; i < count; i++) {
        uint32_t id = events[i].event_id, now = raised(id);
        if (now != waiters[i].before) {
            waiters[i].done = true;
            if (resets_itself[id]) consumed[id] = now;
        }
        if (kinds[id] != EVENT_SIGNAL && !waiters[i].done) waiters[i].done = is_exception(&events[i], kinds[id]);
        done += waiters[i].done;
    }
    return done;
}

int wait_events(struct wait_events *wait) {
    struct event_data *events = (void *)wait->events;
    if (!wait->count || wait->count > MAX_EVENTS) return refuse(EINVAL);
    for (unsigned i = 0; i < wait->count; i++)
        if (!exists(events[i].event_id)) return refuse(EINVAL);
    struct waiter *waiters = calloc(wait->count, sizeof *waiters);
    if (!waiters) return refuse(ENOMEM);
    uint64_t end = wait->timeout == UINT32_MAX ? UINT64_MAX : nanoseconds(CLOCK_MONOTONIC) + wait->timeout * 1000000ull;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < wait->count; i++) {
        uint32_t id = events[i].event_id, now = raised(id);
        uint64_t age = kinds[id] == EVENT_SIGNAL ? events[i].last_age : 0;  // ages start at 1; 0: not asked for
        waiters[i] = (struct waiter){now, now != consumed[id] || (age && age != now + 1ull)};
        if (resets_itself[id]) consumed[id] = now;
    }
    pthread_mutex_unlock(&lock);
    for (unsigned naps = 0;; naps++) {
        unsigned done = check(events, waiters, wait->count);
        bool complete = wait->all ? done == wait->count : done > 0;
        if (complete || nanoseconds(CLOCK_MONOTONIC) >= end) {
            wait->result = complete ? WAIT_COMPLETE : WAIT_TIMEOUT;
            break;
        }
        usleep(naps < 100 ? 20 : 500);
    }
    for (unsigned i = 0; i < wait->count; i++) {
        uint32_t id = events[i].event_id;
        if (waiters[i].done && kinds[id] == EVENT_SIGNAL && events[i].last_age) events[i].last_age = raised(id) + 1ull;
    }
    free(waiters);
    return 0;
}
