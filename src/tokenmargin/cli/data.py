"""`tokenmargin data`: the public datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmargin.cli._common import Json, UsageError, complain, emit_json, needs_extra, say, show_facts
from tokenmargin.cli._texts import dataset


def data(
    action: Literal["get", "list"],
    name: str | None = None,
    /,
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    json: Json = False,
) -> int:
    """Put a dataset into the cache and print where it is.

    Exit code 1 when it cannot be had; the message says how to bring your own copy.

    Examples:

        tokenmargin data list
        tokenmargin data get imdb
        tokenmargin data get yelp --from yelp_review_full_csv.tgz

    Parameters
    ----------
    action:
        Get a dataset, or list them.
    name:
        imdb, yelp, cifar10 or bert-vocabulary.
    from_:
        Your own copy: the archive of the source, or a table of texts with labels (for Yelp: with stars).
    """
    with needs_extra("text"):
        from tokenmargin.data.datasets import DATASETS, DatasetError
    if action == "list":
        for title, file in DATASETS.items():
            show_facts([(title, file.url), ("", file.terms)])
        return 0
    if name is None or name not in DATASETS:
        raise UsageError(f"which dataset? choose from {', '.join(DATASETS)}")
    try:
        path = dataset(name, local=from_)
    except DatasetError as error:
        complain(str(error))
        return 1
    say(DATASETS[name].terms)
    if json:
        emit_json({"dataset": name, "path": str(path)})
    else:
        print(path)
    return 0
