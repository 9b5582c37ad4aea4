"""The CPU kernels equal XLA's own, with ties, odd sizes and chunks; their bits do not depend on the number of devices.

Inputs are small whole numbers, whose sums float32 holds exactly in any order, so that equality is exact.
"""

import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cleanba import kernels

# batch, size, channels, features, window, stride, padding: the networks' layers, smaller where that changes nothing.
CONVOLUTIONS = {
    "resnet first, in pixel pairs": (40, 84, 4, 16, 3, 1, "SAME"),
    "resnet, in pixel pairs": (40, 42, 16, 16, 3, 1, "SAME"),
    "resnet, 16 to 32": (16, 42, 16, 32, 3, 1, "SAME"),
    "few channels, odd size": (20, 21, 16, 8, 3, 1, "SAME"),
    "resnet, odd size": (24, 21, 32, 32, 3, 1, "SAME"),
    "resnet, one chunk": (5, 42, 16, 16, 3, 1, "SAME"),
    "nature first": (24, 84, 4, 32, 8, 4, "VALID"),
    "shallow second": (24, 20, 16, 32, 4, 2, "VALID"),
    "nature third": (16, 9, 64, 64, 3, 1, "VALID"),
}


def whole_numbers(rng, shape, largest=3):
    return rng.integers(-largest, largest + 1, shape).astype(np.float32)


def value_and_gradients(function, upstream, *inputs):
    value, pullback = jax.vjp(function, *inputs)
    return value, *pullback(upstream)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients_are_exact(case):
    batch, size, channels, features, window, stride, padding = CONVOLUTIONS[case]
    rng = np.random.default_rng(1)
    images = whole_numbers(rng, (batch, size, size, channels))
    kernel = whole_numbers(rng, (window, window, channels, features))

    def plain(x, w):
        return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    upstream = whole_numbers(rng, jax.eval_shape(plain, images, kernel).shape, largest=1)
    expected = jax.jit(lambda *a: value_and_gradients(plain, *a))(upstream, images, kernel)
    actual = jax.jit(
        lambda *a: value_and_gradients(lambda x, w: kernels.convolution(x, w, stride, padding), *a),
    )(upstream, images, kernel)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [8, 9, 21])
def test_max_pool_and_its_gradient_are_exact(size):
    rng = np.random.default_rng(2)
    images = whole_numbers(rng, (4, size, size, 3), largest=1)  # three values only: most windows have ties

    def plain(x):
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")

    half = -(-size // 2)
    upstream = whole_numbers(rng, (4, half, half, 3))
    expected = value_and_gradients(plain, upstream, images)
    actual = value_and_gradients(kernels.max_pool, upstream, images)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])


def test_max_pool_by_hand():
    """The window's three rows hold 1, 5, 5: the first 5 of the first row that has one gets the gradient."""
    images = jnp.array([[1, 2, 5], [5, 4, 5], [0, 0, 0]], jnp.float32).reshape(1, 3, 3, 1)
    value, gradient = value_and_gradients(kernels.max_pool, jnp.array([[1.0, 2], [4, 8]]).reshape(1, 2, 2, 1), images)
    np.testing.assert_array_equal(value[0, :, :, 0], [[5, 5], [5, 5]])
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 0, 2], [5, 0, 8], [0, 0, 0]])


@pytest.mark.parametrize(
    ("num_images", "features", "num_chunks"),
    [
        (1, 32, 1),
        (8, 32, 1),
        (16, 32, 2),
        (84, 32, 7),
        (640, 32, 16),
        (17, 32, 1),
        (39, 16, 1),
        (40, 16, 2),
        (160, 16, 8),
    ],
)
def test_num_chunks(num_images, features, num_chunks):
    assert kernels._num_chunks(num_images, features) == num_chunks


GRADIENT_DIGESTS = """
import hashlib
import jax, jax.numpy as jnp, numpy as np
from cleanba.networks import ActorCritic, init

rng = np.random.default_rng(0)
shapes = jax.eval_shape(lambda: init("resnet", 6, (4, 84, 84), jax.random.key(0)))
params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape, scale=0.1).astype(np.float32), shapes)
loss = lambda p, x: sum(jnp.mean(jnp.square(y)) for y in ActorCritic("resnet", 6).apply(p, x))
gradient = jax.jit(jax.grad(loss))
for num_images in (40, 40, 8):
    frames = rng.integers(0, 256, (num_images, 4, 84, 84), dtype=np.uint8)
    leaves = jax.tree.leaves(gradient(*jax.device_put((params, frames), jax.devices()[-1])))
    print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest())
"""


def gradient_digests(num_devices: int) -> list[str]:
    """Of three batches of frames, in a process of its own. The last is too small for XLA's matrix library."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", GRADIENT_DIGESTS]
    done = subprocess.run(command, env=os.environ | flags, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="XLA sums in another order on a single thread")
def test_gradients_have_the_same_bits_with_any_number_of_devices():
    """XLA has at least as many threads as devices: what is summed per thread would differ between 1 and 8."""
    digests = gradient_digests(num_devices=1)
    assert gradient_digests(num_devices=8) == digests
    assert digests[0] != digests[1]
