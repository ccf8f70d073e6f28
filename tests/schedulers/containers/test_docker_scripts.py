"""build_docker.sh, push_docker.sh and clean_docker.sh, seen by the engine that they call."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpcckpt import __version__
from tests.support.container_scripts import DOCKER, ROOT, Machine

pytestmark = pytest.mark.one_case

IMAGE = f"hpcckpt:{__version__}"
SCRIPTS = ("build_docker.sh", "push_docker.sh", "clean_docker.sh", "argo_train.sh")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, ["docker"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_option_that_a_script_takes_is_in_its_help(machine: Machine, script: str) -> None:
    done = machine.run(script, "--help")
    assert done.returncode == 0
    text = (DOCKER / script).read_text(encoding="utf-8")
    options = {word for word in text.replace("|", " ").replace(")", " ").split() if word.startswith("--")}
    taken = {word for word in options if f"{word})" in text or f"{word} |" in text} - {"--help"}
    assert taken
    assert all(option in done.stdout for option in taken), taken


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_no_script_knows_is_a_usage_error(machine: Machine, script: str) -> None:
    done = machine.run(script, "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert machine.calls == []


# -- build ---------------------------------------------------------------------------------------


def test_build_names_the_image_by_the_version_and_builds_the_checkout(machine: Machine) -> None:
    done = machine.run("build_docker.sh")
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls
    words = shlex.split(call)
    assert words[:2] == ["docker", "build"]
    assert words[-1] == str(ROOT)
    assert words[words.index("--file") + 1] == str(DOCKER / "Dockerfile")
    assert words[words.index("--tag") + 1] == IMAGE
    assert f"VERSION={__version__}" in words


def test_build_takes_another_name_and_another_base(machine: Machine) -> None:
    machine.run("build_docker.sh", "--tag", "mine:1", "--base", "mirror.example/debian:12", "--no-cache")
    (call,) = machine.calls
    assert "--tag mine:1" in call
    assert "--build-arg BASE=mirror.example/debian:12" in call
    assert "--no-cache" in call


def test_build_for_gpus_makes_another_image_by_the_same_definition(machine: Machine) -> None:
    done = machine.run("build_docker.sh", "--gpu")
    (call,) = machine.calls
    assert f"--tag {IMAGE}-gpu " in call
    assert "--build-arg DEVICE=gpu " in call
    assert "--gpus all" in done.stderr


def test_build_lends_pips_settings_and_keeps_them_out_of_the_image(machine: Machine, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://me:secret@mirror.example/simple\n", encoding="utf-8")
    machine.run("build_docker.sh", PIP_CONFIG_FILE=str(settings), https_proxy="http://me:secret@proxy.example")
    (call,) = machine.calls
    assert f"--secret id=pip,src={settings}" in call
    assert "--build-arg https_proxy " in call
    assert "secret@" not in call


def test_build_tells_podman_of_the_ignore_file_which_docker_finds_by_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["podman"])
    assert machine.run("build_docker.sh").returncode == 0
    assert f"--ignorefile {DOCKER / 'Dockerfile.dockerignore'}" in machine.calls[0]


def test_dry_runs_call_nothing(machine: Machine) -> None:
    for script, *arguments in (["build_docker.sh"], ["push_docker.sh", "registry.example"]):
        done = machine.run(script, *arguments, "--dry-run")
        assert done.returncode == 0, done.stderr
        assert "+ docker" in done.stderr
    assert machine.calls == []


def test_a_failed_build_is_a_failure(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install("docker", code=17)
    done = machine.run("build_docker.sh")
    assert done.returncode == 17
    assert "train with it" not in done.stderr


def test_without_an_engine_the_scripts_say_which_there_are(tmp_path: Path) -> None:
    done = Machine(tmp_path).run("build_docker.sh")
    assert done.returncode == 1
    assert "docker, podman" in done.stderr


# -- push ----------------------------------------------------------------------------------------


def test_push_wants_a_registry_and_has_none_of_its_own(machine: Machine) -> None:
    done = machine.run("push_docker.sh")
    assert done.returncode == 2
    assert "registry" in done.stderr
    assert machine.calls == []


def test_push_tags_for_the_registry_and_pushes_that(machine: Machine) -> None:
    done = machine.run("push_docker.sh", "registry.example:5000/team/")
    assert done.returncode == 0, done.stderr
    there = f"registry.example:5000/team/{IMAGE}"
    assert machine.calls == [f"docker tag {IMAGE} {there}", f"docker push {there}"]


@pytest.mark.parametrize("registry", ["https://registry.example", "registry example", "$(touch harm)", ";ls"])
def test_push_refuses_what_is_no_registry(machine: Machine, registry: str) -> None:
    assert machine.run("push_docker.sh", registry).returncode in {1, 2}
    assert machine.calls == []


def test_what_cannot_be_tagged_is_not_pushed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install("docker", code=1)
    assert machine.run("push_docker.sh", "registry.example").returncode == 1
    assert len(machine.calls) == 1


# -- clean ---------------------------------------------------------------------------------------


def listing(machine: Machine) -> str:
    """Install an engine that lists two images without a name, and return how it is asked for them."""
    machine.install("docker", says="sha-one\nsha-two\n")
    return "docker images --quiet --filter dangling=true --filter label=org.opencontainers.image.title=hpcckpt"


def test_clean_removes_our_images_without_a_name_and_no_others(machine: Machine) -> None:
    asks = listing(machine)
    assert machine.run("clean_docker.sh", "--yes").returncode == 0
    assert machine.calls == [asks, "docker rmi sha-one sha-two"]


def test_clean_asks_first(machine: Machine) -> None:
    asks = listing(machine)
    assert machine.run("clean_docker.sh").returncode == 1
    assert machine.calls == [asks]


def test_clean_lists_what_would_go(machine: Machine) -> None:
    asks = listing(machine)
    assert machine.run("clean_docker.sh", "--dry-run").stdout.split() == ["sha-one", "sha-two"]
    assert machine.calls == [asks]


def test_the_label_that_clean_looks_for_is_the_one_that_the_image_has() -> None:
    assert 'org.opencontainers.image.title="hpcckpt"' in (DOCKER / "Dockerfile").read_text(encoding="utf-8")
