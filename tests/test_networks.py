"""The networks: shapes, sizes, initial values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanba.networks import ActorCritic, init

# Summed by hand over kernels and biases for 6 actions (`mlp`: 2 actions, 4 inputs).
NUM_PARAMETERS = {"resnet": 1_091_031, "impala_shallow": 677_943, "nature_cnn": 1_687_719, "mlp": 4_675}


def observations(network: str, batch: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if network == "mlp":
        return rng.normal(size=(batch, 4)).astype(np.float32)
    return rng.integers(0, 256, (batch, 4, 84, 84), dtype=np.uint8)


def actions(network: str) -> int:
    return 2 if network == "mlp" else 6


@pytest.mark.parametrize("network", NUM_PARAMETERS)
def test_shapes_sizes_and_initial_values(network):
    inputs = observations(network, 3)
    params = init(network, actions(network), inputs.shape[1:], jax.random.key(0))
    logits, values = jax.jit(ActorCritic(network, actions(network)).apply)(params, inputs)
    assert logits.shape == (3, actions(network))
    assert values.shape == (3,)
    assert logits.dtype == values.dtype == jnp.float32
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == NUM_PARAMETERS[network]
    # Orthogonal columns have the length of the gain.
    actor, critic = params["params"]["actor"]["kernel"], params["params"]["critic"]["kernel"]
    np.testing.assert_allclose(np.linalg.norm(actor, axis=0), 0.01, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(critic, axis=0), 1.0, rtol=1e-5)
    biases = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "bias"]
    assert len(biases) >= 4
    assert not any(np.any(bias) for bias in biases)


@pytest.mark.parametrize("network", ["resnet", "impala_shallow", "nature_cnn"])
def test_cpu_kernels_leave_the_network_unchanged(network, monkeypatch):
    """Against XLA's own convolutions and pooling, which the other backends get."""
    frames = observations(network, 20)
    shapes = jax.eval_shape(lambda: init(network, 6, frames.shape[1:], jax.random.key(0)))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape, scale=0.05).astype(np.float32), shapes)

    def loss_of_a_new_trace():
        def loss(params):
            logits, values = ActorCritic(network, 6).apply(params, frames)
            return jnp.mean(jax.nn.log_softmax(logits)[:, 0]) + jnp.mean(values**2), (logits, values)

        return loss

    loss = loss_of_a_new_trace()
    assert "_cpu_convolution" in str(jax.make_jaxpr(loss)(params))
    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    monkeypatch.setattr(jax, "default_backend", lambda: "another")
    loss = loss_of_a_new_trace()
    assert "_cpu_convolution" not in str(jax.make_jaxpr(loss)(params))
    plain_gradients, plain_outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    for one, other in zip(outputs, plain_outputs):
        np.testing.assert_allclose(one, other, atol=1e-5)  # sums of up to 3,872 terms in another order
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(plain_gradients)):
        # The same, and rounding may hand a gradient to another of two pixels whose values nearly tie.
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max())
