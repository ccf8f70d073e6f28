"""argo_train.sh and the workflow that it fills in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.container_scripts import DOCKER, ROOT, Machine

yaml = pytest.importorskip("yaml")

pytestmark = pytest.mark.one_case

CONFIG = """\
# a comment: with "quotes", @RUN@ and 'these'
[
\t{ "datasets": { "ktf.datasets.mnist.from_raw": { "limit": 100 } } }   // &\\1 $HOME `date`
]
"""
BASIC = ("--image", "registry.example:5000/hpcckpt:1@sha256:0a", "--claim", "runs-claim")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, ["argo", "kubectl"])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "two cycles.hjson"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def filled(machine: Machine, config: Path, *more: str) -> dict[str, Any]:
    """Return the workflow as a dry run prints it."""
    done = machine.run("argo_train.sh", config, *BASIC, "--run", "mnist/a", *more, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not re.search(r"@[A-Z]+@", done.stdout.replace("@RUN@ and", ""))
    return dict(yaml.safe_load(done.stdout))


def template_of(workflow: dict[str, Any]) -> dict[str, Any]:
    """Return the one template."""
    (template,) = workflow["spec"]["templates"]
    return dict(template)


def lost(given: Any, kept: Any, where: str = "") -> list[str]:
    """Return the places of what was given and is not there any more."""
    if isinstance(given, dict):
        others = kept if isinstance(kept, dict) else {}
        parts = [(f"{where}.{key}", value, others.get(key)) for key, value in given.items()]
    elif isinstance(given, list) and isinstance(kept, list):
        parts = [(f"{where}[{n}]", value, other) for n, (value, other) in enumerate(zip(given, kept, strict=True))]
    else:
        return [] if str(given) == str(kept) else [where]
    return [place for name, value, other in parts for place in ([name] if other is None else lost(value, other, name))]


def test_the_template_is_yaml_as_it_stands() -> None:
    workflow = yaml.safe_load((DOCKER / "argo-workflow.yaml").read_text(encoding="utf-8"))
    assert (workflow["apiVersion"], workflow["kind"]) == ("argoproj.io/v1alpha1", "Workflow")


def test_a_filled_workflow_has_only_fields_that_argo_knows(machine: Machine, config: Path) -> None:
    models = pytest.importorskip("hera.workflows.models", reason="Argo's schema is in hera: pip install hera")

    def unknown(workflow: dict[str, Any]) -> list[str]:
        # The models drop what they do not know, and refuse values of wrong types.
        known = models.Workflow(**workflow).model_dump(by_alias=True, exclude_none=True, mode="json")
        return lost(workflow, known)

    workflow = filled(machine, config)
    assert unknown(workflow) == []
    workflow["spec"]["templates"][0]["retryStrategy"]["limits"] = "3"
    assert unknown(workflow) == [".spec.templates[0].retryStrategy.limits"]
    workflow["spec"]["templates"][0]["container"]["args"] = {"not": "a list"}
    with pytest.raises(ValueError, match="args"):
        unknown(workflow)


def test_a_filled_workflow_refers_to_what_it_declares(machine: Machine, config: Path) -> None:
    workflow = filled(machine, config)
    spec, template = workflow["spec"], template_of(workflow)
    assert spec["entrypoint"] == template["name"]
    mounted = {mount["name"] for mount in template["container"]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    declared = {parameter["name"] for parameter in spec["arguments"]["parameters"]}
    assert set(re.findall(r"\{\{workflow\.parameters\.([a-z]+)\}\}", str(template))) == declared
    assert all(isinstance(parameter["value"], str) for parameter in spec["arguments"]["parameters"])


def test_the_command_is_one_that_this_project_has(machine: Machine, config: Path) -> None:
    container = template_of(filled(machine, config))["container"]
    (command,) = container["command"]
    inside = Path(command).relative_to("/opt/hpcckpt")
    assert (ROOT / inside).exists()
    assert any(
        f"{inside}".startswith(line[1:])
        for line in (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    )
    args = container["args"]
    assert args[args.index("--config") + 1] == template_of(filled(machine, config))["inputs"]["artifacts"][0]["path"]


def test_the_config_arrives_as_it_was_written(machine: Machine, config: Path) -> None:
    (artifact,) = template_of(filled(machine, config))["inputs"]["artifacts"]
    assert artifact["raw"]["data"] == CONFIG


@pytest.mark.parametrize("text", ["    [\n {} ]\n", "\n\n[]\n", "[]", "[\r\n]\r\n"])
def test_neither_indentation_nor_ends_of_lines_matter(machine: Machine, config: Path, text: str) -> None:
    config.write_text(text, newline="", encoding="utf-8")
    (artifact,) = template_of(filled(machine, config))["inputs"]["artifacts"]
    assert artifact["raw"]["data"].rstrip("\n") == text.replace("\r\n", "\n").rstrip("\n")


def test_options_go_where_they_belong(machine: Machine, config: Path) -> None:
    options = ["--ranks", "4", "--cpus", "8", "--memory", "12Gi", "--shm", "1Gi", "--retries", "3", "--grace", "60"]
    workflow = filled(machine, config, *options)
    spec, template = workflow["spec"], template_of(workflow)
    assert {each["name"]: each["value"] for each in spec["arguments"]["parameters"]} == {
        "image": BASIC[1], "run": "mnist/a", "ranks": "4"
    }  # fmt: skip
    assert template["container"]["resources"]["limits"] == {"cpu": "8", "memory": "12Gi"}
    assert template["retryStrategy"]["limit"] == "3"
    assert yaml.safe_load(template["podSpecPatch"]) == {"terminationGracePeriodSeconds": 60}
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == "runs-claim"
    assert {each["name"]: each["value"] for each in template["container"]["env"]} == {
        "OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2"
    }  # fmt: skip


def test_a_run_is_named_by_its_config_so_that_the_same_again_goes_on(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "lenet5.v2.hjson"
    path.write_text(CONFIG, encoding="utf-8")
    done = machine.run("argo_train.sh", path, *BASIC, "--dry-run")
    names = {each["name"]: each["value"] for each in yaml.safe_load(done.stdout)["spec"]["arguments"]["parameters"]}
    assert names["run"] == "lenet5.v2"


def test_only_what_asks_to_be_requeued_or_was_lost_is_started_again(machine: Machine, config: Path) -> None:
    strategy = template_of(filled(machine, config))["retryStrategy"]
    assert strategy["retryPolicy"] == "Always"
    assert strategy["expression"] == 'asInt(lastRetry.exitCode) == 75 || lastRetry.status == "Error"'


def test_pods_do_not_run_as_root(machine: Machine, config: Path) -> None:
    context = filled(machine, config)["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in (DOCKER / "Dockerfile").read_text(encoding="utf-8")


# -- submitting ----------------------------------------------------------------------------------


def test_argo_gets_what_the_dry_run_shows(machine: Machine, config: Path) -> None:
    shown = filled(machine, config)
    assert machine.calls == []
    done = machine.run("argo_train.sh", config, *BASIC, "--run", "mnist/a", "--namespace", "team")
    assert done.returncode == 0, done.stderr
    assert machine.calls == ["argo submit --namespace team -"]
    assert yaml.safe_load(machine.input) == shown


def test_kubectl_does_where_there_is_no_argo(tmp_path: Path, config: Path) -> None:
    machine = Machine(tmp_path, ["kubectl"])
    assert machine.run("argo_train.sh", config, *BASIC, "--run", "a").returncode == 0
    assert machine.calls == ["kubectl create -f -"]
    assert yaml.safe_load(machine.input)["kind"] == "Workflow"


def test_where_there_is_neither_nothing_is_submitted(tmp_path: Path, config: Path) -> None:
    done = Machine(tmp_path).run("argo_train.sh", config, *BASIC, "--run", "a")
    assert done.returncode == 1
    assert "--dry-run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--claim", "c", "--run", "a"), "--image"),
        (("--image", "i", "--run", "a"), "--claim"),
        (("--image", "i", "--claim", "c", "--run", "../a"), "--run"),
        (("--image", "i", "--claim", "c", "--run", "a/../../b"), "leaves the volume"),
        (("--image", "i", "--claim", "c", "--run", 'a"b'), "--run"),
        (("--image", 'i"', "--claim", "c", "--run", "a"), "image"),
        (("--image", "i", "--claim", "C_1", "--run", "a"), "--claim"),
        (("--image", "i", "--claim", "c", "--run", "a", "--ranks", "0"), "--ranks"),
        (("--image", "i", "--claim", "c", "--run", "a", "--memory", "lots"), "--memory"),
        (("--image", "i", "--claim", "c", "--run", "a", "--memory"), "--memory needs a value"),
        (("--image", "i", "--claim", "c", "--run", "a", "--namespace", "A b"), "--namespace"),
        (("--image", "i", "--claim", "c"), "--run"),  # the name of this config has a blank in it
    ],
)
def test_what_is_missing_or_cannot_be_is_refused(
    machine: Machine, config: Path, arguments: tuple[str, ...], word: str
) -> None:
    done = machine.run("argo_train.sh", config, *arguments)
    assert done.returncode in {1, 2}
    assert word in done.stderr
    assert machine.calls == []


@pytest.mark.parametrize(
    ("text", "word"), [("{{workflow.name}}", "blank"), ("a\x00b\x07", "control"), ("[\x1b]", "control")]
)
def test_a_config_that_would_change_on_its_way_is_refused(machine: Machine, config: Path, text: str, word: str) -> None:
    config.write_text(text, encoding="utf-8")
    done = machine.run("argo_train.sh", config, *BASIC, "--run", "a")
    assert done.returncode == 1
    assert word in done.stderr
    assert machine.calls == []


def test_no_config_is_no_training(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("argo_train.sh", *BASIC).returncode == 2
    assert machine.run("argo_train.sh", tmp_path / "nowhere.hjson", *BASIC).returncode == 1
    assert machine.calls == []
