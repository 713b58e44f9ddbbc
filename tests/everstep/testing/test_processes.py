"""An environment gives the same rows in another process, whose hashes of texts are others."""

from typing import Any

import pytest

import everstep
from everstep.testing._processes import check_processes
from everstep.testing._suite import subject_of
from tests.everstep.testing import hashed

pytestmark = pytest.mark.slow


def checked(name: str, kind: Any = None) -> Any:
    kind = kind or getattr(hashed, name)
    subject = subject_of(
        lambda num_envs, horizon, device: everstep.make(kind, num_envs, device=device),
        num_envs_choices=(2,),
        horizon=4,
        num_steps=24,
    )
    words = ["-m", "everstep", "check", f"tests.everstep.testing.hashed.{name}"]
    sizes = ["--num-envs", "2", "--horizon", "4", "--vector-steps", "24"]
    return check_processes(subject, [*words, *sizes, "--digests"])


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Unsorted", "hashes of texts.*an observation of a reset differs"),
        pytest.param("Hashed", "hashes of texts", marks=pytest.mark.long),
        pytest.param("Numbered", "depend on the process", marks=pytest.mark.long),
    ],
)
def test_rows_that_depend_on_the_process_are_found(name: str, cause: str) -> None:
    result = checked(name)
    assert result.status == "failed"
    assert result.violation is not None
    with pytest.raises(type(result.violation), match=cause):
        raise result.violation


def test_rows_that_do_not_are_the_same() -> None:
    assert checked("Sorted").status == "passed"


def test_environments_of_libraries_and_those_that_cannot_be_played_need_no_process() -> None:
    library = checked("Sorted", "CartPole-v1")
    assert library.status == "not applicable"
    assert library.reason == "all classes in this process are Gymnasium's or Everstep's"
    missing = checked("Missing", hashed.Sorted)
    assert missing.status == "not applicable"
    assert "another process could not play the environment" in missing.reason
