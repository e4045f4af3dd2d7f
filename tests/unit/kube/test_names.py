"""Names of jobs and pods: unique, short enough, and read back."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.model.names import NAME_MAX, bad_name
from pliant.kube.names import coordinator_name, pod_index, pod_name, template_hash

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
def test_a_name_in_the_coordinator_is_valid_and_bounded(namespace: str, name: str) -> None:
    assert bad_name(coordinator_name(namespace, name)) == ""


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, two = (coordinator_name("n" * 60, f"job-{number}") for number in (1, 2))
    assert one != two
    assert len(one) <= NAME_MAX
    assert coordinator_name("research", "digits") == "research.digits"


@given(st.sampled_from(["worker", "ps"]), st.integers(1, 10**6))
def test_a_pod_s_index_is_in_its_name(role: str, index: int) -> None:
    assert pod_index("digits", pod_name("digits", role, index)) == (role, index)


def test_names_of_other_pods_have_no_index() -> None:
    for name in ("digits-w", "digits-w0", "digits-x1", "other-w1", "digits-w1-a"):
        assert pod_index("digits", name) is None


def test_a_template_s_hash_follows_its_contents() -> None:
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1})
    assert template_hash({"a": 1}, 2) != template_hash({"a": 1}, 3)
