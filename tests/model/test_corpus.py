"""The corpus: text there is, equal for any number of ranks, and a generator of known entropy."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from course_lib.model.batches import FOLLOW_PROBABILITY
from course_lib.model.corpus import (
    PIECE,
    batches,
    corpus_batch,
    load_corpus,
    synthetic_corpus,
    synthetic_entropy,
)


def test_the_book_is_there_and_ascii() -> None:
    corpus = load_corpus()
    assert 300_000 < len(corpus) <= 400_000
    assert int(corpus.max()) < 128
    assert bytes(corpus[:19].tolist()) == b"PRIDE AND PREJUDICE"


def test_a_target_is_the_next_token() -> None:
    batch = corpus_batch(load_corpus(), 4, 32, step=3)
    assert batch.tokens.shape == batch.targets.shape == (4, 32)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_together_see_what_one_process_sees(world_size: int) -> None:
    corpus = load_corpus()
    for step, whole in enumerate(islice(batches(corpus, 8, 16, seed=5), 3)):
        shards = [
            corpus_batch(corpus, 8, 16, step=step, seed=5, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat([shard.tokens for shard in shards]), whole.tokens)


def test_steps_and_seeds_differ() -> None:
    corpus = load_corpus()
    seen = {
        tuple(corpus_batch(corpus, 2, 8, step=step, seed=seed).tokens[0].tolist())
        for step in range(20)
        for seed in range(5)
    }
    assert len(seen) == 100


def test_the_entropy_is_that_of_the_next_bytes_probabilities() -> None:
    for vocab_size in (2, 17, 256):
        chances = torch.full((vocab_size,), (1 - FOLLOW_PROBABILITY) / vocab_size, dtype=torch.float64)
        chances[0] += FOLLOW_PROBABILITY  # the byte that the table names
        assert float(chances.sum()) == pytest.approx(1, abs=1e-12)
        entropy = -(chances * chances.log()).sum()
        assert synthetic_entropy(vocab_size) == pytest.approx(float(entropy), rel=1e-12)


@pytest.mark.parametrize("seed", [0, 3])
def test_drawn_text_costs_its_entropy_under_its_own_probabilities(seed: int) -> None:
    text = synthetic_corpus(400_000, seed)
    table = torch.randperm(256, generator=torch.Generator().manual_seed(seed))
    within = torch.arange(1, len(text)) % PIECE != 0  # pieces do not follow from one another
    follows = (text[1:] == table[text[:-1]])[within].double()
    other = (1 - FOLLOW_PROBABILITY) / 256
    costs = -(other + FOLLOW_PROBABILITY * follows).log()
    deviation = float(costs.std()) / len(costs) ** 0.5
    assert float(costs.mean()) == pytest.approx(synthetic_entropy(), abs=4 * deviation)
    assert deviation < 0.004  # nats: a floor that is off by a few percent would be found


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="a corpus must have text; got 0 bytes"):
        load_corpus(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match="longer than one window of seq_len \\+ 1 = 9 tokens; got 8"):
        corpus_batch(torch.arange(8), 1, 8)
    with pytest.raises(ValueError, match="ranks must divide the batch; got batch_size=6 for 4 ranks"):
        corpus_batch(torch.arange(99), 6, 8, world_size=4)
