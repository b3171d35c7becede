"""Train a small network on MNIST with TensorFlow, on whatever GPU grn finds room."""

import argparse
import os

import grn

# Keep TensorFlow from talking: errors only, and not about its way to compute on CPUs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@grn.job()
def train_job(epochs: int, batch_size: int):
    """Train and return the model. All of TensorFlow is imported here, when the GPU is known."""
    import digits
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    device = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"  # it takes a GPU by itself
    images, labels, test_images, test_labels = digits.load()
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(1e-3),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, labels, epochs=epochs, batch_size=batch_size, verbose=0)
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    print(f"tensorflow on {device}: accuracy {accuracy:.2f} after {epochs} epochs")
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    train_job(options.epochs, options.batch_size)
