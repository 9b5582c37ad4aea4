"""The actor-critic networks: observations in, action logits and values out.

`resnet` is the IMPALA ResNet (Espeholt et al. 2018, figure 3 right) without its LSTM, as Cleanba trains it;
`impala_shallow` is the same figure's left network; `nature_cnn` is the network of Mnih et al. 2015; `mlp` is for vector
observations. Initialisers are the original Cleanba's; CleanRL's for `nature_cnn` and `mlp`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.initializers import Initializer, lecun_normal, orthogonal, zeros_init

from cleanba.kernels import convolution, max_pool

RESNET_CHANNELS = (16, 32, 32)


class ActorCritic(nn.Module):
    """A torso with one head for the policy and one for the value."""

    network: str
    num_actions: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, 4, 84, 84] uint8 frames (`mlp`: [B, D] float32) -> logits [B, num_actions], values [B]."""
        features = TORSOS[self.network](name="torso")(observations)
        logits = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01), name="actor")(features)
        values = nn.Dense(1, kernel_init=orthogonal(1.0), name="critic")(features)
        return logits, values[:, 0]

    def forward(self, params: Any, observations: Any) -> tuple[jax.Array, jax.Array]:
        """`apply`, with the type that it has here."""
        return self.apply(params, observations)  # type: ignore[return-value]


class Conv(nn.Module):
    """A square convolution, max-pooled on request; parameters as flax.linen.Conv has them."""

    features: int
    size: int
    stride: int = 1
    padding: str = "SAME"
    pooled: bool = False
    kernel_init: Initializer = lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (self.size, self.size, x.shape[-1], self.features))
        bias = self.param("bias", zeros_init(), (self.features,))
        x = convolution(x, kernel, self.stride, self.padding)
        if self.pooled:
            x = max_pool(x)  # before the bias: the same maximum, a quarter of the additions
        return x + bias


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        x = _scaled_images(frames)
        for channels in RESNET_CHANNELS:
            x = Conv(channels, 3, pooled=True)(x)
            x = ResidualBlock(channels)(x)
            x = ResidualBlock(channels)(x)
        return _hidden(256, nn.relu(x))


class ResidualBlock(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = Conv(self.channels, 3)(nn.relu(x))
        return x + Conv(self.channels, 3)(nn.relu(y))


class ImpalaShallow(nn.Module):
    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        x = _scaled_images(frames)
        x = nn.relu(Conv(16, 8, stride=4, padding="VALID")(x))
        x = nn.relu(Conv(32, 4, stride=2, padding="VALID")(x))
        return _hidden(256, x)


class NatureCNN(nn.Module):
    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        init = orthogonal(np.sqrt(2))
        x = _scaled_images(frames)
        x = nn.relu(Conv(32, 8, stride=4, padding="VALID", kernel_init=init)(x))
        x = nn.relu(Conv(64, 4, stride=2, padding="VALID", kernel_init=init)(x))
        x = nn.relu(Conv(64, 3, stride=1, padding="VALID", kernel_init=init)(x))
        return _hidden(512, x)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(nn.Dense(64, kernel_init=orthogonal(np.sqrt(2)))(x))
        return x


TORSOS = {"resnet": ResNet, "impala_shallow": ImpalaShallow, "nature_cnn": NatureCNN, "mlp": MLP}


def init(network: str, num_actions: int, observation_shape: tuple[int, ...], key: jax.Array):
    """Fresh parameters. `observation_shape` is one observation's, without the batch."""
    dtype = jnp.float32 if network == "mlp" else jnp.uint8
    return ActorCritic(network, num_actions).init(key, jnp.zeros((1, *observation_shape), dtype))


def _scaled_images(frames: jax.Array) -> jax.Array:
    """[B, 4, 84, 84] uint8 -> [B, 84, 84, 4] float32 from 0 to 1."""
    return jnp.transpose(frames, (0, 2, 3, 1)).astype(jnp.float32) / 255


def _hidden(width: int, x: jax.Array) -> jax.Array:
    """The last hidden layer: [B, height, width, channels] -> [B, width]. Call inside a compact module."""
    return nn.relu(nn.Dense(width, kernel_init=orthogonal(np.sqrt(2)))(x.reshape(x.shape[0], -1)))
