"""Links between pages lead somewhere, and every page can be reached."""

import re
from pathlib import Path

from tidy.files import ROOT, name_of, pages

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """The relative links of a page; what is inside a fence is an example."""
    found = LINK.findall(FENCE.sub("", text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """The names by which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(text: str, page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    findings = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = page.parent / path
        if not target.exists():
            findings.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8") if path else text):
            findings.append(f"{link}: no such heading")
    return findings


def reachable(start: Path) -> set[Path]:
    """Every page that links lead to from one page."""
    seen: set[Path] = set()
    waiting = [start.resolve()]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page.exists() and page not in seen:
            seen.add(page)
            targets = (link.partition("#")[0] for link in links(page.read_text(encoding="utf-8")))
            waiting += [(page.parent / target).resolve() for target in targets if target]
    return seen


def test_every_link_leads_somewhere() -> None:
    found = [
        f"{name_of(page)}: {finding}" for page in pages() for finding in broken(page.read_text(encoding="utf-8"), page)
    ]
    assert not found, "\n".join(found)


def test_every_page_can_be_reached_from_the_readme() -> None:
    lost = set(pages()) - reachable(ROOT / "README.md")
    assert sorted(map(name_of, lost)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# One: two\n", encoding="utf-8")
    text = "[x](b.md) [x](b.md#one-two) [x](#here) [x](https://example.org/c.md)\n# Here\n```\n[x](c.md)\n```\n"
    assert broken(text, page) == []
    assert broken("[x](c.md) [x](b.md#three) [x](#there)", page) == [
        "c.md: no such file",
        "b.md#three: no such heading",
        "#there: no such heading",
    ]


def test_a_page_nobody_links_to_is_found(tmp_path: Path) -> None:
    for name, text in {"a": "[x](b.md#y)", "b": "[x](a.md)", "c": "[x](a.md)"}.items():
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    assert {page.stem for page in reachable(tmp_path / "a.md")} == {"a", "b"}


def test_every_decision_is_listed() -> None:
    listed = links((ROOT / "docs/internals/README.md").read_text(encoding="utf-8"))
    decisions = sorted(path.name for path in (ROOT / "docs/internals/adr").glob("0*.md"))
    assert [name for name in decisions if f"adr/{name}" not in listed] == []


def test_the_readme_s_commands_for_kubernetes_are_those_of_the_page_that_a_test_runs() -> None:
    def commands(page: str, begin: str) -> list[str]:
        part = (ROOT / page).read_text(encoding="utf-8").partition(begin)[2].partition("\n## Comparison")[0]
        return re.findall(r"^kubectl .*$", part, re.MULTILINE)

    ours = commands("README.md", "\n## On Kubernetes\n")
    assert ours
    assert set(ours) <= set(commands("docs/start-kubernetes.md", "\n## 3. Train\n"))
