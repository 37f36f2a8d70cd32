"""Variables of the environment that tell this package what to do, in each of a program's processes."""

CAPTURE = "AOT_CAPTURE"  # the capture file
NO_SOURCE = "AOT_CAPTURE_NO_SOURCE"
INDUCTOR_WARM = "AOT_CAPTURE_INDUCTOR_WARM"  # found by the first process: 0 or 1
GUARD = "AOT_NO_COMPILE"  # RAISE or WARN
GUARD_CACHE = "AOT_NO_COMPILE_CACHE"  # the shipped cache, in the layout of Triton's
GUARD_KERNELS = "AOT_NO_COMPILE_KERNELS"  # the capture file to compare with
GUARD_LOG = "AOT_NO_COMPILE_LOG"
NO_GPU = "AOT_NO_GPU"  # a target, `backend:arch:lanes`, in place of the machine's device
RAISE, WARN = "raise", "warn"
MANAGER = "aot_capture.guard:Manager"
