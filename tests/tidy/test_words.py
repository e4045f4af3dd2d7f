import pytest

from tidy import words
from tidy.files import ROOT, name_of, pages, sources


def unallowed(path: str, findings: list[str]) -> list[str]:
    spared = words.allowed(path)
    return [f"{path}: {finding}" for finding in findings if not any(f"{word!r}:" in finding for word in spared)]


def test_the_source_uses_one_word_per_concept() -> None:
    found = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        found += unallowed(name_of(path), words.in_source(text))
        if (word := words.in_name(path.stem)) is not None:
            found.append(f"{name_of(path)}: the file's name holds {word!r}: say {words.INSTEAD[word]}")
    assert not found, "\n".join(found)


def test_the_pages_use_one_word_per_concept() -> None:
    found = []
    for path in pages():
        found += unallowed(name_of(path), words.in_prose(path.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


def test_every_allowance_is_still_needed() -> None:
    for allowance in words.ALLOWANCES:
        assert words.in_prose((ROOT / allowance.path).read_text(encoding="utf-8")), allowance
        assert allowance.why


def test_every_banned_word_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs/internals/glossary.md").read_text(encoding="utf-8").lower()
    assert [word for word in words.INSTEAD if word not in glossary] == []


@pytest.mark.parametrize("word", sorted(words.INSTEAD))
def test_a_banned_word_is_found_wherever_it_stands(word: str) -> None:
    for text in [f"the {word} said", f"the {word.capitalize()}", f"two {word}s", f"the {word}'s"]:
        [finding] = words.in_prose(text)
        assert words.INSTEAD[word] in finding
    for source in [
        f"# the {word}\n",
        f'"""The {word}."""\n',
        f"def {word}_size(): ...\n",
        f"class {word.capitalize()}Size: ...\n",
        f"size_of_{word} = 1\n",
        f"def size({word}): ...\n",
        f"self.{word} = 1\n",
        f"import thing as {word}\n",
        f'x = f"{{y}} a {word} is here"\n',
    ]:
        assert len(words.in_source(source)) == 1, source


def test_a_finding_names_its_line() -> None:
    [finding] = words.in_source('x = 1\n"""One.\n\nThe quorum.\n"""\n')
    assert finding.startswith("line 4: 'quorum'")


@pytest.mark.parametrize(
    "text",
    [
        "x = round(1.5)\n",
        "from contextlib import contextmanager\n",
        "class A(AbstractContextManager[None]): ...\n",
        "# one round trip\n",
        "# a context manager\n",
        "# MASTER_ADDR is what torchrun's scripts read\n",
        "# the state is replicated; figures are rounded\n",
        "x = background\n",
    ],
)
def test_what_merely_resembles_a_banned_word_is_left_alone(text: str) -> None:
    assert words.in_source(text) == []
