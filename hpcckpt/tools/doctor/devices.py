"""The devices that TensorFlow and PyTorch see.

Both are asked in child processes, which are started before the other checks and have little time after them: importing
TensorFlow takes seconds. What is not answered by then is a note.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import Question, asking, package_folder

WAIT_S, MORE_S = 8.0, 3.0
"""How long is waited for the answers: from their start, and at least after the other checks."""
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_GPU = {"", "-1", "NoDevFiles"}
"""Values of these variables that hide all devices."""
_TENSORFLOW = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
found = []
for device in tf.config.list_physical_devices():
    name = tf.config.experimental.get_device_details(device).get("device_name") if device.device_type == "GPU" else ""
    found.append([device.name.removeprefix("/physical_device:"), name or ""])
print(json.dumps({"devices": found, "has_gpu_code": tf.test.is_built_with_gpu_support()}))
"""
_TORCH = """
import json, torch
n = torch.cuda.device_count()
found = [["cpu", ""]] + [[f"cuda:{i}", torch.cuda.get_device_name(i)] for i in range(n)]
print(json.dumps({"devices": found, "has_gpu_code": bool(torch.version.cuda or torch.version.hip)}))
"""


@dataclass(frozen=True, slots=True)
class Framework:
    """One that is asked.

    Attributes
    ----------
    topic, name, package : str
        Of its finding; as people call it; what is imported.
    code : str
        Prints the answer.
    command : str
        What people can run to see the same.
    remedy : str
        What installs it for GPUs.
    """

    topic: str
    name: str
    package: str
    code: str
    command: str
    remedy: str


FRAMEWORKS = (
    Framework(
        "TF devices", "TensorFlow", "tensorflow", _TENSORFLOW,
        "python -c 'import tensorflow as tf; print(tf.config.list_physical_devices())'",
        "pip install 'tensorflow[and-cuda]'",
    ),
    Framework(
        "torch devices", "PyTorch", "torch", _TORCH,
        "python -c 'import torch; torch.cuda.init()'",
        "install the build of PyTorch for your CUDA: https://pytorch.org/get-started",
    ),
)  # fmt: skip


@contextlib.contextmanager
def asked(*, is_quick: bool = False) -> Iterator[Callable[[], Iterator[Finding]]]:
    """Start to ask the frameworks that are installed; yield what returns the findings. Independent.

    Parameters
    ----------
    is_quick : bool, optional
        Ask nothing, for it needs processes.
    """
    installed = [] if is_quick else [each for each in FRAMEWORKS if package_folder(each.package)]
    with contextlib.ExitStack() as stack:
        questions = [(each, stack.enter_context(asking(each.code))) for each in installed]
        began = time.monotonic()
        yield lambda: _findings(questions, max(began + WAIT_S, time.monotonic() + MORE_S))


def _findings(questions: list[tuple[Framework, Question]], deadline: float) -> Iterator[Finding]:
    n_nvidia = count_nvidia()
    for framework, question in questions:
        yield judge(framework, question.answer(deadline), n_nvidia, os.environ)


def judge(framework: Framework, answer: dict[str, Any], n_nvidia: int, environ: Any) -> Finding:
    """Return what an answer means on a host with so many NVIDIA devices. Pure."""
    if "error" in answer:
        return Finding(framework.topic, "note", f"not known: {answer['error']}", framework.command)
    devices = [f"{device} ({model})" if model else device for device, model in answer["devices"]]
    shown = ", ".join(devices) or "none"
    has_gpu = any(not device.lower().startswith("cpu") for device, _ in answer["devices"])
    hidden = next((f"{name}={environ[name]!r}" for name in HIDING if environ.get(name) in _NO_GPU), "")
    if has_gpu or not n_nvidia:
        return Finding(framework.topic, "ok", shown)
    if hidden:
        return Finding(framework.topic, "note", f"{shown}; {hidden} hides the GPUs of this host")
    message = f"{shown}; this host has {n_nvidia} NVIDIA device{'s' if n_nvidia > 1 else ''}"
    if not answer["has_gpu_code"]:
        return Finding(
            framework.topic, "warning", f"{message}, and this {framework.name} is for CPUs", framework.remedy
        )
    remedy = f"load a CUDA and a cuDNN that fit this {framework.name}; the reason: {framework.command}"
    return Finding(framework.topic, "warning", f"{message}, which {framework.name} cannot use", remedy)


def count_nvidia() -> int:
    """Return how many NVIDIA devices this host has. Independent."""
    with contextlib.suppress(OSError):
        return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
    return 0
