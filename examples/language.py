"""A made-up language, for gpt.py: lines of sentences whose verbs agree with their subjects."""

import random

import torch
from torch import Tensor, nn

SINGULAR = ["the_cat", "a_dog", "the_child", "one_bird", "my_friend"]
PLURAL = ["the_cats", "some_dogs", "two_children", "all_birds", "my_friends"]
VERBS = ["see", "hear", "like", "follow", "know"]
WORDS = ["<end>", ".", "and", "who", *SINGULAR, *PLURAL, *VERBS, *(f"{verb}s" for verb in VERBS)]
NUMBERS = {word: number for number, word in enumerate(WORDS)}
CONTEXT = 48


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
