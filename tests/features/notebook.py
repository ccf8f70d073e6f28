"""Rows of the TFLMS notebook: a CNN on MNIST in a session."""

from __future__ import annotations

import re

from tests.features.table import row
from tests.features.work import Done, Work
from tests.support.paths import ROOT

DEEPNN = """
import os
import numpy
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)
# Enable Large Model Support
from hpcckpt.lms import LMS

class DataSet:      # tensorflow.examples.tutorials.mnist.input_data, which TensorFlow 2 has no more
    def __init__(self, images, labels):
        self.images, self.labels, self.at = images.reshape(-1, 784).astype("float32") / 255, labels.astype("int64"), 0
    def next_batch(self, n, shuffle=True):
        rows = numpy.arange(self.at, self.at + n) % len(self.images)
        self.at += n
        return self.images[rows], self.labels[rows]

class mnist:
    with numpy.load("mnist.npz") as data:
        train, test = DataSet(data["x_train"], data["y_train"]), DataSet(data["x_test"], data["y_test"])

def deepnn(x):
  with tf.name_scope('reshape'):
    x_image = tf.reshape(x, [-1, 28, 28, 1])
  with tf.name_scope('conv1'):
    W_conv1 = weight_variable([5, 5, 1, 32])
    b_conv1 = bias_variable([32])
    h_conv1 = tf.nn.relu(conv2d(x_image, W_conv1) + b_conv1)
  with tf.name_scope('pool1'):
    h_pool1 = max_pool_2x2(h_conv1)
  with tf.name_scope('conv2'):
    W_conv2 = weight_variable([5, 5, 32, 64])
    b_conv2 = bias_variable([64])
    h_conv2 = tf.nn.relu(conv2d(h_pool1, W_conv2) + b_conv2)
  with tf.name_scope('pool2'):
    h_pool2 = max_pool_2x2(h_conv2)
  with tf.name_scope('fc1'):
    W_fc1 = weight_variable([7 * 7 * 64, 1024])
    b_fc1 = bias_variable([1024])
    h_pool2_flat = tf.reshape(h_pool2, [-1, 7 * 7 * 64])
    h_fc1 = tf.nn.relu(tf.matmul(h_pool2_flat, W_fc1) + b_fc1)
  with tf.name_scope('dropout'):
    keep_prob = tf.placeholder(tf.float32)
    h_fc1_drop = tf.nn.dropout(h_fc1, keep_prob)
  with tf.name_scope('fc2'):
    W_fc2 = weight_variable([1024, 10])
    b_fc2 = bias_variable([10])
    y_conv = tf.matmul(h_fc1_drop, W_fc2) + b_fc2
  return y_conv, keep_prob

def conv2d(x, W):
  return tf.nn.conv2d(x, W, strides=[1, 1, 1, 1], padding='SAME')

def max_pool_2x2(x):
  return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding='SAME')

def weight_variable(shape):
  initial = tf.truncated_normal(shape, stddev=0.1, seed=1)
  return tf.Variable(initial)

def bias_variable(shape):
  initial = tf.constant(0.1, shape=shape)
  return tf.Variable(initial)

def build():
    x = tf.placeholder(tf.float32, [None, 784])
    y_ = tf.placeholder(tf.int64, [None])
    y_conv, keep_prob = deepnn(x)
    with tf.name_scope('loss'):
        cross_entropy = tf.losses.sparse_softmax_cross_entropy(labels=y_, logits=y_conv)
        cross_entropy = tf.reduce_mean(cross_entropy)
    with tf.name_scope('adam_optimizer'):
        train_step = tf.train.AdamOptimizer(1e-4).minimize(cross_entropy)
    with tf.name_scope('accuracy'):
        correct_prediction = tf.equal(tf.argmax(y_conv, 1), y_)
        correct_prediction = tf.cast(correct_prediction, tf.float32)
    accuracy = tf.reduce_mean(correct_prediction)
    return x, y_, y_conv, keep_prob, cross_entropy, train_step, accuracy
"""
CELLS = """
import tempfile
from deepnn import *
import hpcckpt.lms
x, y_, y_conv, keep_prob, cross_entropy, train_step, accuracy = build()
lms_model = LMS(swapout_threshold=50, swapin_ahead=3, swapin_groupby=2)
lms_model.autotune_plot = True
lms_model.excl_output_by_scopes = {'loss', 'accuracy', 'dropout'}
lms_model.run(tf.get_default_graph())

graph_location = tempfile.mkdtemp(dir=".")
print('Saving graph to: %s' % graph_location)
train_writer = tf.summary.FileWriter(graph_location)
train_writer.add_graph(tf.get_default_graph())
train_writer.close()

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(300):
        batch = mnist.train.next_batch(50)
        if i % 100 == 0:
            train_accuracy = accuracy.eval(feed_dict={x: batch[0], y_: batch[1], keep_prob: 1.0})
            print('step %d, training accuracy %g' % (i, train_accuracy), flush=True)
        train_step.run(feed_dict={x: batch[0], y_: batch[1], keep_prob: 0.5})

    # compute in batches to avoid OOM on GPUs
    accuracy_l = []
    for _ in range(20):
        batch = mnist.test.next_batch(500, shuffle=False)
        accuracy_l.append(accuracy.eval(feed_dict={x: batch[0], y_: batch[1], keep_prob: 1.0}))
print('test accuracy %g' % numpy.mean(accuracy_l))
stats = hpcckpt.lms.stats()
print("SWAPPED", sum(op["count"] for op in stats["outs"].values()), "edges", lms_model.report().n_edges)
for name in os.listdir(graph_location):
    for event in tf.train.summary_iterator(os.path.join(graph_location, name)):
        if event.graph_def:
            names = [node.name for node in tf.GraphDef.FromString(event.graph_def).node]
            print("EVENTS", len(names), *sorted(name for name in names if name.startswith("lms/")))
"""


def notebook_files(work: Work) -> None:
    """Write the cells that define the model, and the data, into the row's directory."""
    (work.directory / "mnist.npz").symlink_to(work.mnist())
    work.write("deepnn.py", DEEPNN)


def _run(work: Work) -> Done:
    notebook_files(work)
    done = work.python(CELLS)
    histogram = done.find(r"A histogram of distances was written to (\S+)$")[1]
    return Done(
        done.command, done.code, done.out + "\nHISTOGRAM\n" + open(histogram, encoding="utf-8").read(), done.seconds
    )


def notebook(work: Work) -> Done:
    """Return the output of the notebook's cells, run once for all rows."""
    return work.session.once("notebook", _run)


@row("works")
def n1(work: Work) -> str:
    """N1: The cells of the notebook, unchanged

    `deepnn`, the three parameters, `excl_output_by_scopes` and `run(tf.get_default_graph())` run in
    `tensorflow.compat.v1`. Only the import is changed, and the row defines the reader of MNIST, which TensorFlow 2 no
    longer has.
    """
    done = notebook(work)
    for line in ("swapout_threshold: 50", "swapin_ahead: 3", "swapin_groupby: 2"):
        done.find(re.escape(line))
    return done.line("Added .* operations to the model")


@row("works")
def n2(work: Work) -> str:
    """N2: Its numbers: vertices, levels, swap-outs and swap-ins

    The graph has 368 vertices, 5 swap-outs and 6 swap-ins. TFLMS adds 6 and 7; `docs/lms.md` has both pairs of numbers
    and explains the difference.
    """
    done = notebook(work)
    done.find(r"The graph has 368 vertices and \d+ edges\.")
    done.find(r"has (8\d|9\d) levels")
    page = (ROOT / "docs/lms.md").read_text(encoding="utf-8")
    assert re.search(r"6 swap-outs and 7 swap-ins for its model, hpcckpt 5 and 6", page), (
        "docs/lms.md does not explain it"
    )
    return done.line(r"Added 11 operations to the model \(5 swap-out operations .* and 6 swap-in operations")


@row("works")
def n3(work: Work) -> str:
    """N3: The histogram of distances in `.lms/`

    The log names the file. Its header is that of TFLMS, and the sum of its frequencies is the number of edges of the
    graph.
    """
    done = notebook(work)
    rows = done.out.partition("\nHISTOGRAM\n")[2].splitlines()
    assert rows[0] == "#distance\tfrequency", rows[0]
    total = sum(int(line.split("\t")[1]) for line in rows[1:])
    assert total == int(done.find(r"^SWAPPED \d+ edges (\d+)$")[1]), total
    assert "/.lms/" in done.line("A histogram of distances was written to")
    return f"{rows[0]!r}, {len(rows) - 1} distances, {total} edges"


@row("works")
def n4(work: Work) -> str:
    """N4: The edited graph for TensorBoard

    The notebook's `FileWriter.add_graph` writes an event file. The graph in it contains the operations of LMS.
    """
    names = notebook(work).find(r"^EVENTS \d+ (.*)$")[1].split()
    outs = [name for name in names if "swapout" in name]
    assert (len(outs), len(names) - len(outs)) == (5, 6), names
    return f"event file with {len(names)} operations of LMS: {names[0]} …"


@row("works")
def n5(work: Work) -> str:
    """N5: "Auto tuning will determine that TFLMS is not needed and disable it"

    The notebook's model runs with `LMS()`. Without a batch size, it raises TFLMS' error. With one, it logs TFLMS' line.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        build()
        try:
            LMS().run(tf.get_default_graph())
        except ValueError as error:
            print("ValueError", error)
        lms = LMS()
        lms.batch_size = 50
        print("added", lms.run(tf.get_default_graph()))
    """)
    done.find("^ValueError .*feeding data via placeholders")
    done.find(r"^added set\(\)$")
    return done.line("LMS is not necessary. Turned LMS off")


@row("works")
def n6(work: Work) -> str:
    """N6: Test accuracy above 0.9, computed in batches

    The notebook's training runs 300 steps with the notebook's learning rate. The notebook itself reaches 0.9146.
    """
    done = notebook(work)
    accuracy = float(done.find(r"^test accuracy (\S+)$")[1])
    assert accuracy > 0.9, accuracy
    return done.line("^test accuracy")


@row("works")
def n7(work: Work) -> str:
    """N7: A tutorial as a notebook

    `notebooks/large_model_support.ipynb` runs from top to bottom. The stored notebook contains its numbers, the
    histogram and the memory of a step.
    """
    done = work.sh(
        f"python -m pytest -q -p no:cacheprovider --rootdir {ROOT} -c {ROOT}/pyproject.toml {ROOT}/tests/docs/test_notebooks.py"
        " -k 'large_model_support and runs or executed_notebook'"
    )
    return done.line(r"2 passed")


@row("works")
def n8(work: Work) -> str:
    """N8: 3-D U-Net, a comparison with gradient checkpointing, LMS with distributed training

    `examples/lms_large.py --network unet3d` trains with LMS, with `tf.recompute_grad`, and with neither. Its CSV
    compares them. `examples/lms_horovod.py` is row L22.
    """
    common = "--network unet3d --image-size 32 --batch-size 1 --depth 2 --filters 8 --stats-csv stats.csv"
    for options in ("--no-lms", "", "--no-lms --recompute-grad"):
        work.example("lms_large", *common.split(), *options.split())
    rows = [line.split(",") for line in (work.directory / "stats.csv").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 4, rows
    at = rows[0].index("peak_mib")
    page = (ROOT / "docs/lms.md").read_text(encoding="utf-8")
    assert re.search(r"3-D U-Net|unet3d", page), "docs/lms.md has no measured comparison with a 3-D U-Net"
    plain, lms, recomputed = (float(each[at]) for each in rows[1:])
    return f"peak MiB: without {plain:.0f}, LMS {lms:.0f}, recompute_grad {recomputed:.0f}"
