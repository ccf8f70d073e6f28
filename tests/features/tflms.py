"""Rows of TFLMS: tensors are swapped out while they are not needed."""

from __future__ import annotations

import re

from tests.features.notebook import notebook, notebook_files
from tests.features.table import NeedsError, row
from tests.features.tmci import no_gpu, site, with_site
from tests.features.work import Done, Work
from tests.support.paths import ROOT

KERAS = """
    import logging, sys
    import numpy as np
    import tensorflow as tf
    if "graph" in sys.argv:
        tf.compat.v1.disable_v2_behavior()
    from tensorflow import keras
    from hpcckpt.lms import LMS, stats
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    with np.load("mnist.npz") as data:
        x, y = (data["x_train"][:512, ..., None] / 255).astype("float32"), data["y_train"][:512].astype("int32")

    def cnn():
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(32, 3, activation="relu", **({"input_shape": (28, 28, 1)} if n == 0 else {})) for n in range(3)]
        model = keras.Sequential([*layers, keras.layers.MaxPooling2D(2), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def swapped():
        return sum(op["count"] for op in stats()["outs"].values())

    def batches():
        while True:
            for start in range(0, 512, 64):
                yield x[start : start + 64], y[start : start + 64]
"""


def keras_program(work: Work, program: str, *words: str, **env: str) -> Done:
    """Run a Keras program on MNIST; the word ``graph`` selects TensorFlow 1 mode."""
    if not (work.directory / "mnist.npz").exists():
        (work.directory / "mnist.npz").symlink_to(work.mnist())
    return work.python(KERAS + program, *words, **env)


@row("works")
def l1(work: Work) -> str:
    """L1: Sessions: `LMS().run()` before `tf.Session`

    `run` edits the graph of the notebook. Its session then swaps tensors out during training, and reaches the accuracy
    of the notebook.
    """
    done = notebook(work)
    swapped = int(done.find(r"^SWAPPED (\d+) ")[1])
    assert swapped >= 5 * 300, swapped
    assert float(done.find(r"^test accuracy (\S+)$")[1]) > 0.9
    return f"{swapped} swap-outs in 300 steps; {done.line('^test accuracy')}"


@row("works")
def l2(work: Work) -> str:
    """L2: Tensors are swapped between the memory of a GPU and that of the host

    Never shown. `make gpu` must print how many bytes were swapped, but no part of it runs LMS yet, and no GPU with
    TensorFlow was available.
    """
    work.sh(f"make -n -C {ROOT} gpu")
    tried = no_gpu(work)
    if tried:
        raise NeedsError("a GPU", tried)
    done = work.sh(f"make -C {ROOT} gpu", limit_s=1500, CUDA_VISIBLE_DEVICES="0")
    return done.line(r"\d+ bytes swapped")


@row("works")
def l3(work: Work) -> str:
    """L3: Estimators: `hooks=[logging_hook, lms_hook]`

    `examples/lms_mnist_estimator.py` trains 60 steps with LMS as a hook, and evaluates the model.
    """
    done = work.example("lms_mnist_estimator", "--steps", "60", "--data", str(work.mnist()))
    found = done.find(r"Added (\d+) operations to the model \((\d+) swap-out")
    assert int(found[2]) >= 1
    return f"{done.line('Added .* operations')[-90:]}; {done.line('^step 60: loss')}"


@row("works")
def l4(work: Work) -> str:
    """L4: Keras: `callbacks=[lms_callback]` of `fit`, in eager mode and in graph mode

    A CNN trains on MNIST in both modes, with and without LMS. LMS edits the graph and swaps, and the losses are the
    same.
    """
    program = """
    without = cnn().fit(x, y, 64, 1, shuffle=False, verbose=0).history["loss"]
    lms_callback = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    with_ = cnn().fit(x, y, 64, 1, shuffle=False, verbose=0, callbacks=[lms_callback]).history["loss"]
    print("RESULT", lms_callback.report().mode, "swap-outs", swapped(), "losses equal", without == with_)
    """
    lines = []
    for words in ((), ("graph",)):
        done = keras_program(work, program, *words, TF_ENABLE_ONEDNN_OPTS="0")
        done.line(r"\[LMS\]\[0\] Editing model for LMS")
        lines.append(done.line("^RESULT"))
        done.find(r"^RESULT (pass|graph) swap-outs [1-9]\d* losses equal True$")
    assert "pass" in lines[0]
    assert "graph" in lines[1]
    return "; ".join(lines)


@row("works")
def l5(work: Work) -> str:
    """L5: `model.fit_generator(generator=training_gen, callbacks=[lms_callback])`

    The line of TFLMS' documentation runs in graph mode and in eager mode. Swap-outs are executed, and the losses are
    the same as without LMS.
    """
    program = """
    def train(*callbacks):
        return cnn().fit_generator(generator=batches(), steps_per_epoch=8, verbose=0, callbacks=list(callbacks)).history["loss"]
    without, lms_callback = train(), LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    print("RESULT", train(lms_callback) == without, "swap-outs", swapped(), lms_callback.report().mode)
    """
    lines = []
    for words in (("graph",), ()):
        done = keras_program(work, program, *words, TF_ENABLE_ONEDNN_OPTS="0")
        done.find(r"^RESULT True swap-outs [1-9]\d*")
        lines.append(done.line("^RESULT"))
    return "; ".join(lines)


@row("works")
def l6(work: Work) -> str:
    """L6: `swapout_threshold`, `swapin_ahead`, `swapin_groupby`

    On the notebook's graph, a smaller threshold swaps more, and a larger `swapin_groupby` makes fewer swap-ins. A
    larger `swapin_ahead`, which begins swap-ins earlier, does not change the counts. `docs/lms.md` explains where the
    counts differ from TFLMS'.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        for given in ((50, 3, 2), (20, 3, 2), (5, 3, 2), (20, 3, 0), (20, 3, 60), (20, 12, 2)):
            tf.reset_default_graph()
            build()
            lms = LMS(*[given[0], given[2], given[1]])
            lms.run(tf.get_default_graph())
            plan = lms.report().plan
            print("COUNTS", *given, plan["n_swap_outs"], plan["n_swap_ins"], plan.get("n_edges", "-"), flush=True)
    """)
    counts = {tuple(map(int, given)): (int(outs), int(ins)) for *given, outs, ins in _counts(done)}
    assert counts[50, 3, 2][0] <= counts[20, 3, 2][0] <= counts[5, 3, 2][0], counts
    assert counts[50, 3, 2][0] < counts[5, 3, 2][0], counts
    assert counts[20, 3, 0][1] >= counts[20, 3, 2][1] >= counts[20, 3, 60][1], counts
    assert counts[20, 3, 0][1] > counts[20, 3, 60][1], counts
    assert counts[20, 12, 2] == counts[20, 3, 2], counts
    page = (ROOT / "docs/lms.md").read_text(encoding="utf-8")
    assert "Why these counts are not those of TFLMS" in page
    return f"threshold, ahead, groupby: swap-outs, swap-ins: {counts}"


def _counts(done: Done) -> list[tuple[str, ...]]:
    return re.findall(r"^COUNTS (\d+) (\d+) (\d+) (\d+) (\d+) ", done.out, re.MULTILINE)


@row("works")
def l7(work: Work) -> str:
    """L7: `sync_mode` 0 to 3

    The log has TFLMS' text for each of the four modes, and the note that `swapin_ahead` is ignored. The loss is the
    same in all modes.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        losses = []
        batch = mnist.train.next_batch(50)
        for mode in range(4):
            tf.reset_default_graph()
            tf.set_random_seed(1)
            x, y_, y_conv, keep_prob, loss, train_step, accuracy = build()
            LMS(swapout_threshold=20, swapin_ahead=3, swapin_groupby=2, sync_mode=mode).run(tf.get_default_graph())
            with tf.Session() as sess:
                sess.run(tf.global_variables_initializer())
                for _ in range(2):
                    found, _ = sess.run([loss, train_step], {x: batch[0], y_: batch[1], keep_prob: 1.0})
                losses.append(float(found))
        print("LOSSES", len(set(losses)), losses)
        """, TF_ENABLE_ONEDNN_OPTS="0")  # fmt: skip
    texts = {match[1] for match in re.finditer(r"sync_mode: (\d \(\w+.*?\))\s*$", done.out, re.MULTILINE)}
    assert len(texts) == 4, texts
    done.find(r"\(ignored since sync_mode is 2\)")
    done.find(r"^LOSSES 1 ")
    return f"{sorted(texts)[3]}; {done.line('^LOSSES')}"


@row("works")
def l8(work: Work) -> str:
    """L8: `serialization=[1, '3:5', 7]`, `serialization_by_size`

    `[21, '23:25', 27]` serializes levels 21, 23, 24, 25 and 27, and the graph then has more levels.
    `serialization_by_size` finds levels to serialize.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        for more in ({"serialization": [21, '23:25', 27]}, {"serialization": ["20:"]}, {"serialization_by_size": 0.0001}):
            tf.reset_default_graph()
            build()
            lms = LMS(swapout_threshold=20, swapin_ahead=3, swapin_groupby=2, **more)
            lms.batch_size = 50
            print("WITH", more, flush=True)
            lms.run(tf.get_default_graph())
    """)
    done.find(r"levels: \[21, 23, 24, 25, 27\]")
    before = int(done.find(r"Original categorized topological sort has (\d+) levels")[1])
    after = [int(each) for each in re.findall(r"New categorized topological sort has (\d+) levels", done.out)]
    assert len(after) >= 2, done.tail()
    assert max(after) > before, (before, after)
    return f"{done.line('levels: .21, 23, 24, 25, 27')[-70:]}; {before} levels become {after}"


@row("works")
def l9(work: Work) -> str:
    """L9: `debug`, `debug_level`

    With `debug=True`, the log has a line of level 1 for each swap-out, swap-in, connection and control edge. With
    `debug_level=2`, it also has a line for each operation. Without `debug`, it has none of these lines.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        for more in ({}, {"debug": True}, {"debug": True, "debug_level": 2}):
            tf.reset_default_graph()
            build()
            print("WITH", more, flush=True)
            lms = LMS(swapout_threshold=50, swapin_ahead=3, swapin_groupby=2, **more)
            lms.excl_output_by_scopes = {'loss', 'accuracy', 'dropout'}
            lms.run(tf.get_default_graph())
    """)
    plain, first, second = re.split(r"^WITH .*$", done.out, flags=re.MULTILINE)[1:]
    assert "[LMS][1]" not in plain
    assert "[LMS][2]" not in first
    assert first.count("Swap-out operation: ") == 5, done.tail()
    assert first.count("Swap-in operation: ") == 6
    assert "Control dependency: " in first
    assert second.count("[LMS][2]") > 300
    return done.line("Swap-out operation: ")


@row("works")
def l10(work: Work) -> str:
    """L10: `run(graph, keras)`: the default graph, and a second run

    Without arguments, `run` edits the default graph. A second run changes nothing and logs TFLMS' message.
    """
    notebook_files(work)
    done = work.python("""
        import inspect
        from deepnn import *
        build()
        print("ARGUMENTS", *inspect.signature(LMS.run).parameters)
        for _ in range(2):
            print("ADDED", len(LMS(swapout_threshold=20, swapin_ahead=3, swapin_groupby=2).run()), flush=True)
    """)
    done.find(r"^ARGUMENTS self graph keras")
    done.find(r"^ADDED [1-9]\d*$")
    done.find(r"^ADDED 0$")
    return done.line("has already been updated with LMS swap operations")


@row("better")
def l11(work: Work) -> str:
    """L11: Auto tuning: `lms.batch_size`, both errors, `TF_LMS_SIMULATOR_MEM_RATIO`, `autotune_gpu_mem`

    The notebook's model gives the error for a missing batch size, the error when no parameters are found, and the line
    that LMS is not necessary. That line is logged only after a step was run and measured. On a deep network with little
    memory, the search finds parameters.
    """
    notebook_files(work)
    done = work.python("""
        from deepnn import *
        def tuned(batch_size, gib=None):
            lms = LMS()
            lms.batch_size = batch_size
            if gib:
                lms.autotune_gpu_mem = gib
            return lms
        def run(name, lms):
            try:
                print(name, "added", len(lms.run(tf.get_default_graph())), flush=True)
            except ValueError as error:
                print(name, "ValueError", error, flush=True)
        build()
        run("PLACEHOLDERS", LMS())
        run("LITTLE", tuned(500, 0.1))
        run("ENOUGH", tuned(500))
        os.environ["TF_LMS_SIMULATOR_MEM_RATIO"] = "0.5"
        tf.reset_default_graph()
        hidden = tf.placeholder(tf.float32, [None, 64])
        for _ in range(10):
            hidden = tf.tanh(tf.matmul(hidden, weight_variable([64, 64])) + bias_variable([64]))
        tf.train.AdamOptimizer().minimize(tf.reduce_mean(hidden ** 2))
        run("DEEP", tuned(4096, 0.02))
    """)
    done.find(r"^PLACEHOLDERS ValueError .*feeding data via placeholders")
    done.find(r"^LITTLE ValueError .*unable to find a value for swapout_threshold\. Please specify it manually")
    done.find(r"Available memory for simulation: [\d.]+ GiB \(memory ratio: 0\.9\)")
    done.find(r"Available memory for simulation: 0\.01 GiB \(memory ratio: 0\.5\)")
    done.find(r"^ENOUGH added 0$")
    assert done.count("No step was run to verify this") == 0, done.line("No step was run to verify this")
    done.find(r"^DEEP added [1-9]")
    verified = re.findall(r"Verified: a step took .*$", done.out, re.MULTILINE)
    return f"{done.line('LMS is not necessary. Turned LMS off')}; deep: {verified[-1]}"


@row("works")
def l12(work: Work) -> str:
    """L12: Filters by scope and by type

    In Keras' `fit`, the types `Relu`, `Conv2D` and `MaxPool` are found although TensorFlow has fused operations. For a
    type that matches nothing, a warning lists the types of the graph.
    """
    done = keras_program(work, """
    for types in ({"Relu"}, {"Conv2D"}, {"MaxPool"}, {"Conv7D"}):
        lms = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
        lms.excl_output_by_types = types
        cnn().fit(x[:128], y[:128], 64, 1, verbose=0, callbacks=[lms])
        print("TRAINED", *types, lms.report().plan.get("n_swap_outs", 0), flush=True)
    lms = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    cnn().fit(x[:128], y[:128], 64, 1, verbose=0, callbacks=[lms])
    print("TRAINED none", lms.report().plan["n_swap_outs"])
    """)  # fmt: skip
    counts = dict(re.findall(r"^TRAINED (\w+) (\d+)$", done.out, re.MULTILINE))
    assert int(counts["Relu"]) < int(counts["none"]), counts
    assert counts["Conv7D"] == counts["none"], counts
    return f"swap-outs: {counts}; {done.line('No operations were found with types: Conv7D')[:110]}"


@row("works")
def l13(work: Work) -> str:
    """L13: A MetaGraph or SavedModel that was saved after LMS is loaded for inference or further training

    Both are saved from the notebook's graph. A new process imports `hpcckpt.lms`, predicts with the SavedModel and
    trains with the MetaGraph. A plain graph loads without hpcckpt.
    """
    notebook_files(work)
    work.python("""
        from deepnn import *
        import hpcckpt.lms
        x, y_, y_conv, keep_prob, loss, train_step, accuracy = build()
        LMS(swapout_threshold=20, swapin_ahead=3, swapin_groupby=2).run(tf.get_default_graph())
        images, labels = mnist.test.next_batch(50)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            tf.train.Saver().save(sess, "saved/model")
            tf.saved_model.simple_save(sess, "export", {"x": x, "keep_prob": keep_prob}, {"y": y_conv})
            numpy.savez("batch.npz", x=images, y=labels, out=y_conv.eval({x: images, keep_prob: 1.0}))
        with hpcckpt.lms.plain_graph(tf.get_default_graph()).as_default():
            tf.train.export_meta_graph("saved/plain.meta")
    """)
    load = """
        import sys, numpy
        if sys.argv[1] == "lms":
            import hpcckpt.lms
        import tensorflow.compat.v1 as tf
        tf.disable_v2_behavior()
        batch = numpy.load("batch.npz")
        saver = tf.train.import_meta_graph("saved/model.meta" if sys.argv[1] == "lms" else "saved/plain.meta")
        feed = {"Placeholder:0": batch["x"], "Placeholder_1:0": batch["y"], "dropout/Placeholder:0": 1.0}
        with tf.Session() as sess:
            (saver or tf.train.Saver()).restore(sess, "saved/model")
            losses = [float(sess.run(["loss/Mean:0", "adam_optimizer/Adam"], feed)[0]) for _ in range(4)]
        print("TRAINED", losses[-1] < losses[0], losses[0], "hpcckpt" in sys.modules)
        if sys.argv[1] == "lms":
            print("SWAPPED", sum(op["count"] for op in hpcckpt.lms.stats()["outs"].values()))
            with tf.Graph().as_default(), tf.Session() as sess:
                signature = tf.saved_model.load(sess, ["serve"], "export").signature_def["serving_default"]
                names = {key: info.name for key, info in signature.inputs.items()}
                out = sess.run(signature.outputs["y"].name, {names["x"]: batch["x"], names["keep_prob"]: 1.0})
            print("PREDICTED", numpy.allclose(out, batch["out"], atol=1e-4))
    """
    done, plain = work.python(load, "lms"), work.python(load, "plain")
    done.find(r"^TRAINED True")
    done.find(r"^SWAPPED [1-9]")
    done.find(r"^PREDICTED True$")
    plain.find(r"^TRAINED True \S+ False$")
    return (
        f"{done.line('^TRAINED')}; {done.line('^SWAPPED')}; {done.line('^PREDICTED')}; plain {plain.line('^TRAINED')}"
    )


@row("works")
def l14(work: Work) -> str:
    """L14: `keras.models.save_model` has no swap nodes, and the same weights

    Keras saves a model that trained with LMS as SavedModel and `.h5`. The files contain no operation of LMS, and the
    weights equal those of a training without LMS.
    """
    done = keras_program(work, """
    def train(*callbacks):
        model = cnn()
        model.fit(x, y, 64, 1, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model
    lms = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    model, plain = train(lms), train()
    keras.models.save_model(model, "saved")
    keras.models.save_model(model, "saved.h5")
    from pathlib import Path
    print("NODES", *(word in Path("saved/saved_model.pb").read_bytes() for word in (b"Hpcckpt", b"swapin")))
    loaded = keras.models.load_model("saved.h5").get_weights()
    equal = [a.tobytes() == b.tobytes() == c.tobytes() for a, b, c in zip(model.get_weights(), plain.get_weights(), loaded)]
    print("WEIGHTS", all(equal), len(equal), "swap-outs", lms.report().plan["n_swap_outs"])
    """, TF_ENABLE_ONEDNN_OPTS="0")  # fmt: skip
    done.find("^NODES False False$")
    return done.line(r"^WEIGHTS True \d+ swap-outs [1-9]")


@row("works")
def l15(work: Work) -> str:
    """L15: `load_model(filepath, callbacks=[lms_callback])`

    `hpcckpt.keras.load_model` loads `.h5`, `.keras`, a SavedModel of Keras, and a checkpoint of hpcckpt. LMS plans the
    next `fit` of each.
    """
    done = keras_program(work, """
    import hpcckpt as hc
    model = cnn()
    model.fit(x[:128], y[:128], 64, 1, verbose=0, callbacks=[hc.keras.ModelCheckpoint("run/{epoch}")])
    for path in ("k.h5", "k.keras", "saved"):
        model.save(path)
    for path in ("k.h5", "k.keras", "saved", "run"):
        lms_callback = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
        loaded = hc.keras.load_model(path, callbacks=[lms_callback])
        loaded.fit(x[:128], y[:128], 64, 1, verbose=0)
        print("LOADED", path, lms_callback.report().mode, lms_callback.report().plan["n_swap_outs"], flush=True)
    """)  # fmt: skip
    assert done.count(r"^LOADED \S+ pass [1-9]") == 4, done.tail()
    return "; ".join(line for line in done.out.splitlines() if line.startswith("LOADED"))


@row("works")
def l16(work: Work) -> str:
    """L16: The mode `SCHEDULING_HEURISTICS` of a session

    `lms.session_config()` sets the mode, and a session accepts it.
    """
    done = work.python("""
        import tensorflow.compat.v1 as tf
        from tensorflow.core.protobuf import rewriter_config_pb2
        import hpcckpt.lms
        config = hpcckpt.lms.session_config()
        found = config.graph_options.rewrite_options.memory_optimization
        print("MODE", found, found == rewriter_config_pb2.RewriterConfig.SCHEDULING_HEURISTICS)
        with tf.Graph().as_default(), tf.Session(config=config) as sess:
            print(sess.run(tf.constant(1)))
    """)
    return done.line("^MODE 6 True$")


@row("works")
def l17(work: Work) -> str:
    """L17: Large data: raise the image size until memory runs out, then try the options

    `examples/lms_large.py` has TFLMS' options (sync mode, serialization, serialization by size, -1 for a search,
    networks of Keras, channels first). It trains with and without LMS, writes CSV, and lists the largest tensors when
    memory runs out.
    """
    usage = work.example("lms_large", "--help")
    for option in (
        "--sync-mode",
        "--serialization",
        "--serialization-by-size",
        "--channels-first",
        "--network",
        "--grow",
    ):
        usage.find(re.escape(option) + r"\b")
    size = ["--network", "MobileNetV2", "--image-size", "64", "--batch-size", "4", "--stats-csv", "stats.csv"]
    work.example("lms_large", *size, "--no-lms")
    distance = [
        "--swapout-threshold",
        "60",
        "--swapin-ahead",
        "3",
        "--swapin-groupby",
        "2",
        "--sync-mode",
        "3",
        "--serialization",
        "1",
        "3:5",
        "7",
    ]
    done = work.example("lms_large", *size, *distance)
    grown = work.example(
        "lms_large", *size[:-2], "--no-lms", "--grow", "batch", "--by", "8", "--cap-gib", "0.3", "--most", "4"
    )
    assert grown.count("out of memory") == 1, grown.tail()
    assert grown.count(r"MiB") > grown.count("peak"), f"no list of tensors\n{grown.tail()}"
    csv = (work.directory / "stats.csv").read_text(encoding="utf-8").splitlines()
    assert len(csv) == 3, csv
    return f"{done.out.splitlines()[-1][:130]}; {grown.line('out of memory')[:70]}"


@row("works")
def l18(work: Work) -> str:
    """L18: The log lines, with `tf.logging.set_verbosity(tf.logging.INFO)` alone

    The lines of the notebook appear in the same order, and begin with `INFO:tensorflow:[LMS][0]`.
    """
    done = notebook(work)
    patterns = [
        r"Editing model for LMS$", r"The graph has \d+ vertices and \d+ edges\.$", r"The graph has [\d.]+ MiB of learning parameters",
        r"The largest operation is \S+ consuming [\d.]+ GiB", r"Original categorized topological sort has \d+ levels",
        r"swapout_threshold: 50", r"swapin_ahead: 3", r"swapin_groupby: 2", r"A histogram of distances was written to",
        r"Added 11 operations to the model", r"Editing model for LMS, took: [\d.]+ ms",
    ]  # fmt: skip
    lines = [line for line in done.out.splitlines() if line.startswith("INFO:tensorflow:[LMS][0]")]
    at = 0
    for pattern in patterns:
        at = next((n for n in range(at, len(lines)) if re.search(pattern, lines[n])), -1) + 1
        assert at, f"{pattern} is not in its place: {lines}"
    return lines[0] + f" and {len(lines) - 1} more lines"


@row("works")
def l19(work: Work) -> str:
    """L19: Install without a second command

    After `pip install`, `fit` trains with LMS in eager mode and in the session of graph mode. Nothing is built, and no
    further command is needed.
    """
    where = work.session.once("site", site)
    program = """
    import hpcckpt
    lms = LMS(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    cnn().fit(x[:128], y[:128], 64, 1, verbose=0, callbacks=[lms])
    print("TRAINED", hpcckpt.__file__, lms.report().mode, swapped())
    """
    lines = []
    for words, mode in (((), "pass"), (("graph",), "graph")):
        done = keras_program(work, program, *words, **with_site(where))
        assert done.count("building the TensorFlow ops") == 0, done.tail()
        done.find(rf"^TRAINED {re.escape(str(where))}/\S+ {mode} [1-9]")
        lines.append(done.line("^TRAINED")[-40:])
    return "; ".join(lines)


@row("better")
def l20(work: Work) -> str:
    """L20: Beyond TFLMS: a memory budget that is verified

    The first step is measured and keeps a feasible budget. An infeasible budget is rejected before the first step, with
    the nearest feasible one. `Verified:` is never printed for a step that used more.
    """
    kept = work.example("lms_mnist_keras", "--memory-budget", "150 MiB", "--limit", "2048", "--data", str(work.mnist()))
    took, budget = kept.find(r"Verified: a step took ([\d.]+) MiB, within the memory budget of ([\d.]+) MiB").groups()
    assert float(took) <= float(budget)
    refused = work.example(
        "lms_mnist_keras", "--memory-budget", "30 MiB", "--limit", "512", "--data", str(work.mnist()), code=None
    )
    assert refused.code != 0
    for done in (kept, refused):
        for took, budget in re.findall(r"Verified: a step took ([\d.]+) MiB\D+([\d.]+) MiB", done.out):
            assert float(took) <= float(budget), done.tail()
    nearest = refused.line(r"MemoryBudgetError: .*nearest")
    return f"{kept.line('Verified: a step took')}; {nearest[-110:]}"


@row("better")
def l21(work: Work) -> str:
    """L21: Beyond TFLMS: `tf.function`, predictions, and refusals with a remedy

    `lms.watch(step)` swaps in a user's own loop. `is_training = False` plans `predict`. For XLA and for eager
    execution, a line describes what to do.
    """
    done = keras_program(work, """
    given = dict(swapout_threshold=10, swapin_ahead=3, swapin_groupby=2)
    model, optimizer, lms = cnn(), keras.optimizers.SGD(), LMS(**given)
    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    optimizer.build(model.trainable_variables)
    step = lms.watch(step)
    for _ in range(2):
        step(tf.constant(x[:64]), tf.constant(y[:64]))
    print("WATCHED", lms.report().mode, swapped(), flush=True)
    lms = LMS(swapout_threshold=2, swapin_ahead=1, swapin_groupby=0)
    lms.is_training = False
    cnn().predict(x[:128], 64, verbose=0, callbacks=[lms])
    print("PREDICTED", lms.report().mode, lms.report().plan.get("n_swap_outs"), flush=True)
    for options in ({"jit_compile": True}, {"run_eagerly": True}):
        model = cnn()
        model.compile("sgd", "sparse_categorical_crossentropy", **options)
        lms = LMS(**given)
        model.fit(x[:64], y[:64], 64, 1, verbose=0, callbacks=[lms])
        print("REFUSED", options, lms.report().notes, flush=True)
    """)  # fmt: skip
    done.find(r"^WATCHED pass [1-9]")
    assert "jit_compile=False" in done.line(r"^REFUSED .*jit_compile")
    assert "compile it without" in done.line(r"^REFUSED .*run_eagerly")
    done.find(r"^PREDICTED pass")
    return f"{done.line('^WATCHED')}; {done.line('^PREDICTED')}; {done.line('^REFUSED')[:120]}"


@row("better")
def l22(work: Work) -> str:
    """L22: With Horovod, the same plan on all ranks

    `mpirun -n 2 examples/lms_horovod.py` compares the digests of the plans before the first step.
    """
    done = work.example(
        "lms_horovod", "--run", "runs/lms", "--epochs", "1", "--limit", "1024", "--data", str(work.mnist()), ranks=2
    )
    assert done.total(r"\[[01]\] plan as on rank 0: True, [1-9]\d* swap-outs") == 2, done.tail()
    return done.line(r"\[1\] plan as on rank 0")
