"""The upgrade of docs/operating/maintenance.md, run on a home that an older version left."""

import gzip
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tidy.files import ROOT
from unit.cli.program import PLIANT, free_port

PAGE = (ROOT / "docs" / "operating" / "maintenance.md").read_text()
OLD = Path(__file__).with_name("store-version-2.db.gz")


def commands() -> list[str]:
    section = PAGE.partition("## Upgrade")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return str(block).strip().split("\n")


def test_the_page_s_commands_upgrade_a_store_and_its_backup_brings_it_back(tmp_path: Path) -> None:
    home, bin_folder = tmp_path / "home", str(Path(PLIANT).parent)
    home.mkdir(0o700)
    (home / "store.db").write_bytes(gzip.decompress(OLD.read_bytes()))
    (home / "store.db").chmod(0o600)
    environment = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PLIANT_HOME": str(home),
        "HOME": str(tmp_path),
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    backup, coordinator, doctor, jobs = commands()
    run(backup)
    assert (coordinator, doctor, jobs) == ("pliant coordinator", "pliant doctor", "pliant jobs")
    address = f"127.0.0.1:{free_port()}"
    environment["PLIANT_COORDINATOR"] = f"http://{address}"

    def serve() -> None:
        serving = ["/bin/sh", "-c", f"exec {coordinator} --listen {address}"]
        with subprocess.Popen(serving, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "Coordinator at" in process.stdout.readline()
                run(f"{doctor} --json")
                assert re.search(r"demo .*5", run(jobs))
            finally:
                process.send_signal(signal.SIGTERM)
        assert process.returncode == 0

    serve()
    before, after = (gzip.decompress(OLD.read_bytes()), (home / "store.db").read_bytes())
    assert after != before
    version = "PRAGMA user_version;"
    assert run(f'sqlite3 "$PLIANT_HOME/store-before.db" "{version}"').strip() == "2"
    assert int(run(f'sqlite3 "$PLIANT_HOME/store.db" "{version}"')) > 2

    for beside in home.glob("store.db*"):  # to go back
        beside.unlink() if beside.is_file() else shutil.rmtree(beside)
    (home / "store-before.db").rename(home / "store.db")
    assert run(f'sqlite3 "$PLIANT_HOME/store.db" "{version}"').strip() == "2"
    serve()
