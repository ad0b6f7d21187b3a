"""`tokenmargin data`: the public datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmargin.cli._common import UsageError, complain, emit_json, needs_extra, progress_bar, say, show_facts


def data(
    action: Literal["get", "list"],
    name: str | None = None,
    /,
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    json: bool = False,
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
    json:
        Write one JSON object to standard output.
    """
    with needs_extra("text"):
        from tokenmargin.data.datasets import DATASETS, DatasetError, get_dataset
    if action == "list":
        for title, file in DATASETS.items():
            show_facts([(title, file.url), ("", file.terms)])
        return 0
    if name is None or name not in DATASETS:
        raise UsageError(f"which dataset? choose from {', '.join(DATASETS)}")
    try:
        with needs_extra("text"), progress_bar(f"getting {name}", 100) as advance:
            path = get_dataset(
                name, local=from_, progress=lambda done, total: advance(round(100 * done / max(total, done)))
            )
    except DatasetError as error:
        complain(str(error))
        return 1
    say(DATASETS[name].terms)
    if json:
        emit_json({"dataset": name, "path": str(path)})
    else:
        print(path)
    return 0
