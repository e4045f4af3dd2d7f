"""Valid and invalid names."""

import pytest

from pliant.core.model.names import NAME_MAX, bad_name


@pytest.mark.parametrize("name", ["a", "A9", "a-b_c.d", "x" * NAME_MAX, "host-1.12"])
def test_a_name_of_letters_digits_and_three_marks_is_good(name: str) -> None:
    assert bad_name(name) == ""


@pytest.mark.parametrize("name", ["", "x" * (NAME_MAX + 1)])
def test_a_name_has_a_length(name: str) -> None:
    assert bad_name(name) == f"a name has 1 to 63 characters; this one has {len(name)}"


@pytest.mark.parametrize("name", ["-a", "a-", ".a", "a.", "_", "a/b", "a b", "ä", "a\n", "@tokens", "a%2fb"])
def test_a_name_has_nothing_that_an_address_would_read_otherwise(name: str) -> None:
    assert bad_name(name).endswith(f"got {name!r}")
