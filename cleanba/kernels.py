"""Convolution and max pooling for XLA's CPU backend; docs/performance.md has what was measured.

They are the plain operations: values, gradients and the choice among equal maxima differ from XLA's own by the order of
summation alone. Other backends get XLA's own.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

MAX_CHUNKS = 16  # every chunk is compiled on its own
# With no more channels, in and out, XLA leaves a convolution to Eigen, whose sums depend on the number of threads.
FEW_CHANNELS = 16
LAYOUT = ("NHWC", "HWIO", "NHWC")  # the only one that XLA's CPU backend has fast kernels for


def convolution(images: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """[B, H, W, C] images and a [h, w, C, F] kernel -> [B, H', W', F]; padding is SAME or VALID."""
    form = _cpu_convolution if jax.default_backend() == "cpu" else _plain_convolution
    return form(images, kernel, stride, padding)


def max_pool(images: jax.Array) -> jax.Array:
    """Maxima of 3 x 3 windows at stride 2, padding SAME: [B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), C].

    Columns come before rows, so that the first of equal maxima in reading order gets the gradient.
    """
    if jax.default_backend() == "cpu":
        return _max_of_three(_max_of_three(images, 2), 1)
    return lax.reduce_window(images, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _plain_convolution(images, kernel, stride, padding):
    return lax.conv_general_dilated(images, kernel, (stride, stride), padding, dimension_numbers=LAYOUT)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _cpu_convolution(images, kernel, stride, padding):
    few = max(kernel.shape[2:]) <= FEW_CHANNELS
    if few and kernel.shape[:2] == (3, 3) and (stride, padding) == (1, "SAME") and images.shape[2] % 2 == 0:
        return _pairwise_convolution(images, kernel)
    return _plain_convolution(images, kernel, stride, padding)


def _pairwise_convolution(images, kernel):
    """3 x 3, SAME, as a 3 x 4 convolution at every second column that yields two pixels at once.

    A quarter of its products are with zeros, but twice the output channels are enough for XLA to call its matrix
    library.
    """
    left, right = (jnp.pad(kernel, ((0, 0), columns, (0, 0), (0, 0))) for columns in ((0, 1), (1, 0)))
    pairs = lax.conv_general_dilated(
        images, jnp.concatenate([left, right], 3), (1, 2), ((1, 1), (1, 1)), dimension_numbers=LAYOUT
    )
    return pairs.reshape(*images.shape[:3], kernel.shape[3])


def _convolution_forward(images, kernel, stride, padding):
    return _cpu_convolution(images, kernel, stride, padding), (images, kernel)


def _convolution_backward(stride, padding, residuals, gradient):
    images, kernel = residuals
    return (
        _image_gradient(images, kernel, stride, padding, gradient),
        _kernel_gradient(images, kernel, stride, padding, gradient),
    )


_cpu_convolution.defvjp(_convolution_forward, _convolution_backward)


def _image_gradient(images, kernel, stride, padding, gradient):
    if kernel.shape[:2] == (3, 3) and (stride, padding) == (1, "SAME"):  # with the kernel turned, the same kind again
        return _cpu_convolution(gradient, kernel[::-1, ::-1].swapaxes(2, 3), stride, padding)
    _, to_images = jax.vjp(lambda x: _plain_convolution(x, kernel, stride, padding), images)
    return to_images(gradient)[0]


def _kernel_gradient(images, kernel, stride, padding, gradient):
    """A convolution too, in which channels are the images, images the channels and `gradient` the kernel.

    Over a whole batch XLA reads it from memory once per few outputs; a few images at a time stay in the cache. The
    chunks are summed in a fixed order.
    """
    if max(len(images), kernel.shape[3]) <= FEW_CHANNELS:  # images of zeros change the sum's order alone
        images, gradient = (_pad(x, 0, 0, FEW_CHANNELS + 1 - len(x), 0.0) for x in (images, gradient))
    sizes, windows, outputs = images.shape[1:3], kernel.shape[:2], gradient.shape[1:3]
    lows = [low for low, _ in lax.padtype_to_pads(sizes, windows, (stride, stride), padding)]
    pads = [
        (low, window - size - low + (output - 1) * stride)
        for low, size, window, output in zip(lows, sizes, windows, outputs)
    ]

    def of_chunk(x, dy):
        x, dy = x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
        return lax.conv_general_dilated(x, dy, (1, 1), pads, rhs_dilation=(stride, stride), dimension_numbers=LAYOUT)

    num_chunks = _num_chunks(len(images), kernel.shape[3])
    chunks = zip(jnp.split(images, num_chunks), jnp.split(gradient, num_chunks))
    first, *others = (of_chunk(x, dy) for x, dy in chunks)
    return sum(others, first).transpose(1, 2, 0, 3)


def _num_chunks(num_images: int, features: int) -> int:
    """The most chunks of one size that are small enough for the cache and large enough for XLA's matrix library.

    8 images of 42 x 42 x 32 gradients are 1.7 MiB, within a core's L2 cache. Layers of few features get 20 images,
    which are the channels here.
    """
    most = max(1, min(MAX_CHUNKS, num_images // (8 if features > FEW_CHANNELS else 20)))
    return max(n for n in range(1, most + 1) if num_images % n == 0)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_of_three(x, axis):
    """Maxima of windows of 3 at stride 2 along one axis, padding SAME."""
    windows, strides = (tuple(size if i == axis else 1 for i in range(x.ndim)) for size in (3, 2))
    return lax.reduce_window(x, -jnp.inf, lax.max, windows, strides, "SAME")


def _max_forward(x, axis):
    """Keeps for every window which of its elements won: 0, 1 or 2, the first among equals."""
    maxima = _max_of_three(x, axis)
    before = x.shape[axis] % 2  # SAME pads an odd size on both sides, an even one at its end only
    first = _pad(lax.slice_in_dim(x, before, None, 2, axis), axis, before, 0, -jnp.inf)
    second = lax.slice_in_dim(x, 1 - before, None, 2, axis)
    winners = jnp.where(first == maxima, 0, jnp.where(second == maxima, 1, 2)).astype(jnp.uint8)
    return maxima, (winners, x.shape[axis])


def _max_backward(axis, residuals, gradient):
    winners, size = residuals
    first, second, third = (jnp.where(winners == n, gradient, 0) for n in range(3))
    shared = first + _pad(third, axis, 1, -1, 0.0)  # a window's third element is the next one's first
    pairs = jnp.stack([shared, second], axis + 1)
    elements = pairs.reshape(*gradient.shape[:axis], -1, *gradient.shape[axis + 1 :])
    return (lax.slice_in_dim(elements, size % 2, size % 2 + size, axis=axis),)


_max_of_three.defvjp(_max_forward, _max_backward)


def _pad(x, axis, before, after, value):
    config = [(before, after, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)
