"""Bundles opened, called and dropped many times, and processes that end in every way, leave nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.session_builds import build_once

from .programs import finished, script
from .session import inside

pytestmark = [pytest.mark.on("rocm"), pytest.mark.slow]

_LIMIT_S = 100


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_once(tmp_path_factory, "manifests/memory.yaml", "op=copy") / "memory-gfx942"


def ended(text: str, *arguments: str | Path) -> tuple[int, str]:
    """The exit status and output of a program on the session's GPUs, which are there for its children, too."""
    done = finished(script(text, *arguments), os.environ, _LIMIT_S)
    return done.status, done.output + done.errors


OPENED = """
    import sys
    import threading
    import numpy as np
    from aot_runtime import open_bundle
    X = np.arange(10_001, dtype=np.int32)
    def use(bundle):
        assert (bundle.copy(X) == X).all()
    def in_a_thread(work):
        failed = []
        def run():
            try: work()
            except BaseException as error: failed.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed: raise failed[0]
    def opened(): return open_bundle(sys.argv[1], device="hip:0")
"""

MANY = (
    OPENED
    + """
    import gc
    import os
    import signal
    from pathlib import Path
    from hip import hip
    from aot_runtime import get_device
    times = int(sys.argv[2])
    kept = opened()
    device = kept.device
    def drops():
        for _ in range(times): use(opened())
    def threads_that_open():
        for _ in range(times): in_a_thread(lambda: use(opened()))
    def threads_that_call():
        for _ in range(times): in_a_thread(lambda: use(kept))
    def streams():
        for _ in range(times):
            stream = device.stream()
            x, out = device.array(X, stream=stream), device.empty(X.shape, X.dtype)
            kept.copy(x, out=out, stream=stream)
            assert (out.numpy(stream=stream) == X).all()
    def graphs():
        x, out, stream = device.array(X), device.empty(X.shape, X.dtype), device.stream()
        kept.copy(x, out=out, stream=stream)
        for _ in range(times):
            with device.capture(stream) as graph: kept.copy(x, out=out, stream=stream)
            graph.launch(stream)
            assert (out.numpy(stream=stream) == X).all()
            del graph
    def interrupts():
        class Interrupted(Exception): pass
        def interrupt(*_): raise Interrupted
        signal.signal(signal.SIGALRM, interrupt)
        came = 0
        for turn in range(times):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + turn % 50))
                use(opened())
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted: came += 1
        assert came
        use(kept)
    def bad_calls():
        for _ in range(times):
            try: kept.copy(X.astype(np.float32))
            except Exception as error: assert "int32" in str(error)
            else: raise AssertionError
    work = [drops, threads_that_open, threads_that_call, streams, graphs, interrupts, bad_calls]
    def figures():
        gc.collect()
        device.synchronize()
        device.driver.trim(0, 0)
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        files = {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.exists()}
        files -= {name for name in files if name.startswith(sys.argv[1])}  # a signal may come right behind os.open
        return device.driver.free_memory(0), files, len(os.listdir("/proc/self/task")), rss
    for each in work: each()
    for each in work:
        before = figures()
        each()
        after = figures()
        print(each.__name__, after[0] - before[0], after[3] - before[3], flush=True)
        assert before[0] - after[0] <= 0, "memory of the device is lost"
        assert after[1:3] == before[1:3], f"files or threads are left: {before}, {after}"
        assert after[3] - before[3] < 64 << 20, "memory of the host is lost"
    print("nothing is left")
"""
)


def test_many_times(bundle: Path):
    """Opens, drops, calls, streams, graphs, signals and threads that end, 50 of each, twice over."""
    status, output = ended(MANY, bundle, "50")
    assert status == 0 and "nothing is left" in output, output


FORKS = (
    OPENED
    + """
    import os
    import signal
    kept = opened()
    use(kept)
    for _ in range(20):
        child = os.fork()
        if not child:
            signal.alarm(20)
            try: use(kept)
            except Exception as error: os._exit(7)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    use(kept)
    print("the parent goes on")
"""
)


def test_forks(bundle: Path):
    status, output = ended(FORKS, bundle)
    assert status == 0 and "the parent goes on" in output, output


RESETS = (
    OPENED
    + """
    import gc
    from hip import hip
    from aot_runtime.device.device import Device
    from aot_runtime.device.drivers.hip import HipDriver
    from aot_runtime.errors import DriverCallError
    for _ in range(20):
        bundle = open_bundle(sys.argv[1], Device(HipDriver(), 0))
        use(bundle)
        del bundle
        gc.collect()
        assert hip.hipDeviceReset()[0] == 0
    print("each works")
"""
)


def test_resets(bundle: Path):
    status, output = ended(RESETS, bundle)
    assert status == 0 and "each works" in output, output


FIRST = {
    "main": "kept = opened()\nuse(kept)",
    "main, then a thread": "kept = opened()\nin_a_thread(lambda: use(kept))",
    "a thread alone": "in_a_thread(lambda: use(opened()))",
    "a thread, then main": "kept = []\nin_a_thread(lambda: kept.append(opened()))\nuse(kept[0])",
}
LAST = {
    "the end": ("", 0),
    "dropped": ("kept = None", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("import os; os._exit(4)", 4),
    "an exception": ("raise ValueError('on purpose')", 1),
    "an exit function": ("import atexit; atexit.register(lambda: use(opened()))", 0),
    "a daemon": ("threading.Thread(target=threading.Event().wait, daemon=True).start()", 0),
    "a cycle": ("loop = [kept]; loop.append(loop); del kept", 0),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "an interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "the library unloaded first": ("import _ctypes; _ctypes.dlclose(kept.device.driver._library._handle)", 0),
}


OF_EACH = ("the end", "dropped", "an exception", "SIGTERM")
"""Ends that are tried after each beginning; the others after the plainest one."""


@pytest.mark.parametrize(
    ("first", "last"), [(first, last) for first in FIRST for last in LAST if first == "main" or last in OF_EACH]
)
def test_exits(first: str, last: str, bundle: Path):
    text, expected = LAST[last]
    if first == "a thread, then main" and last in OF_EACH[:3] and inside().hip.name.endswith(".6"):
        expected = -signal.SIGSEGV  # as the page on threads says, and `aotbundle doctor`
    body = OPENED + "\n".join("    " + line for line in ["kept = None", *FIRST[first].split("\n"), *text.split("\n")])
    status, output = ended(body, bundle)
    assert status == expected, output
