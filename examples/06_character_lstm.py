"""An LSTM learns to write like Python's manual, character by character.

The text ships with Python (``pydoc_data.topics``, what ``help()`` shows). An embedding and an LSTM of 128 numbers read
32 characters and say after each which ones may follow. Of 4.7 bits that the frequencies of characters leave, fewer than
3 are left for text that the net has not seen.
"""

from pydoc_data.topics import topics

import numpy as np

from latte import *
from latte.solver import AdamW, OneCycle

STEPS, HIDDEN, EPOCHS = 32, 128, 3

# 6,000 pieces of the text; the labels are the same one character later. One piece in ten is kept for the test.
text = "\n".join(topics[name] for name in sorted(topics))[: 6000 * STEPS + 1]
letters = sorted(set(text))
numbers = np.searchsorted(letters, list(text)).astype(np.int32)
starts = np.arange(0, len(numbers) - STEPS, STEPS)
pieces = np.stack([numbers[start : start + STEPS + 1] for start in starts])
pieces = np.random.default_rng(0).permutation(pieces)
held, pieces = pieces[: len(pieces) // 10], pieces[len(pieces) // 10 :]

# Declare the net. A 1 × 1 convolution over the steps gives scores after each character.
net = Net(batch_size=50, seed=0)
given = MemoryDataLayer(net, STEPS, dtype="int32", below=len(letters))
following = MemoryDataLayer(net, (STEPS, 1))
states = LSTMLayer(net, EmbeddingLayer(net, given, len(letters), 32), HIDDEN)
columns = ReshapeLayer(net, PermuteLayer(net, states, (1, 0)), (HIDDEN, STEPS, 1))
scores = ConvLayer(net, columns, num_filters=len(letters), kernel=1, pad=0)
loss = SoftmaxLossLayer(net, scores, following)
net.compile(progress=True)

# Train and test it.
steps = EPOCHS * -(-len(pieces) // net.batch_size)
solver = AdamW(net, OneCycle(most=0.01, steps=steps), clip_norm=1.0)
history = net.fit(pieces[:, :-1], pieces[:, 1:, None], solver=solver, epochs=EPOCHS)
test = net.evaluate(held[:, :-1], held[:, 1:, None])
report = net.report

shares = np.bincount(numbers) / len(numbers)
print(f"bits a character, frequencies alone   {-np.sum(shares * np.log2(shares)):.2f}")
print(f"bits a character, text not seen       {test.loss / np.log(2):.2f}")
print(f"training                              {history.items_per_second * STEPS:,.0f} characters per second")

# Write on from a piece it has not seen: the net says what may follow the last 32 characters, and one is drawn.
generator, written = np.random.default_rng(1), list(held[0][:STEPS])
for _ in range(200):
    likely = net.predict(np.array([written[-STEPS:]], dtype=np.int32), layer=scores)[0, :, -1, 0].astype(np.float64)
    chances = np.exp((likely - likely.max()) / 0.5)
    written.append(generator.choice(len(letters), p=chances / chances.sum()))
print("".join(letters[number] for number in written[STEPS:]))
