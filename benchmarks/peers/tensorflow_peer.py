"""`tf.nn.sampled_softmax_loss` as its documentation uses it, in one `tf.function`.

Two optimizers. Keras' Adagrad, which TensorFlow's guides use, moves only the drawn rows but
takes the square root of the complete accumulator to do so. `tf.compat.v1.train.AdagradOptimizer`
reads and writes only the drawn rows.
"""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from peers.contender import LEARNING_RATE, Contender, Floats, Sizes, make_batches

START = 0.1  # of the accumulator; the default of both optimizers


class SampledTensorFlow(Contender):
    def __init__(self, sizes: Sizes, *, num_samples: int, optimizer: str):
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        shape, bound = (sizes.num_classes, sizes.dim), 1 / math.sqrt(sizes.dim)
        self.weight = tf.Variable(tf.random.uniform(shape, -bound, bound))
        self.bias = tf.Variable(tf.zeros(sizes.num_classes))
        if optimizer == "sparse":
            self.adagrad = tf.compat.v1.train.AdagradOptimizer(LEARNING_RATE, START)
        else:
            self.adagrad = keras.optimizers.Adagrad(LEARNING_RATE, START)
        self.sizes = sizes
        self.change(batch=sizes.batch, num_samples=num_samples)

    def change(self, *, batch: int, num_samples: int) -> None:
        self.batches = [
            (tf.constant(query), tf.constant(target[:, None]))
            for query, target in make_batches(dataclasses.replace(self.sizes, batch=batch))
        ]
        num_classes = self.sizes.num_classes

        @tf.function
        def update(query: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(query)
                loss = tf.reduce_mean(
                    tf.nn.sampled_softmax_loss(
                        self.weight, self.bias, target, query, num_samples, num_classes
                    )
                )
            slope, *rows = tape.gradient(loss, [query, self.weight, self.bias])
            self.adagrad.apply_gradients(zip(rows, [self.weight, self.bias], strict=True))
            return loss, slope  # returned, or it would not be computed

        # traced here, because the optimizer makes its row state during tracing
        self.update = update.get_concrete_function(*self.batches[0])

    def step(self, number: int) -> float:
        loss, self.slope = self.update(*self.batches[number % len(self.batches)])
        return float(loss)

    def query_grad(self) -> Floats:
        return self.slope.numpy()

    def table(self) -> tuple[Floats, Floats]:
        return np.copy(self.weight.numpy()), np.copy(self.bias.numpy())

    def state_bytes(self) -> int:
        return 2 * 4 * (int(tf.size(self.weight)) + int(tf.size(self.bias)))
