"""`tokenmargin graph`: which next tokens a corpus puts ahead of which, and what attention learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import (
    UsageError,
    check_picture,
    emit_json,
    needs_extra,
    print_message,
    printable,
    usage_errors,
)

if TYPE_CHECKING:
    from tokenmargin.limits.next_token import NextTokenLimit
    from tokenmargin.problem.next_token import NextTokenProblem

MANY = 10_000
"""Nodes up to which JSON has the graphs of all last tokens; beyond, that of `--last` alone."""


def graph(
    corpus: str,
    /,
    *,
    window: int = 32,
    last: str | None = None,
    limit: int = 12,
    picture: Path | None = None,
    json: bool = False,
) -> int:
    """Say which next tokens a corpus puts ahead of which, and the limit of training on it, certified.

    Every last token has a graph: a sequence that ends in it draws an edge
    from its next token to its other tokens. Tokens on a cycle tie. Exit code
    0 when both parts of the limit are proven, 1 when one is not.

    Examples:

        tokenmargin graph toy.json --picture toy.svg
        tokenmargin graph reviews.safetensors --window 16 --last movie --json

    Parameters
    ----------
    corpus:
        A .json file with "sequences" of ids and "next" ids (and, if you like, "vocabulary" and "embeddings"); labelled
        text; or ids written by tokenmargin prepare.
    window:
        Tokens of a text that each of its positions is predicted from; those that do not hold it are left out.
    last:
        The last token whose graph to show; by default the one that most sequences end in.
    limit:
        Components to print or draw.
    picture:
        Also draw that graph, into this .png, .svg or .pdf file.
    json:
        Write one JSON object to standard output; with every graph where there are at most 10,000 nodes in all.
    """
    check_picture(picture)
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, got {limit}")
    problem = _read_next_tokens(corpus, window)
    shown = _shown_last_token(problem, last)
    from tokenmargin.limits.next_token import next_token_limit

    found = next_token_limit(problem)
    if picture is not None:
        _draw_graph(found, shown, limit, picture)
    if json:
        emit_json(_limit_as_data(found, shown))
    else:
        _print_limit(found, shown, limit)
    return 0 if found.is_certified else 1


def _read_next_tokens(corpus: str, window: int) -> NextTokenProblem:
    from tokenmargin.cli._texts import read_corpus
    from tokenmargin.problem.next_token import load_next_token, next_token_windows

    if Path(corpus).suffix == ".json":
        with usage_errors():
            return load_next_token(corpus)
    read = read_corpus(corpus)
    with usage_errors():
        return next_token_windows(read.tokens, read.lengths, read.vocabulary, window=window)


def _shown_last_token(problem: NextTokenProblem, asked: str | None) -> int:
    import numpy as np

    seen = np.bincount(problem.last, minlength=problem.size)
    if asked is None:
        return int(seen.argmax())
    if asked not in problem.vocabulary or not seen[problem.vocabulary.index(asked)]:
        often = ", ".join(problem.vocabulary[k] for k in np.argsort(-seen, kind="stable")[:5] if seen[k])
        raise UsageError(f"--last {asked}: no sequence ends in it; most end in {often}")
    return problem.vocabulary.index(asked)


def _components(found: NextTokenLimit, last: int) -> list[dict[str, Any]]:
    """The components of a graph in order: words, logits of both parts."""
    import numpy as np

    part, here = found.graph.graph_of(last), np.flatnonzero(found.graph.last == last)
    hard, soft = found.logits[here], found.finite.logits[here]
    rows = []
    for number, rank in enumerate(part.ranks.tolist()):
        members = np.flatnonzero(part.component == number)
        members = members[np.argsort(-soft[members], kind="stable")]
        rows.append(
            {
                "rank": rank,
                "tokens": [found.problem.vocabulary[part.token[k]] for k in members],
                "logit": round(float(hard[members[0]]), 12) + 0.0,  # no negative zero
                "count": int(part.component_counts[number]),
                "shares": np.exp(soft[members] - np.logaddexp.reduce(soft[members])).tolist(),
            }
        )
    return sorted(rows, key=lambda row: (row["rank"], -row["count"], row["tokens"]))


def _graph_as_data(found: NextTokenLimit, last: int) -> dict[str, Any]:
    part, words = found.graph.graph_of(last), found.problem.vocabulary
    return {
        "last": words[last],
        "sequences": int((found.problem.last == last).sum()),
        "components": _components(found, last),
        "edges": [
            {"from": words[part.token[a]], "to": words[part.token[b]], "count": int(count)}
            for a, b, count in zip(part.source.tolist(), part.target.tolist(), part.count.tolist(), strict=True)
        ],
    }


def _limit_as_data(found: NextTokenLimit, shown: int) -> dict[str, Any]:
    import numpy as np

    graphs = np.unique(found.graph.last).tolist() if found.graph.nodes <= MANY else [shown]
    return {
        **_count_graphs(found),
        "limit": found.to_dict(),
        "graphs": [_graph_as_data(found, last) for last in graphs],
    }


def _count_graphs(found: NextTokenLimit) -> dict[str, Any]:
    import numpy as np

    sizes = found.graph.sizes
    return {
        "sequences": found.problem.n,
        "vocabulary": found.problem.size,
        "last_tokens": len(np.unique(found.graph.last)),
        "nodes": found.graph.nodes,
        "edges": len(found.graph.source),
        "components": len(sizes),
        "components_of_several": int((sizes > 1).sum()),
        "largest_component": int(sizes.max()),
    }


def _print_limit(found: NextTokenLimit, shown: int, limit: int) -> None:
    counts, words = _count_graphs(found), found.problem.vocabulary
    print(
        f"{counts['sequences']} sequences, {counts['last_tokens']} last tokens, {counts['nodes']} nodes, "
        f"{counts['edges']} edges\n{counts['components']} components, {counts['components_of_several']} of several "
        f"tokens, the largest of {counts['largest_component']}\n"
    )
    solution, soft = found.direction, found.finite
    norm = "nothing is ordered" if solution.margin == float("inf") else f"margin {solution.margin:.6g}"
    print(f"direction    {solution.status}, {norm}, residual {solution.certificate.residual:.0e}")
    print(f"finite part  gradient {soft.gradient:.0e}, within {soft.distance:.0e} of the minimum")
    print(f"loss         {soft.risk:.6g} in the limit")
    if found.dependent:
        print_message("Embeddings are linearly dependent: they tie tokens that the graphs order.")
    rows = _components(found, shown)
    print(f"\nafter {printable(words[shown])!r}, first what nothing is ahead of")
    for row in rows[:limit]:
        pairs = zip(row["tokens"], row["shares"], strict=True)
        text = ", ".join(token if len(row["tokens"]) == 1 else f"{token} {share:.0%}" for token, share in pairs)
        line = f"{row['rank']:>4}  {row['logit']:>+9.4f}  {printable(text)}"
        print(line if len(line) <= 80 else f"{line[:76]} ...")
    if len(rows) > limit:
        print(f"      ... and {len(rows) - limit} more components (--limit, --json)")


def _draw_graph(found: NextTokenLimit, last: int, limit: int, picture: Path) -> None:
    with needs_extra("report"):
        from tokenmargin.report.figures import axes_for_file
        from tokenmargin.report.results import draw_priority_graph

    layers = min(int(found.graph.graph_of(last).ranks.max()) + 1, limit)
    with axes_for_file(picture, (6.75, 0.5 + 1.1 * layers)) as axes:
        draw_priority_graph(found, last, axes, most=limit)
    print_message(f"wrote {picture}")
