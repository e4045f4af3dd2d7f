import pytest

from pliant import settings
from pliant.errors import BadInput


def test_a_child_has_our_environment_with_its_own_on_top() -> None:
    assert settings.child_environment({"B": "3"}, {"A": "1", "B": "2"}) == {"A": "1", "B": "3"}


def test_a_child_s_environment_is_this_process_s_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_TEST", "here")
    assert settings.child_environment({"OWN": "x"}).items() >= {("PLIANT_TEST", "here"), ("OWN", "x")}


def test_an_empty_variable_is_not_set() -> None:
    assert settings.is_set("A", {"A": "1"})
    assert not settings.is_set("A", {"A": ""})
    assert not settings.is_set("A", {})


def test_a_worker_is_told_who_it_is() -> None:
    env = {"PLIANT_MEMBER": "vm-2.1", "PLIANT_AGENT": "vm", "PLIANT_CHECKPOINT_DIR": "/c", "PLIANT_GRACE_S": "5"}
    said = settings.read_worker(env)
    assert (said.member, said.agent, said.checkpoint_dir, said.grace_s) == ("vm-2.1", "vm", "/c", 5.0)
    assert (said.world_size, said.local_rank) == (1, 0)


def test_a_worker_on_its_own_is_told_nothing() -> None:
    said = settings.read_worker({"PLIANT_MEMBER": "", "WORLD_SIZE": "4", "LOCAL_RANK": "3"})
    assert (said.member, said.agent, said.checkpoint_dir, said.grace_s) == (None, None, None, settings.GRACE_S)
    assert (said.world_size, said.local_rank) == (4, 3)


def test_a_number_that_is_none_is_bad_input() -> None:
    assert settings.read_worker({}).override_through is None
    assert settings.read_worker({"PLIANT_OVERRIDE": "4"}).override_through == 4
    with pytest.raises(BadInput, match="PLIANT_GRACE_S must be a number, got 'soon'"):
        settings.read_worker({"PLIANT_GRACE_S": "soon"})
