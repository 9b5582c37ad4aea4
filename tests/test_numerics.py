"""Contract D7: a numerics setting counts as set when a result changes without it."""

import os
import subprocess
import sys

import pytest
from cells import ROOT

from cleanba import numerics

PROGRAM = """
import os
os.sched_setaffinity(0, CPUS)
import jax, jax.numpy as jnp, numpy as np
from cleanba.fingerprint import digest, hexadecimal
from cleanba.networks import ActorCritic
hidden = jax.nn.initializers.orthogonal()(jax.random.key(1), (3872, 256))  # the ResNet's
network = ActorCritic(network="impala_shallow", num_actions=18)
frames = np.random.default_rng(0).integers(0, 255, (40, 4, 84, 84), np.uint8)
params = network.init(jax.random.key(0), frames[:1])
gradient = jax.jit(jax.grad(lambda p: sum(jnp.sum(jnp.square(x)) for x in network.forward(p, frames))))(params)
print(hexadecimal(digest(hidden)), hexadecimal(digest(gradient)))
"""

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two usable CPUs")


def digests(num_cpus, *without):
    """(initial parameters, gradient) of a process on some of the usable CPUs, with the settings but for `without`."""
    cpus = sorted(os.sched_getaffinity(0))[:num_cpus]
    settings = numerics.environment("cpu", num_devices=1, cpus=num_cpus)
    environment = {k: v for k, v in (os.environ | settings).items() if k not in without}
    code = PROGRAM.replace("CPUS", str(cpus))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_number_of_cpus_changes_no_bit_and_each_setting_is_needed_for_it():
    one, two = digests(1), digests(2)
    assert one == two
    assert digests(2, "OPENBLAS_NUM_THREADS")[0] != two[0]
    assert digests(1, "NPROC")[1] != one[1]


def test_other_platforms_are_refused():
    with pytest.raises(ValueError, match="platform is 'tpu'; allowed: cpu, gpu"):
        numerics.environment("tpu", 1, 1)
