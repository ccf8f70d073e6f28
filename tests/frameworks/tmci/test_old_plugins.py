"""A plugin that was written for TMCI compiles as it is in the project that ``hpcckpt plugin new`` writes, and works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.native.scaffold import write_project
from tests.support.programs import environment

# As TMCI's users write them: all in the header, nothing but TMCI's header included, no `override`, a semicolon behind
# the macro.
HEADER = """
#ifndef OLD_DUMMY_HPP
#define OLD_DUMMY_HPP

#include <tmci/backend.hpp>

class OldDummy : public tmci::Backend {
    std::string m_config;

    public:

    OldDummy(const char* config) : m_config(config) {
        std::cout << "[DUMMY] Initialization, config: " << config << std::endl;
        if (m_config == "throw") throw std::runtime_error("thrown by the constructor");
    }

    ~OldDummy() { std::cout << "[DUMMY] Finalization" << std::endl; }

    virtual int Save(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) {
        std::cout << "[DUMMY] Saving " << tensors.size() << " tensors:" << std::endl;
        Print(tensors);
        if (m_config == "seven") return 7;
        if (m_config == "throw later") throw std::runtime_error("thrown by Save");
        return 0;
    }

    virtual int Load(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) {
        std::cout << "[DUMMY] Loading " << tensors.size() << " tensors:" << std::endl;
        Print(tensors);
        for (const tensorflow::Tensor& t : tensors) {  // tensors of floats only are filled
            if (t.dtype() != tensorflow::DT_FLOAT) continue;
            auto flat = const_cast<tensorflow::Tensor&>(t).flat<float>();
            for (int64_t i = 0; i < flat.size(); ++i) flat(i) = t.dims() + 0.5f;
        }
        return 0;
    }

    private:

    void Print(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) {
        for (const tensorflow::Tensor& t : tensors) {
            std::cout << "  data=" << (const void*)t.tensor_data().data() << " size=" << t.tensor_data().size()
                      << " " << t.shape().DebugString() << tensorflow::DataTypeString(t.dtype()) << std::endl;
        }
    }
};

#endif
"""
SOURCE = """
#include "OldDummy.hpp"

TMCI_REGISTER_BACKEND(old_dummy, OldDummy);
"""

PROGRAM = """
import sys
import hpcckpt.tmci as tmci
print(sorted(backend.name for backend in tmci.plugins.load(sys.argv[1])))  # before TensorFlow is there
import tensorflow as tf
from hpcckpt.errors import BackendError
from hpcckpt.state.tf_hold import hold

variables = {"a": tf.Variable(tf.ones((2, 3))), "b": tf.Variable(4, dtype=tf.int64), "c": tf.Variable(tf.ones((0,)))}
for v in variables.values():
    v.assign(v + 0)
tmci.save_variables(variables, "old_dummy", "some config")
tf.function(lambda: tmci.save_variables(variables, "old_dummy", "some config"))()
tmci.load_variables(variables, "old_dummy", "some config")
print("addresses", *(hex(array.ctypes.data) for array in hold([variables["a"], variables["b"]])))
print("values", variables["a"].numpy().tolist(), int(variables["b"]))
for config in ("seven", "throw", "throw later"):
    try:
        tmci.save_variables(variables, "old_dummy", config)
    except BackendError as error:
        print(error)
"""


def run(*command: str, cwd: Path) -> str:
    env = environment()
    env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env["PATH"]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)  # TensorFlow's headers take a compiler long on a machine that has much else to do
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("c++") is None, reason="no CMake or no compiler")
def test_a_plugin_of_tmcis_compiles_and_sees_the_variables_own_memory(ops: Any, tmp_path: Path) -> None:
    project = tmp_path / "old"
    write_project("old_dummy", "tmci", project)
    (project / "OldDummy.hpp").write_text(HEADER, encoding="utf-8")
    (project / "old_dummy.cpp").write_text(SOURCE, encoding="utf-8")
    configured = run("cmake", "-S", ".", "-B", "build", f"-Dhpcckpt_PYTHON={sys.executable}", cwd=project)
    assert re.search(r"hpcckpt: TensorFlow [\d.]+ \(", configured)
    run("cmake", "--build", "build", cwd=project)
    out = run(sys.executable, "-u", "-W", "ignore", "-c", PROGRAM, "build/libold_dummy.so", cwd=project).splitlines()
    a, b = next(line.split()[1:] for line in out if line.startswith("addresses"))
    tensors = [f"  data={a} size=24 [2,3]float", f"  data={b} size=8 []int64"]
    assert out[:4] == [
        "['old_dummy']", "[DUMMY] Initialization, config: some config", "[DUMMY] Saving 3 tensors:", tensors[0],
    ]  # fmt: skip
    for line in tensors:
        assert out.count(line) == 5  # the address stays the same through all calls
    assert out.count("[DUMMY] Saving 3 tensors:") == 4
    assert out.count("[DUMMY] Loading 3 tensors:") == 1
    assert f"values {[[2.5] * 3] * 2} 4" in out
    assert "old_dummy.Save failed (code 7): it gave no reason" in out
    assert "old_dummy.Create failed (code -1): thrown by the constructor" in out
    assert "old_dummy.Save failed (code -1): thrown by Save" in out
    assert out.count("[DUMMY] Finalization") == 3
