"""A tiny GPT-2 and the Trainer of transformers: all but the model and the data is the library's. For torchrun."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from pace import report
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

WORDS = 64
LENGTH = 16


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of numbers that go up by the same amount; the model learns to go on with them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + (1 + index % 5) * torch.arange(LENGTH)) % WORDS
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


class Report(TrainerCallback):
    """Says on every process that a step is done."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        report(state.global_step, args.process_index, args.world_size)


def newest_checkpoint(folder: Path) -> str | None:
    """The newest that is whole: its state is what the trainer writes last."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for path in found:
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(path)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny language model.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("output"))
    chosen = parser.parse_args()

    set_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=str(chosen.output),
        per_device_train_batch_size=8,
        max_steps=chosen.steps,
        learning_rate=1e-3,
        save_steps=chosen.save_steps,
        save_total_limit=3,
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Counting(512), callbacks=[Report()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(chosen.output))
    if os.environ.get("RANK", "0") == "0":
        print(f"trained {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
