import os
from pathlib import Path

import pytest

from pliant.agent.process.cgroups import MemoryKills, cpu_quota, memory_kills, memory_limit, usable_cpus


def files(root: Path, **contents: str) -> Path:
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(root: Path, group: str, *quotas: tuple[str, str]) -> Path:
    files(root, proc__self__cgroup=f"0::{group}\n")
    for folder, quota in quotas:
        files(root, **{f"sys__fs__cgroup{folder.replace('/', '__')}__cpu_dot_max": quota})
    return root


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000", None), ("150000 100000", 1.5), ("0 100000", None), ("", None)]
)
def test_version_2_says_the_quota_in_cpu_max(tmp_path: Path, text: str, cpus: float | None) -> None:
    assert cpu_quota(version_2(tmp_path, "/", ("", text))) == cpus


def test_the_narrowest_quota_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = version_2(tmp_path, "/a/b", ("/a", "200000 100000"), ("/a/b", "400000 100000"), ("", "max 100000"))
    assert cpu_quota(root) == 2.0


def test_a_group_outside_the_own_namespace_is_read_at_the_mount(tmp_path: Path) -> None:
    assert cpu_quota(version_2(tmp_path, "/../../other", ("", "300000 100000"))) == 3.0


@pytest.mark.parametrize("shared", ["cpu,cpuacct", "cpu"])
def test_version_1_says_quota_and_period_in_files_of_their_own(tmp_path: Path, shared: str) -> None:
    root = files(tmp_path, proc__self__cgroup=f"5:memory:/pod\n4:{shared}:/pod\n0::/pod\n")
    group = root / "sys/fs/cgroup" / shared / "pod"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("250000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(root) == 2.5
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(root) is None


def test_a_part_of_a_cpu_counts_as_a_whole_one_within_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert usable_cpus(tmp_path) == 64
    assert usable_cpus(version_2(tmp_path, "/", ("", "150000 100000"))) == 2
    assert usable_cpus(version_2(tmp_path, "/", ("", "100 100000"))) == 1
    assert usable_cpus(version_2(tmp_path, "/", ("", "9900000 100000"))) == 64


def test_the_narrowest_limit_of_memory_counts_in_both_versions(tmp_path: Path) -> None:
    root = files(tmp_path / "two", proc__self__cgroup="0::/a\n", sys__fs__cgroup__memory_dot_max="max\n")
    assert memory_limit(root) is None
    assert memory_limit(files(root, sys__fs__cgroup__a__memory_dot_max="1048576\n")) == 1048576
    one = files(tmp_path / "one", proc__self__cgroup="5:memory:/pod\n")
    for group, limit in (("", str((1 << 63) - 4096)), ("pod", "2097152")):
        folder = one / "sys/fs/cgroup/memory" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    assert memory_limit(one) == 2097152


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_a_kill_for_lack_of_memory_explains_one_signal(tmp_path: Path, name: str) -> None:
    controllers, mount = ("", "sys/fs/cgroup") if name == "memory.events" else ("memory", "sys/fs/cgroup/memory")
    files(tmp_path, proc__self__cgroup=f"5:{controllers}:/pod\n")
    folder = tmp_path / mount / "pod"
    folder.mkdir(parents=True)

    def kernel_killed(count: int) -> None:
        (folder / name).write_text(f"low 0\noom_kill {count}\noom_group_kill 7\n")

    kernel_killed(2)
    kills = MemoryKills(tmp_path)
    assert kills.explain(-9) == ""
    kernel_killed(4)
    assert memory_kills(tmp_path) == 4
    assert kills.explain(-9) == "out of memory of its machine"
    (folder / ("memory.max" if name == "memory.events" else "memory.limit_in_bytes")).write_text("314572800\n")
    assert kills.explain(-9) == "out of memory (limit 300 MiB)"
    assert kills.explain(-9) == ""
    for count, other in ((5, 1), (6, -15)):  # the kernel killed a child of the worker
        kernel_killed(count)
        assert kills.explain(other) == kills.explain(-9) == ""


def test_without_control_groups_nothing_is_explained(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == 0
    assert MemoryKills(tmp_path).explain(-9) == ""
