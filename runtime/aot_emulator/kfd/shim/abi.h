// The interface of Linux's /dev/kfd, as far as it is served here: numbers and layouts of include/uapi/linux/kfd_ioctl.h
// (interface version 1.17), and of the two structures of libdrm's amdgpu.h that ROCr asks for. They are stated here
// because the headers of many systems are older than the interface that ROCr speaks.
#pragma once
#include <stdint.h>

struct create_queue {
    uint64_t ring, write_pointer, read_pointer, doorbell_offset;
    uint32_t ring_size, gpu_id, type, percentage, priority, queue_id;
    uint64_t eop_address, eop_size, save_address;
    uint32_t save_size, control_stack_size, sdma_engine, metadata_ring_size;
};
struct destroy_queue { uint32_t queue_id, pad; };
struct clock_counters { uint64_t gpu, cpu, system, system_frequency; uint32_t gpu_id, pad; };
struct aperture { uint64_t lds, lds_limit, scratch, scratch_limit, gpuvm, gpuvm_limit; uint32_t gpu_id, pad; };
struct apertures { uint64_t array; uint32_t count, pad; };
struct create_event { uint64_t page_offset; uint32_t trigger_data, type, auto_reset, node_id, event_id, slot; };
struct event_name { uint32_t event_id, pad; };
struct memory_exception { uint32_t not_present, read_only, no_execute, imprecise; uint64_t va; uint32_t gpu_id, type; };
struct hardware_exception { uint32_t reset_type, reset_cause, memory_lost, gpu_id; };
struct event_data {
    union { struct memory_exception memory; struct hardware_exception hardware; uint64_t last_age; };
    uint64_t extension;
    uint32_t event_id, pad;
};
struct wait_events { uint64_t events; uint32_t count, all, timeout, result; };
struct tile_config { uint64_t tiles, macro_tiles; uint32_t n_tiles, n_macro_tiles, gpu_id, address_config, banks, ranks; };
struct alloc_memory { uint64_t va, size, handle, offset; uint32_t gpu_id, flags; };
struct memory_name { uint64_t handle; };
struct map_memory { uint64_t handle, gpu_ids; uint32_t count, done; };
struct xnack_mode { int32_t enabled; };
struct available_memory { uint64_t available; uint32_t gpu_id, pad; };
struct export_dmabuf { uint64_t handle; uint32_t flags, fd; };
struct runtime_enable { uint64_t r_debug; uint32_t mode, capabilities; };
struct version { uint32_t major, minor; };

enum { INTERFACE_MAJOR = 1, INTERFACE_MINOR = 17 };
enum { EVENT_SIGNAL = 0, EVENT_HW_EXCEPTION = 3, EVENT_MEMORY = 8 };
enum { WAIT_COMPLETE = 0, WAIT_TIMEOUT = 1 };
enum { MEMORY_VRAM = 1, MEMORY_GTT = 2, MEMORY_USERPTR = 4, MEMORY_DOORBELL = 8, MEMORY_MMIO = 16 };

struct drm_gpu_info {  // struct amdgpu_gpu_info
    uint32_t asic_id, chip_revision, external_revision, family;
    uint64_t ids_flags, engine_clock, memory_clock;  // kHz
    uint32_t engines, arrays_per_engine, quad_pipes, most_quad_pipes, cache_entries, contexts, rb_pipes, rb_mask;
    uint32_t counter_frequency, backend_disable[4], ramcfg, address_config, tile_mode[32], macro_tile_mode[16];
    uint32_t raster_config[4], raster_config1[4], active_cus, always_on_mask, cu_bitmap[4][4];
    uint32_t vram_type, vram_bits, constant_ram, vce_config, pci_revision;
};
struct drm_import { void *buffer; uint64_t size; };  // struct amdgpu_bo_import_result
