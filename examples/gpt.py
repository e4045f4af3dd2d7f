"""A small GPT that learns a made-up language, with the techniques of larger ones.

Lines of different length are padded, and the loss is a mean over tokens: `run.backward(loss, weight=...)` keeps it
exact for every division of the batch. Autocast, clipping, a schedule, an average of the weights (EMA), evaluation in
every epoch; `micro_batch` limits the memory, so that one worker can do the work of eight.

Alone: `python examples/gpt.py`. Elastically: `pliant run --job gpt --workers 1:8 --target 2 examples/gpt.py`.
"""

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pliant.torch as pliant

SINGULAR = ["the_cat", "a_dog", "the_child", "one_bird", "my_friend"]
PLURAL = ["the_cats", "some_dogs", "two_children", "all_birds", "my_friends"]
VERBS = ["see", "hear", "like", "follow", "know"]
WORDS = ["<end>", ".", "and", "who", *SINGULAR, *PLURAL, *VERBS, *(f"{verb}s" for verb in VERBS)]
NUMBERS = {word: number for number, word in enumerate(WORDS)}
CONTEXT = 48
BATCH = 128


def phrase(chance: random.Random, depth: int = 0) -> list[str]:
    """Make a sentence with verbs that agree with their subjects, also across a clause in between."""
    plural = chance.random() < 0.5
    words = [chance.choice(PLURAL if plural else SINGULAR)]
    if depth < 2 and chance.random() < 0.3:
        words += ["who", *phrase(chance, depth + 1)[1:]]
    verb = chance.choice(VERBS)
    return [*words, verb if plural else f"{verb}s", chance.choice(SINGULAR + PLURAL)]


def lines(count: int, seed: int) -> list[Tensor]:
    """Make lines of one to four sentences, as numbers."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        words = phrase(chance)
        for _ in range(chance.randrange(4)):
            words += [chance.choice([".", "and"]), *phrase(chance)]
        found.append(torch.tensor([NUMBERS[word] for word in [*words[: CONTEXT - 1], "<end>"]]))
    return found


def padded(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return padded lines, and a mask that is 1 at each word."""
    tokens = nn.utils.rnn.pad_sequence(batch, batch_first=True)
    lengths = torch.tensor([len(line) for line in batch])
    return tokens, (torch.arange(tokens.shape[1]) < lengths[:, None]).float()


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        lines, length, width = x.shape
        parts = self.mix(self.norm_1(x)).view(lines, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = x + self.out(attended.transpose(1, 2).reshape(lines, length, width))
        fed: Tensor = mixed + self.feed(self.norm_2(mixed))
        return fed


class GPT(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(WORDS)))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.blocks(self.words(tokens) + self.places(places)))
        return logits


def token_losses(model: nn.Module, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of all next words, and their number."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum(), mask[:, 1:].sum()


def peak_mb() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, held_out = lines(1024, args.seed), lines(256, args.seed + 1)
    model = GPT().to(pliant.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = OneCycleLR(optimizer, 1e-2, total_steps=args.epochs * len(train) // BATCH + 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            train,
            batch_size=BATCH,
            epochs=args.epochs,
            seed=args.seed,
            micro_batch=args.micro_batch,
            collate_fn=padded,
            clip_norm=1.0,
            state={"scheduler": scheduler, "average": average},
        )
        size = 0
        job.on_leave(lambda: print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True))

        def sums(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
            loss, count = token_losses(model, *batch)
            return {"loss": loss, "average_loss": token_losses(average, *batch)[0], "count": count}

        for epoch in run.epochs():
            for tokens, mask in epoch:
                if size not in (0, run.size):
                    print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True)
                size = run.size
                loss, count = token_losses(model, tokens, mask)
                run.backward(loss / count, weight=count)
                run.log(loss=loss / count)
                if run.step():
                    scheduler.step()
                    average.update_parameters(model)
            found = run.evaluate(sums, held_out, batch_size=32, collate_fn=padded)
            if run.rank == 0:
                trained, averaged = found["loss"] / found["count"], found["average_loss"] / found["count"]
                print(f"epoch {epoch.number}: validation loss {trained:.6f}, of the average {averaged:.6f}", flush=True)
    print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True)


if __name__ == "__main__":
    main()
