"""The environment of all tests: emulated devices and a compilation cache, set before anything imports JAX."""

import os
import signal
from pathlib import Path

from cleanba import numerics

os.environ.update(numerics.environment("cpu", num_devices=4, cpus=2))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # many small programs, each many times
os.environ["WANDB_MODE"] = "offline"
# Where the tests run in the background these are ignored, also by the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
