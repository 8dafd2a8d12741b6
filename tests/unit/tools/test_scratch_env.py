import importlib.metadata
from pathlib import Path

import pytest
from tools.scratch_env import closure, link_distribution


def names(*requirements: str) -> set[str]:
    return {distribution.metadata["Name"].lower() for distribution in closure(requirements)}


def test_closure_holds_what_the_needed_need() -> None:
    assert {"rich", "pygments", "markdown-it-py", "mdurl"} <= names("rich")


def test_extras_are_followed_only_when_asked_for() -> None:
    assert "huggingface_hub" in names("tokenizers")
    assert "openai" not in names("pytest")
    assert "pytest" in names("import-linter", "pytest")


def test_a_package_that_is_not_installed_is_refused() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError, match="headway-no-such-package"):
        closure(["headway-no-such-package"])


def test_linked_package_is_the_same_code(tmp_path: Path) -> None:
    link_distribution(importlib.metadata.distribution("msgspec"), tmp_path)
    (metadata,) = importlib.metadata.distributions(name="msgspec", path=[str(tmp_path)])
    assert metadata.version == importlib.metadata.version("msgspec")
    assert (tmp_path / "msgspec" / "__init__.py").is_file()
