"""A small GPT as a researcher trains one, elastically.

AdamW with two parameter groups, warm-up and cosine, clipping, accumulation (`micro_batch`), bfloat16, an average of the
weights (EMA), validation, a progress bar, CSV and TensorBoard, and early stopping. The loss is a mean over tokens:
`run.backward(loss, weight=...)` keeps it exact for every division of the batch.

Alone: `python examples/gpt.py`. Elastically: `pliant run --job gpt --workers 1:8 --target 2 examples/gpt.py`.
"""

import argparse
import math
from pathlib import Path

import torch
from language import CONTEXT, WORDS, lines, padded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

import pliant.torch as pliant

BATCH = 128


class GPT(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(WORDS))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        logits: Tensor = self.head(self.blocks(x, mask=causal, is_causal=True))
        return logits


def token_losses(model: nn.Module, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of all next words, and their number."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum(), mask[:, 1:].sum()


class Best:
    """The best validation loss. It moves to new members and into checkpoints through `state=`."""

    def __init__(self) -> None:
        self.loss, self.epochs_since = 1e9, 0

    def see(self, loss: float) -> None:
        self.epochs_since = 0 if loss < self.loss else self.epochs_since + 1
        self.loss = min(loss, self.loss)

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


def peak_mb() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--patience", type=int, default=3, help="epochs without progress before it stops")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--log", help="folder for metrics.csv and TensorBoard")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, held_out = lines(1024, args.seed), lines(256, args.seed + 1)
    model = GPT().to(pliant.device())
    decayed = [param for param in model.parameters() if param.dim() > 1]
    others = [param for param in model.parameters() if param.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    average, best = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95)), Best()

    with pliant.join() as job:
        total = job.total_steps(train, batch_size=BATCH, epochs=args.epochs)
        warm = max(1, total // 10)
        cosine = LambdaLR(optimizer, lambda n: min((n + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * n / total)))
        run = job.train(
            model,
            optimizer,
            train,
            batch_size=BATCH,
            micro_batch=args.micro_batch,
            epochs=args.epochs,
            seed=args.seed,
            collate_fn=padded,
            clip_norm=1.0,
            state={"scheduler": cosine, "average": average, "best": best},
        )
        if args.log:
            run.log_to(args.log)
        size = 0
        job.on_leave(lambda: print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True))

        def sums(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
            loss, count = token_losses(model, *batch)
            return {"loss": loss, "average_loss": token_losses(average, *batch)[0], "count": count}

        bar = None
        for epoch in run.epochs():
            for tokens, mask in epoch:
                if size not in (0, run.size):
                    print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True)
                size = run.size
                loss, count = token_losses(model, tokens, mask)
                run.backward(loss / count, weight=count)
                run.log(loss=loss / count)
                if run.step():
                    average.update_parameters(model)
                    run.note(lr=cosine.get_last_lr()[0])
                    cosine.step()
                    if run.rank == 0:  # rank 0 may move to another process
                        bar = bar or tqdm(total=total, initial=run.step_number - 1)
                        bar.update()
            found = run.evaluate(sums, held_out, batch_size=32, collate_fn=padded)
            trained, averaged = found["loss"] / found["count"], found["average_loss"] / found["count"]
            run.note(validation=trained, validation_of_average=averaged)
            best.see(trained)
            if run.rank == 0:
                print(f"epoch {epoch.number}: validation loss {trained:.6f}, of the average {averaged:.6f}", flush=True)
            if best.epochs_since >= args.patience:
                run.finish(f"no progress in {args.patience} epochs")
    print(f"peak memory with {size} workers: {peak_mb():.1f} MB", flush=True)


if __name__ == "__main__":
    main()
