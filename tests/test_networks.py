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
