"""Variables of the environment that tell this package what to do, in each of a program's processes."""

CAPTURE = "AOTBUILD_CAPTURE"  # the capture file
NO_SOURCE = "AOTBUILD_CAPTURE_NO_SOURCE"
INDUCTOR_WARM = "AOTBUILD_CAPTURE_INDUCTOR_WARM"  # found by the first process: 0 or 1
GUARD = "AOTBUILD_NO_COMPILE"  # RAISE or WARN
GUARD_CACHE = "AOTBUILD_NO_COMPILE_CACHE"  # the shipped cache, in the layout of Triton's
GUARD_KERNELS = "AOTBUILD_NO_COMPILE_KERNELS"  # the capture file to compare with
GUARD_LOG = "AOTBUILD_NO_COMPILE_LOG"
NO_GPU = "AOTBUILD_NO_GPU"  # a target, `backend:arch:lanes`, in place of the machine's device
RAISE, WARN = "raise", "warn"
MANAGER = "aot_capture.guard:Manager"
