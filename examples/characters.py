"""A character transformer in four stages on four devices, none waiting for another. At the end it writes a text.

    .venv/bin/python examples/characters.py

The text is that of Python's own help; a token is a byte. The blocks are the library's (embedding, layers, head). Your
own would do as well: each takes what the one before returns. Dropout, warm-up, AdamW and clipping are plain Flax and
optax; each stage has an optimizer of its own, so clipping uses the norm of one stage's gradient. `.venv/bin/python -m
fdg_jax.experiments.language_model` is the same with checkpoints, reports and resuming.
"""

import argparse

import jax
import numpy as np
import optax

import fdg_jax
from fdg_jax import models
from fdg_jax.data.texts.text import of_help

BLOCK = 64  # characters that it sees at once


def loss(logits, labels):
    """Mean over all characters of all examples: logits [b, T, 256], labels [b, T]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def written(pipeline, prompt, length, temperature=0.7):
    """`length` characters after the prompt [BLOCK], drawn one by one from what the network predicts."""
    rng, context = np.random.default_rng(0), prompt.copy()
    for _ in range(length):
        logits = pipeline.predict(context[None])[0, -1].astype(np.float64) / temperature
        odds = np.exp(logits - logits.max())
        context = np.append(context[1:], rng.choice(256, p=odds / odds.sum())).astype(np.int32)
        yield chr(context[-1])


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--steps", type=int, default=400)
    steps = flags.parse_args().steps
    fdg_jax.emulate_cpu(4)  # without accelerators: four devices, before JAX computes anything

    text = np.frombuffer(of_help().read_bytes(), np.uint8).astype(np.int32)
    training, testing = text[: -len(text) // 10], text[-len(text) // 10 :]
    rng = np.random.default_rng(0)

    def batch(characters, size=16):
        """(inputs, labels): blocks at random places, and for each character the next character."""
        places = rng.integers(0, len(characters) - BLOCK, (size, 1)) + np.arange(BLOCK)
        return characters[places], characters[places + 1]

    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=steps // 10, decay_steps=steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01))
    blocks = models.blocks("transformer4x64", 256, dropout=0.05)
    pipeline = fdg_jax.Pipeline(blocks, loss, optimizer, method="fdg", split="balanced", K=4)
    pipeline.init(jax.random.key(0), batch(training))
    print(f"{pipeline.parameter_count:,} parameters; stages 2 to 4 begin at blocks {pipeline.cuts}")
    for step in range(1, steps + 1):
        pipeline.step(batch(training))
        if step % max(1, steps // 4) == 0:
            losses = [one.loss for one in pipeline.losses(wait=True)]
            print(f"step {step}: loss {np.mean(losses) / np.log(2):.2f} bits a character")
    pipeline.drain()
    found = pipeline.evaluate([batch(testing) for _ in range(20)])
    print(f"staleness {pipeline.staleness}, test loss {found.loss / np.log(2):.2f} bits a character")
    prompt = testing[:BLOCK]
    print(f"after {bytes(prompt.astype(np.uint8)).decode(errors='replace')!r} it writes:")
    print(repr("".join(written(pipeline, prompt, 80 if steps > 50 else 8))))


if __name__ == "__main__":
    main()
