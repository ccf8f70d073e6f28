"""Rows of TMCI: a plugin saves TensorFlow tensors directly from their memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import sysconfig
from pathlib import Path

from tests.features.table import row
from tests.features.work import Work
from tests.frameworks.tmci.test_cmake_projects import TMCI_STYLE
from tests.support.jobs.batch_server import BatchServer
from tests.support.paths import ROOT, TESTS

N_TENSORS = 25  # Keras 2.15: 8 weights, Adam's iteration counter, two slots for each weight
LENET5 = """
    from time import time
    import numpy as np
    import tensorflow as tf
    from tensorflow.keras.models import Sequential
    from tensorflow.keras.layers import Conv2D, Dense, Flatten, MaxPooling2D
    import hpcckpt.tmci as tmci
    import hpcckpt.tmci.checkpoint

    tmci.plugins.load("plugin/build/src/libdummy.so")
    print("===> Loading MNIST dataset")
    with np.load("mnist.npz") as data:      # mnist.load_data() needs the network
        x_train, y_train, x_test, y_test = (data[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    x_train, x_test = x_train[:6000, ..., None] / 255.0, x_test[..., None] / 255.0
    y_train, y_test = tf.keras.utils.to_categorical(y_train[:6000]), tf.keras.utils.to_categorical(y_test)
    print("===> Creating model")
    model = Sequential([
        Conv2D(20, 5, padding="same", activation="relu", input_shape=(28, 28, 1)), MaxPooling2D(2, 2),
        Conv2D(50, 5, padding="same", activation="relu"), MaxPooling2D(2, 2),
        Flatten(), Dense(500, activation="relu"), Dense(10, activation="softmax"),
    ])
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    print("===> Training")
    callback = tmci.checkpoint.CheckpointCallback("dummy", frequency={"epoch": 1}, include_optimizer=True)
    model.fit(x_train, y_train, batch_size=128, epochs=1, verbose=1, callbacks=[callback])
    print("===> Saving model")
    tmci.checkpoint.save_weights(model, backend="dummy", include_optimizer=True)
    print("===> Evaluating model")
    before = model.evaluate(x_test, y_test, verbose=0)
    print("===> Reloading model")
    tmci.checkpoint.load_weights(model, backend="dummy", include_optimizer=True)
    assert model.evaluate(x_test, y_test, verbose=0) == before
    print("scores", *before)
"""
LINEAR = """
    import sys
    import keras, numpy as np, tensorflow as tf
    import hpcckpt.tmci as tmci
    keras.utils.set_random_seed(1)
    def linear():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model
    x = np.ones((25, 1), "float32")
"""


def _plugin(work: Work) -> Path:
    """Build the folder `plugin` with the commands of TMCI's documentation."""
    shutil.copytree(ROOT / "plugin", work.directory / "plugin", ignore=shutil.ignore_patterns("build"))
    work.sh("cd plugin\nmkdir build\ncd build\ncmake ..\nmake")
    return work.directory / "plugin"


def site(work: Work) -> Path:
    """Install a copy of the sources into an empty directory, and return it.

    The virtual environment ``env`` beside it imports from that directory and from the packages of the running Python.
    It does not have the import hook of an editable installation, which would take precedence over every path.
    """
    source = work.directory / "source"
    built = shutil.ignore_patterns("__pycache__", "*_ops-*.so", "_native.*.so", "installed")
    shutil.copytree(ROOT / "hpcckpt", source / "hpcckpt", ignore=built)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = "--no-index --no-deps --no-build-isolation --disable-pip-version-check"
    done = work.sh(f"pip install {options} --target site ./source")
    work.write("seconds", f"{done.seconds:.0f}")
    env, where = work.directory / "env", work.directory / "site"
    work.sh("python -m venv --without-pip env")
    paths = f"{where}\n{sysconfig.get_path('purelib')}\n"
    Path(sysconfig.get_path("purelib", "venv", {"base": str(env)}), "paths.pth").write_text(paths, encoding="utf-8")
    return where


def with_site(where: Path) -> dict[str, str]:
    """Return the environment in which ``python`` imports the package from `site`."""
    return {"PATH": os.pathsep.join([str(where.parent / "env" / "bin"), os.environ["PATH"]])}


@row("works")
def t1(work: Work) -> str:
    """T1: Install with one command; `import tmci` returns without an error

    `pip install` installs the sources into an empty directory. A program imports `hpcckpt.tmci` from there and saves.
    No second command builds the ops.
    """
    where = work.session.once("site", site)
    done = work.python(
        """
        import hpcckpt.tmci as tmci, tensorflow as tf
        print(tmci.__file__)
        tmci.save_variables([tf.Variable(tf.ones((2, 3)))], "dummy")
        """,
        **with_site(where),
    )
    done.find(rf"^{re.escape(str(where))}/hpcckpt/tmci/__init__.py$")
    done.find(r"^  data=0x\w+ size=24$")
    assert done.count("building the TensorFlow ops") == 0, done.tail()
    took = (where.parent / "seconds").read_text(encoding="utf-8")
    return f"pip install took {took} s; {done.line('DUMMY. Saving')}"


@row("better")
def t2(work: Work) -> str:
    """T2: `tensorflow.json` with TMCI's four keys; for `null`, the value comes from the installed TensorFlow

    `python -m hpcckpt.native.tfinfo --file tensorflow.json` prints each value and its source.
    """
    keys = ("libraries", "library_dirs", "include_dirs", "extra_cxxflags")
    work.write("tensorflow.json", json.dumps(dict.fromkeys(keys)))
    done = work.sh("python -m hpcckpt.native.tfinfo --file tensorflow.json")
    for key in keys:
        done.find(rf"^{key} +tf\.sysconfig +\S")
    work.write("tensorflow.json", json.dumps({**dict.fromkeys(keys), "library_dirs": ["/opt/tf"]}))
    return work.sh("python -m hpcckpt.native.tfinfo --file tensorflow.json").line(
        r"^library_dirs .*tensorflow.json +/opt/tf$"
    )


@row("better")
def t3(work: Work) -> str:
    """T3: TMCI's own `tensorflow.json`, with `-D_GLIBCXX_USE_CXX11_ABI=0` for pip's TensorFlow

    The build rejects a flag that contradicts the installed TensorFlow. The error message names the remedy.
    """
    flags = {"libraries": None, "library_dirs": None, "include_dirs": None}
    work.write("tensorflow.json", json.dumps({**flags, "extra_cxxflags": ["-D_GLIBCXX_USE_CXX11_ABI=0"]}))
    (work.directory / "ops").mkdir(mode=0o700)
    options = {"HPCCKPT_TENSORFLOW_JSON": "tensorflow.json", "HPCCKPT_TF_OPS_DIR": str(work.directory / "ops")}
    done = work.sh("python -m hpcckpt.native.build", code=None, **options)
    assert done.code != 0
    return done.line(r"says _GLIBCXX_USE_CXX11_ABI=0, and TensorFlow \S+ was compiled with 1: leave the flag out")


@row("works")
def t4(work: Work) -> str:
    """T4: TMCI's example `lenet5.py` with only its imports changed: two saves and one load of 25 tensors

    The program of TMCI's documentation runs with the plugin that the documentation's commands build. It reads the
    images from a file, because `mnist.load_data` needs the network.
    """
    plugin = work.session.once("plugin", _plugin)
    (work.directory / "plugin").symlink_to(plugin)
    (work.directory / "mnist.npz").symlink_to(work.mnist())
    done = work.python(LENET5)
    assert done.count("^===> ") == 6
    assert re.findall(r"\[DUMMY\] (\w+) 25 tensors:", done.out) == ["Saving", "Saving", "Loading"], done.tail()
    assert done.count("data=0x") == 3 * N_TENSORS
    accuracy = float(done.find(r"^scores \S+ (\S+)$")[1])
    assert accuracy > 0.8, accuracy
    return f"3 blocks of 25 tensors, {done.count('data=0x')} lines data=0x…, {done.line('^scores')}"


@row("works")
def t5(work: Work) -> str:
    """T5: hpcckpt's version of this example, which needs no network, with any backend

    `examples/tmci_lenet5.py` runs with dummy, posix, hdf5 and plugin:posix, and with rankfile on 2 ranks. The scores
    after loading equal those before.
    """
    done = work.example("tmci_lenet5", "--limit", "2000")
    assert done.count("^===> ") == 6
    assert done.count("data=0x") == 3 * N_TENSORS
    for backend, ranks in (("posix", 0), ("hdf5", 0), ("plugin:posix", 0), ("rankfile", 2)):
        place = ["--config", "path=run"] if ranks else []  # the same on all ranks
        other = work.example("tmci_lenet5", "--limit", "1000", "--backend", backend, *place, ranks=ranks)
        assert other.total("scores are equal") == max(ranks, 1), other.tail()
    return f"six lines ===>, 3 x 25 tensors, {done.line('^scores are equal')}, with 5 backends"


@row("works")
def t6(work: Work) -> str:
    """T6: `CheckpointCallback`, `save_weights`, `load_weights` with TMCI's arguments and error messages

    A program compares the signatures, passes an argument of the wrong type, and names an unknown backend.
    """
    done = work.python("""
        import inspect
        from hpcckpt.tmci.checkpoint import CheckpointCallback, load_weights, save_weights
        import hpcckpt.tmci as tmci
        for call in (CheckpointCallback, save_weights, load_weights):
            print(call.__name__, *inspect.signature(call).parameters)
        try:
            tmci.CheckpointCallback(7)
        except TypeError as error:
            print("TypeError:", error)
        import tensorflow as tf
        try:
            tmci.save_variables([tf.Variable(1.0)], "nobody")
        except Exception as error:
            print(type(error).__name__, error)
    """)
    done.find(r"^CheckpointCallback backend config frequency include_optimizer")
    done.find(r"^save_weights model backend config include_optimizer")
    done.find(r"^load_weights model backend config include_optimizer")
    done.find(r"^BackendNotFoundError .*'nobody' not found; known: dummy")
    return done.line("^TypeError: backend should be a string")


@row("better")
def t7(work: Work) -> str:
    """T7: `frequency` with `epoch` and `batch`

    A program trains with 25 batches per epoch and counts the saves of the plugin dummy: with each key, with `step`, and
    with two keys together. In TMCI, `batch` raises a NameError.
    """
    done = work.python(
        LINEAR
        + """
    for frequency, epochs in (({"epoch": 2}, 4), ({"batch": 10}, 2), ({"step": 10}, 2), ({"epoch": 1, "batch": 12}, 1)):
        print("FREQUENCY", frequency, epochs, flush=True)
        model = linear()
        model.fit(x, x, 1, epochs, verbose=0, callbacks=[tmci.CheckpointCallback("dummy", frequency=frequency)])
    """
    )
    blocks = re.split(r"^FREQUENCY ", done.out, flags=re.MULTILINE)[1:]
    counts = {block.splitlines()[0]: block.count("[DUMMY] Saving") for block in blocks}
    assert list(counts.values()) == [2, 4, 5, 3], counts
    return f"saves: {counts}"


@row("works")
def t8(work: Work) -> str:
    """T8: `include_optimizer`: the slots of the optimizer are created before a load

    A new model that has trained no step loads the optimizer state of a saved model. With `include_optimizer=False`, its
    optimizer does not change.
    """
    done = work.python(
        LINEAR
        + """
    first = linear()
    first.fit(x, x, 5, 3, verbose=0)
    import os
    os.mkdir("all"), os.mkdir("some")
    tmci.save_weights(first, "posix", "directory=all")
    tmci.save_weights(first, "posix", "directory=some", include_optimizer=False)
    for where, has_optimizer in (("all", True), ("some", False)):
        fresh = linear()
        tmci.load_weights(fresh, "posix", f"directory={where}", include_optimizer=has_optimizer)
        same = all((a == b).all() for a, b in zip(fresh.get_weights(), first.get_weights()))
        slots = [v.numpy() for v in fresh.optimizer.variables() if v.shape.rank]
        print(where, "weights", same, "iterations", int(fresh.optimizer.iterations), "moments", any(s.any() for s in slots))
    """
    )
    done.find(r"^some weights True iterations 0 moments False$")
    return done.line(r"^all weights True iterations 15 moments True$")


@row("works")
def t9(work: Work) -> str:
    """T9: Plugins are dynamic libraries; loading one twice has no effect, and a wrong path is an error

    A program calls `plugins.load` twice for the plugin that the documentation's commands build. For a file that does
    not exist, `plugins.load` raises an error.
    """
    plugin = work.session.once("plugin", _plugin) / "build/src/libdummy.so"
    done = work.python(
        """
        import sys
        import hpcckpt.tmci as tmci
        first, second = tmci.plugins.load(sys.argv[1]), tmci.plugins.load(sys.argv[1])
        print([each.name for each in first], first == second)
        try:
            tmci.plugins.load("libnothing.so")
        except OSError as error:
            print(type(error).__name__, error)
        """,
        str(plugin),
    )
    done.find(r"^\['dummy'\] True$")
    assert "HPCCKPT_PLUGIN_PATH" in done.line("^PluginError")
    return done.line("^PluginError")


@row("works")
def t10(work: Work) -> str:
    """T10: A plugin that was written for TMCI (`tmci::Backend`, `TMCI_REGISTER_BACKEND`) compiles unchanged

    The plugin's sources replace those of a project that `hpcckpt plugin new dummy --lang tmci` creates. `cmake` and
    `make` build it, and it prints TMCI's lines.
    """
    work.sh("hpcckpt plugin new dummy --lang tmci")
    source = ROOT / "plugin" / "src"
    shutil.copy(source / "DummyBackend.hpp", work.directory / "dummy")
    shutil.copy(source / "DummyBackend.cpp", work.directory / "dummy" / "dummy.cpp")
    made = work.sh("cd dummy && mkdir build && cd build && cmake .. && make")
    done = work.python("""
        import hpcckpt.tmci as tmci, tensorflow as tf
        tmci.plugins.load("dummy/build/libdummy.so")
        tmci.save_variables([tf.Variable(tf.ones((2, 3)))], "dummy", "some config")
    """)
    done.find(r"^\[DUMMY\] Initialization, config: some config$")
    done.find(r"^  data=0x\w+ size=24$")
    return f"built in {made.seconds:.0f} s; {done.line('DUMMY. Saving 1 tensors:')}"


@row("works")
def t11(work: Work) -> str:
    """T11: `cd plugin; mkdir build; cd build; cmake ..; make` gives `build/src/libdummy.so`; TMCI's own CMakeLists.txt does too

    Exactly these commands build the folder `plugin`. A second build uses a CMakeLists.txt like TMCI's, in which only
    `import tmci` is changed.
    """
    plugin = work.session.once("plugin", _plugin)
    assert (plugin / "build/src/libdummy.so").is_file()
    shutil.copytree(plugin, work.directory / "theirs", ignore=shutil.ignore_patterns("build"))
    original = TMCI_STYLE.replace("import hpcckpt.tmci as tmci;", "import tmci;")
    assert original != TMCI_STYLE
    work.write("theirs/CMakeLists.txt", original)
    work.write("theirs/src/CMakeLists.txt", """
        add_library(dummy SHARED DummyBackend.cpp)
        target_link_libraries(dummy ":${TMCI_LIBRARIES}")
    """)  # fmt: skip
    work.sh("""cd theirs
        sed -i 's/import tmci;/import hpcckpt.tmci as tmci;/' CMakeLists.txt
        mkdir build && cd build
        cmake .. -DTENSORFLOW_INCLUDE_DIR="$(python -m hpcckpt --tmci-include-dirs)" -DPython_EXECUTABLE="$(which python)"
        make""")
    done = work.python("""
        import hpcckpt.tmci as tmci
        tmci.plugins.load("theirs/build/src/libdummy.so")
        import tensorflow as tf
        tmci.save_variables([tf.Variable(tf.ones((2, 3)))], "dummy", "")
    """)
    return f"plugin/build/src/libdummy.so; TMCI's own project: {done.line('^  data=0x.* size=24')}"


@row("works")
def t12(work: Work) -> str:
    """T12: `get_library_dir()` and `get_library()` name the library that a plugin links to

    The compiler alone, without CMake, compiles and links a plugin that uses `tensorflow::Tensor`, with the two values.
    The plugin loads.
    """
    done = work.sh("""
        c++ -std=c++17 -shared -fPIC -I$(python -m hpcckpt --tmci-include-dirs | sed 's/;/ -I/g') -o libdummy.so \\
            $SOURCE -L$(python -c 'import hpcckpt.tmci as tmci; print(tmci.get_library_dir())') \\
            -Wl,-rpath,$(python -c 'import hpcckpt.tmci as tmci; print(tmci.get_library_dir())') \\
            -l:$(python -c 'import hpcckpt.tmci as tmci; print(tmci.get_library())')
        python -m hpcckpt plugin check libdummy.so
        ldd libdummy.so | grep tensorflow
    """, SOURCE=str(ROOT / "plugin/src/DummyBackend.cpp"))  # fmt: skip
    done.find(r"^libdummy\.so: dummy")
    return done.line(r"libtensorflow_framework\.so\.2 => /")


@row("works")
def t13(work: Work) -> str:
    """T13: A plugin reads the tensors directly from their memory; nothing is copied

    The address that the plugin prints is that of the variable's buffer. Saving 256 MiB increases the memory of the
    process by less than 5 % of that size. Tensors on a GPU are copied through host memory; `make gpu` shows this with
    PyTorch.
    """
    done = work.python("""
        import numpy as np, tensorflow as tf
        from pathlib import Path
        import hpcckpt.tmci as tmci
        def field(name):
            return next(int(l.split()[1]) << 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
        small = tf.Variable(tf.ones(3))
        tmci.save_variables([small], "dummy")       # loads what is loaded once
        v = tf.Variable(tf.fill([64 << 20], 1.0))
        Path("/proc/self/clear_refs").write_text("5")
        before = field("VmRSS:")
        print("HERE", flush=True)
        tmci.save_variables([v], "dummy")
        print("grew", field("VmHWM:") - before)
        print("address", hex(np.frombuffer(v.value(), np.float32).ctypes.data))
    """)
    printed = done.find(r"HERE\n(?:.*\n)*?  data=(0x\w+) size=268435456$")[1]
    assert done.find(r"^address (\w+)$")[1] == printed, done.tail()
    grown = int(done.find(r"^grew (-?\d+)$")[1])
    assert grown < 0.05 * (256 << 20), grown
    tried = no_gpu(work)
    if tried:
        work.needs("a GPU", tried)
    return f"data={printed} is the address of the variable; grew by {grown / 1024:.0f} KiB for 256 MiB"


def no_gpu(work: Work) -> str:
    """Return the commands' output if there is no GPU, else an empty string."""
    done = work.sh(
        "nvidia-smi -L; python -c 'import tensorflow as tf; print(\"GPUs:\", tf.config.list_physical_devices(\"GPU\"))'",
        code=None, CUDA_VISIBLE_DEVICES="0",
    )  # fmt: skip
    if "GPUs: []" not in done.out:
        return ""
    shown = [line for line in done.out.splitlines() if "nvidia-smi" in line or line.startswith("GPU")]
    return "; ".join(shown)


@row("better")
def t14(work: Work) -> str:
    """T14: The config is any string; a return code other than 0 is an error

    On 2 ranks, a plugin returns 7 or throws an exception. Each case raises a `BackendError` that contains the rank, the
    failed call, the code and the text. The processes continue.
    """
    work.sh(
        "c++ -std=c++17 -shared -fPIC -I$(python -m hpcckpt --include-dir) $SOURCE -o libfaulty.so",
        SOURCE=str(TESTS / "unit/native/plugins/faulty.cpp"),
    )
    done = work.python(
        """
        import tensorflow as tf
        import hpcckpt.tmci as tmci
        from hpcckpt.errors import BackendError
        tmci.plugins.load("libfaulty.so")
        v = tf.Variable(1.0)
        for config in ("save=fail", "save=throw", "create=throw"):
            try:
                tmci.save_variables([v], "faulty", config)
            except BackendError as error:
                print("BackendError:", error, flush=True)
        tmci.save_variables([v], "faulty")
        print("saved", flush=True)
        """,
        ranks=2,
    )
    for rank in (0, 1):
        done.find(rf"BackendError: \[rank {rank}\] faulty\.Save failed \(code -1\): the network is away")
        done.find(rf"BackendError: \[rank {rank}\] faulty\.Create failed \(code -1\): no licence for this host")
    assert done.total("saved") == 2
    return done.line(r"BackendError: \[rank 1\] faulty\.Save failed \(code 7\): the disk is tired")


@row("works")
def t15(work: Work) -> str:
    """T15: `qsub -A PROJECT theta/run.qsub` loads the modules and starts the example with `aprun -n 1 -N 1`

    `scripts/theta/run.qsub` is submitted without edits to a simulated Cobalt with simulated modules and aprun.
    """
    cobalt = BatchServer(work.directory / "spool", "cobalt", work.directory / "login")
    cobalt.submit("-A", "my-project", str(ROOT / "scripts/theta/run.qsub"), "--limit", "1000")
    (ran,) = cobalt.drain()
    work.write("job.out", ran.out)
    assert ran.code == 0, ran.out[-2000:]
    modules = (cobalt.directory / "modules.txt").read_text(encoding="utf-8").splitlines()
    assert modules == [
        "swap PrgEnv-intel PrgEnv-gnu", "load cce", "load datascience/tensorflow-2.0", "load cmake/3.14.5",
    ], modules  # fmt: skip
    assert ran.out.count("data=0x") == 3 * N_TENSORS
    assert "scores are equal" in ran.out
    work.needs("Theta", "retired in 2023; its qsub, aprun and modules are simulated")
    return "4 module lines; aprun -n 1 -N 1 python examples/tmci_lenet5.py; scores are equal"


@row("better")
def t16(work: Work) -> str:
    """T16: Beyond TMCI: saves in Sessions and in `tf.function`, and collective backends that write steps

    One program saves in a Session, in a function and with the backend hdf5. `hpcckpt list` shows a verified step.
    """
    done = work.python(
        LINEAR
        + """
    v = tf.Variable(tf.ones((2, 3)))
    tf.function(lambda: tmci.save_variables([v], "dummy"))()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.compat.v1.get_variable("w", (2,))
        save = tmci.save_variables([w], "dummy")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(save)
    tmci.save_weights(linear(), "hdf5", {"path": "runs/a"})
    """
    )
    assert done.count(r"\[DUMMY\] Saving 1 tensors:") == 2
    work.sh("hpcckpt verify runs/a --all")
    return work.sh("hpcckpt list runs/a").line(r"^ +0 .* yes +latest \*$")
