# %% [markdown]
# # Your own corpus
#
# Which words decide the label? A handful of labelled sentences, what the theory reads off their frequencies, and what
# one gradient step writes into the embeddings.

# %%
import numpy as np

import tokenmargin as tm
from tokenmargin.objective.embedding import wishart_embeddings

texts = [
    ["a", "wonderful", "film"],
    ["the", "plot", "is", "wonderful"],
    ["a", "dreadful", "film"],
    ["the", "plot", "is", "dreadful"],
]
corpus = tm.TokenCorpus.of(texts, [1, 1, -1, -1])

# %% [markdown]
# The signed frequency of a word (formula (3) of *Attention with Trained Embeddings*) says how much more often it stands
# in positive texts than in negative ones.

# %%
for word, frequency in zip(corpus.vocabulary, corpus.signed_frequency, strict=True):
    print(f"{word:10} {frequency:+.4f}")
decisive = {corpus.vocabulary[k] for k in np.flatnonzero(corpus.sole_label)}
assert decisive == {"wonderful", "dreadful"}

# %% [markdown]
# One step of gradient descent from random embeddings moves each word's embedding along `v` by `eta/2` times its signed
# share (the signed frequency, each text weighing the same whatever its length), up to an error that falls with the
# dimension. In dimension 10^20 the vectors are known by their inner products.

# %%
start = wishart_embeddings(corpus, 10**20, rng=np.random.default_rng(0))
step = tm.first_step(start, 100.0)
print(f"error {step.error:.1e}, bound {step.bound(10**20):.1e}")
assert step.error < step.bound(10**20)
