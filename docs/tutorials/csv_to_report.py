# %% [markdown]
# # From a CSV to a report
#
# You have texts with labels. You want a classifier that says *which words decided*, exactly, and a page to show to others.
# You need `pip install 'tokenmargin[report,classify]'`. Here the table is made up, so that this page can be run; put your
# own in its place.

# %%
import csv
import tempfile
from pathlib import Path

import tokenmargin as tm
from tokenmargin.data.sentences import make_sentences

folder = Path(tempfile.mkdtemp())
made = make_sentences(1500, rng=0)
with (folder / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
    rows = csv.writer(file)
    rows.writerow(["review", "sentiment"])
    rows.writerows(zip(made.texts, made.labels, strict=True))
print((folder / "reviews.csv").read_text(encoding="utf-8")[:180])

# %% [markdown]
# ## The short way: three commands
#
# ```sh
# tokenmargin fit reviews.csv --text review --label sentiment --out model
# tokenmargin explain model "What a dreadful ferry, but the deck was tidy!"
# tokenmargin report model reviews.csv --text review --label sentiment --out report.html
# ```
#
# The report is one file: which words decide, sentences with the deciding words lit, and tests of how far to trust it.
#
# ## The same in Python
#
# The model is two numbers per word: a *logit* (how much attention it draws) and a *value* (what it says of the label). A
# text's decision is a base rate plus a sum over its words, so each word's part is exact.

# %%
from tokenmargin.data.sources import read_labelled

table = read_labelled(folder / "reviews.csv", text="review", label="sentiment")
model = tm.TokenSelectionClassifier(random_state=0).fit(table.texts, table.labels)
print(model.validation_)

# %% [markdown]
# The accuracy above is of texts held out before training. One sentence, explained; green speaks for the positive class,
# orange for the negative one, and the outlined word has the largest logit:

# %%
(one,) = model.explain(["What a dreadful ferry, but the deck was tidy!"])
one

# %%
parts = sorted(one.words, key=lambda part: -abs(part.contribution))[:3]
for part in parts:
    word = one.text[part.start : part.end]
    print(f"{word:10} contributes {part.contribution:+.3f}; without it the decision loses {part.effect:+.3f}")
total = one.baseline + one.shift + sum(part.contribution for part in one.words)
print(f"base rate and words add up to {total:+.6f}; the decision is {one.decision:+.6f}")
assert abs(total - one.decision) < 1e-9

# %% [markdown]
# ## The words that matter
#
# Words in the plane: across, the logit; up, the value. Words far to the right draw attention, and those far up or down say
# something. The words of no opinion have values near zero.

# %%
import matplotlib.pyplot as plt
import numpy as np

parameters = model.token_model_
figure, ax = plt.subplots(figsize=(6.75, 3.2), layout="constrained")
values = np.asarray(parameters.values).reshape(len(model.vocabulary_.names), -1)[:, -1]
ax.scatter(parameters.logits, values, s=9, color="#0072B2", alpha=0.5, linewidths=0)
for k in np.argsort(-np.abs(values))[:14]:
    ax.annotate(model.vocabulary_.names[k], (parameters.logits[k], values[k]), fontsize=8)
ax.set(xlabel="logit: how much attention the word draws", ylabel="value: what it says")

# %% [markdown]
# ## The page
#
# `write_model_report` is what `tokenmargin report` calls. See [the classifier](../classifier.md) for accuracy on public
# data beside other classifiers, for calibration, and for what the tests of trust mean.

# %%
from tokenmargin.report.model_page import ModelReport, write_model_report

page = folder / "report.html"
write_model_report(ModelReport(model, examples=list(model.explain(table.texts[:5]))), page)
print(f"{page.name}: {page.stat().st_size // 1024} KiB, one file, no network")
