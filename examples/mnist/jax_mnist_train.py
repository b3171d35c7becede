"""Train a small network on MNIST with JAX and Flax, on whatever GPU grn finds room."""

import argparse

import grn


@grn.job()
def train_job(epochs: int, batch_size: int):
    """Train and return the model. All of JAX is imported here, when the GPU is known."""
    import digits
    import flax.linen as nn
    import jax
    import optax

    model = nn.Sequential(
        [lambda batch: batch.reshape(len(batch), -1), nn.Dense(128), nn.relu, nn.Dense(10)]
    )
    images, labels, test_images, test_labels = map(jax.numpy.asarray, digits.load())
    key, first = jax.random.split(jax.random.PRNGKey(1))
    variables = model.init(first, images[:1])
    optimizer = optax.adam(1e-3)
    state = optimizer.init(variables)

    def loss_of(variables, images, labels):
        scores = model.apply(variables, images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    @jax.jit
    def step(variables, state, images, labels):
        slopes = jax.grad(loss_of)(variables, images, labels)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(variables, changes), state

    for _ in range(epochs):
        key, shuffle = jax.random.split(key)
        order = jax.random.permutation(shuffle, len(images))
        for begin in range(0, len(images), batch_size):
            chosen = order[begin : begin + batch_size]
            variables, state = step(variables, state, images[chosen], labels[chosen])
    accuracy = (model.apply(variables, test_images).argmax(1) == test_labels).mean()
    device = jax.devices()[0].platform
    print(f"jax on {device}: accuracy {accuracy:.2f} after {epochs} epochs")
    return model.bind(variables)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    train_job(options.epochs, options.batch_size)
