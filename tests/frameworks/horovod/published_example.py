"""A small program in the form of Horovod's ``tensorflow2_keras_mnist.py``: its model is not built before ``fit``."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf


def main() -> None:
    hvd.init()
    (mnist_images, mnist_labels), _ = tf.keras.datasets.mnist.load_data(path=f"mnist-{hvd.rank()}.npz")
    dataset = tf.data.Dataset.from_tensor_slices(
        (
            tf.cast(mnist_images[..., tf.newaxis] / 255.0, tf.float32),
            tf.cast(mnist_labels, tf.int64),
        )
    )
    dataset = dataset.repeat().shuffle(100).batch(16)
    mnist_model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(2, [3, 3], strides=3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    scaled_lr = 0.001 * hvd.size()
    opt = hvd.DistributedOptimizer(tf.optimizers.Adam(scaled_lr))
    mnist_model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
    ]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
    verbose = 1 if hvd.rank() == 0 else 0
    mnist_model.fit(dataset, steps_per_epoch=500 // hvd.size(), callbacks=callbacks, epochs=24, verbose=verbose)


if __name__ == "__main__":
    main()
