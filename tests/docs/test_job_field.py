"""A new setting of a job needs an edit in the files that architecture.md lists, and in no other."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from tidy.files import ROOT

SOURCE = ROOT / "src/pliant"
# A setting `patience`, from an option to the store and back into `pliant status`: a text of a file, and its new form.
EDITS = {
    "core/model/job.py": (
        "    chaos_allowed: bool = False",
        "    patience: int = 3\n    chaos_allowed: bool = False",
    ),
    "core/job/validation.py": (
        "    if spec.max_restarts < 0:",
        '    if spec.patience > 9:\n        return f"patience: {spec.patience} > 9"\n    if spec.max_restarts < 0:',
    ),
    "cli/run/command.py": (
        "PLIANT_OPTIONS = [\n",
        'PLIANT_OPTIONS = [\n    _option("--patience", metavar="N", type=_COUNT, default=3),\n',
    ),
    "cli/run/plan.py": (
        "    max_restarts: int = 3\n",
        "    max_restarts: int = 3\n    patience: int = 3\n",
        "        max_restarts=options.max_restarts,\n",
        "        max_restarts=options.max_restarts,\n        patience=options.patience,\n",
    ),
    "cli/commands/status.py": (
        '        ("revision", ',
        '        ("patience", str(found.spec.patience)),\n        ("revision", ',
    ),
}


def listed() -> list[str]:
    """Return the files in the row of architecture.md."""
    page = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| a setting of a job \| (.*) \|$", page, re.MULTILINE)
    return re.findall(r"`([\w/]+\.py)`", row)


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


class Edited:
    """A copy of the source with the new setting."""

    def __init__(self, folder: Path) -> None:
        copytree(SOURCE, folder / "src/pliant", ignore=ignore_patterns("__pycache__"))
        for name, edits in EDITS.items():
            path = folder / "src/pliant" / name
            text = path.read_text(encoding="utf-8")
            for old, new in zip(edits[::2], edits[1::2], strict=True):
                text = edit(text, old, new)
            path.write_text(text, encoding="utf-8")
        (folder / "script.py").write_text("print('done')\n")
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": str(folder / "src"), "PLIANT_HOME": str(folder / "home")}

    def pliant(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", "from pliant.cli.main import main; main()", *arguments]
        ended = subprocess.run(command, env=self.env, cwd=self.folder, text=True, capture_output=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr


def test_a_new_setting_of_a_job_is_in_at_most_five_files() -> None:
    assert sorted(listed()) == sorted(EDITS)
    assert len(EDITS) <= 5


@pytest.mark.long
def test_a_setting_added_in_these_files_works_from_the_option_to_the_status(tmp_path: Path) -> None:
    edited = Edited(tmp_path)
    run = ("run", "--job", "waiting", "--workers", "1", "--preload", "")
    status, printed = edited.pliant(*run, "--patience", "10", "script.py")
    assert (status != 0, "patience: 10 > 9" in printed) == (True, True), printed
    status, printed = edited.pliant(*run, "--patience", "7", "script.py")
    assert (status, "done" in printed) == (0, True), printed
    assert re.search(r"^patience +7$", edited.pliant("status", "waiting")[1], re.MULTILINE)
    status, printed = edited.pliant(*run, "--patience", "8", "script.py")
    assert (status, "--patience 7 -> 8" in printed) == (0, True), printed


def test_an_edit_whose_place_is_gone_is_reported() -> None:
    with pytest.raises(AssertionError, match="not there"):
        edit("some text", "not there", "new")
