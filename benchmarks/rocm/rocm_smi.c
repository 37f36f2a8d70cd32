/* A stand-in for librocm_smi64, for the benchmark programs of AMD's libraries, which ask it for clocks and nothing else
   that matters. The real one looks for the files of a driver, which an emulated machine has for ROCr alone. */

#include <stdint.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2 };

int rsmi_init(uint64_t flags) { return SUCCESS; }
int rsmi_shut_down(void) { return SUCCESS; }
int rsmi_num_monitor_devices(uint32_t *number) { *number = 1; return SUCCESS; }
int rsmi_dev_pci_id_get(uint32_t device, uint64_t *id) { *id = 0x100; return SUCCESS; }
int rsmi_dev_gpu_clk_freq_get(uint32_t device, int kind, void *frequencies) { return NOT_SUPPORTED; }
int rsmi_dev_gpu_metrics_info_get(uint32_t device, void *metrics) { return NOT_SUPPORTED; }
int rsmi_dev_metrics_xcd_counter_get(uint32_t device, uint16_t *number) { *number = 1; return SUCCESS; }
int rsmi_status_string(int status, const char **text) { *text = "not there on an emulated machine"; return SUCCESS; }
