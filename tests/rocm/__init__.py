"""AMD's own user-mode software, fetched for tests: HIP, ROCr and comgr as Debian builds them, and a C library for them.

They run above the emulated driver (`aot_emulator.kfd`), with this project's Python, by their own dynamic loader:
nothing of the machine is changed. `python -m tests.rocm install FOLDER` fetches them, and `pytest --on rocm` runs tests
on them.
"""
