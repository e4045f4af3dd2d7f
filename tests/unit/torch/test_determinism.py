"""Settings of deterministic training (kernels, threads, optimizers), and their restoration."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.determinism import DeterministicSettings, fingerprint

CPU = torch.device("cpu")
CUDA = torch.device("cuda")  # only named here


def flags() -> tuple[object, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
    )


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads, before = torch.get_num_threads(), flags()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(bool(before[0]), warn_only=bool(before[1]))


def nothing() -> None:
    pass


def test_an_operation_without_a_deterministic_kernel_is_refused_by_name() -> None:
    pinned = DeterministicSettings([], CPU)
    with pytest.raises(RuntimeError, match=r"put_.*deterministic"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    pinned.close()
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


@pytest.mark.parametrize(("enabled", "warns"), [(False, False), (True, False), (True, True)])
def test_everything_is_put_back(enabled: bool, warns: bool) -> None:
    torch.use_deterministic_algorithms(enabled, warn_only=warns)
    torch.backends.cudnn.benchmark = True
    before = flags()
    pinned = DeterministicSettings([], CPU)
    assert flags()[:4] == (True, False, True, False)
    pinned.close()
    assert flags() == before
    torch.backends.cudnn.benchmark = False


def test_a_step_is_taken_while_all_is_as_it_was() -> None:
    taken: list[int] = []
    pinned = DeterministicSettings([], CPU)
    step = pinned.guard(lambda: taken.append(1))
    step()
    step()
    pinned.close()
    assert taken == [1, 1]


def test_other_threads_are_refused_before_the_step_is_taken() -> None:
    taken: list[int] = []
    torch.set_num_threads(1)
    pinned = DeterministicSettings([], CPU)
    step = pinned.guard(lambda: taken.append(1))
    torch.set_num_threads(2)
    with pytest.raises(BadInput, match=r"2 threads now, and with 1 when training began.*before job\.train"):
        step()
    assert not taken
    torch.set_num_threads(1)
    step()
    pinned.close()
    assert taken == [1]


def test_turning_it_off_is_refused() -> None:
    pinned = DeterministicSettings([], CPU)
    torch.use_deterministic_algorithms(False)
    with pytest.raises(BadInput, match="leave it on"):
        pinned.guard(nothing)()
    pinned.close()


def kind(optimizer: torch.optim.Optimizer) -> list[tuple[object, object]]:
    return [(group.get("foreach"), group.get("fused")) for group in optimizer.param_groups]


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_how_an_optimizer_steps_is_said_for_every_group(
    make: type[torch.optim.Optimizer], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    two = [{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}]
    optimizer = make(two, lr=0.1)  # type: ignore[call-arg]
    pinned = DeterministicSettings([optimizer], device)
    assert kind(optimizer) == [(device is CUDA, False)] * 2
    pinned.close()


def test_what_the_user_said_about_an_optimizer_stays() -> None:
    chosen = torch.optim.Adam([nn.Parameter(torch.ones(1))], foreach=True)
    fused = torch.optim.Adam([nn.Parameter(torch.ones(1))], fused=True)
    without = torch.optim.LBFGS([nn.Parameter(torch.ones(1))])
    pinned = DeterministicSettings([chosen, fused, without], CPU)
    assert kind(chosen) == [(True, False)]
    assert fused.param_groups[0]["fused"] is True
    assert not fused.param_groups[0]["foreach"]
    assert "foreach" not in without.param_groups[0]
    pinned.close()


def test_the_same_place_says_the_same_bits_and_other_threads_others() -> None:
    torch.set_num_threads(1)
    one = fingerprint(CPU)
    assert fingerprint(CPU) == one
    named = dict(one)
    assert named["torch"] == torch.__version__
    assert named["device"].startswith("cpu (")
    torch.set_num_threads(2)
    assert dict(fingerprint(CPU))["threads"] == "2"


def test_asking_for_the_bits_draws_from_nobodys_generator_and_works_without_gradients() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        quiet = fingerprint(CPU)
    assert quiet == fingerprint(CPU)
    assert torch.equal(before, torch.get_rng_state())


def test_another_precision_of_products_is_another_fingerprint() -> None:
    before = torch.get_float32_matmul_precision()
    one = fingerprint(CPU)
    torch.set_float32_matmul_precision("medium" if before != "medium" else "highest")
    other = fingerprint(CPU)
    torch.set_float32_matmul_precision(before)
    assert one != other
