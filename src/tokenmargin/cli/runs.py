"""`tokenmargin runs`: list, show, compare, check and remove what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenmargin.cli._common import (
    RunsFolder,
    UsageError,
    emit_json,
    needs_extra,
    print_answer,
    print_facts,
    print_message,
    print_table,
    usage_errors,
)

if TYPE_CHECKING:
    from tokenmargin.experiments import Run


def runs(
    action: Literal["list", "show", "compare", "check", "remove"] = "list",
    names: list[str] | None = None,
    /,
    *,
    out: RunsFolder = Path("runs"),
    table: str | None = None,
    json: bool = False,
) -> int:
    """List, show, compare, check or remove recorded runs.

    A run is named by its id or by a beginning of it that no other run shares. `compare` takes two runs and says where
    settings, code, machine, findings and tables differ (exit code 1 when a table does); `check` compares every table
    with the digest written beside it (exit code 1 when one is damaged).

    Examples:

        tokenmargin runs
        tokenmargin runs show fig1a --table limits
        tokenmargin runs compare fig1b-3c fig1b-9e
        tokenmargin runs remove fig1b-9e

    Parameters
    ----------
    action:
        What to do.
    names:
        Which runs; for list, show and check all of them by default.
    table:
        For show: print this table as CSV on standard output.
    json:
        Write JSON to standard output.
    """
    from tokenmargin.experiments import find_runs, runs_in

    if action == "compare" and len(names or ()) != 2:
        raise UsageError(f"compare takes two runs, got {len(names or ())}")
    if action in ("remove", "show") and not names:
        raise UsageError(f"{action} needs the id of a run; tokenmargin runs lists them")
    with usage_errors(), needs_extra("records"):
        chosen = find_runs(out, names) if names else runs_in(out)
        match action:
            case "list":
                return _list_runs(chosen, json=json)
            case "show":
                return _show_runs(chosen, table=table, json=json)
            case "compare":
                return _compare_two(*chosen, json=json)
            case "check":
                return _check_runs(chosen)
            case "remove":
                return _remove_runs(chosen)


def _list_runs(chosen: list[Run], *, json: bool) -> int:
    rows = [_run_as_row(run) for run in chosen]
    if json:
        emit_json(rows)
        return 0
    listed = [
        (
            row["id"], row["verdict"], "" if row["seconds"] is None else f"{row['seconds']:.2f}",
            row["started"][:16].replace("T", " "), f"{row['bytes'] / 2**20:.1f} MiB",
        )
        for row in rows
    ]  # fmt: skip
    print_table((("run", "<<"), ("verdict", "<"), ("seconds", ">"), ("started", "<"), ("size", ">")), listed)
    if rows:
        print_message("tokenmargin runs show RUN prints its command, settings and findings.")
    return 0


def _run_as_row(run: Run) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    if not run.finished:
        return {"id": run.id, "verdict": "unfinished", "seconds": None, "started": "", "bytes": size, "command": ""}
    if (damaged := run.damage()) and "run.json" in damaged:
        return {"id": run.id, "verdict": "damaged", "seconds": None, "started": "", "bytes": size, "command": ""}
    details = run.details()
    verdict = f"{details['failed']} of {details['cells']} failed" if details.get("failed") else details["verdict"]
    return {
        "id": run.id,
        "verdict": verdict,
        "seconds": details["timing"]["seconds"],
        "started": details["timing"]["started"],
        "bytes": size,
        "command": details["command"],
    }


def _show_runs(chosen: list[Run], *, table: str | None, json: bool) -> int:
    for run in chosen:
        if not run.finished:
            raise UsageError(f"{run.id} is unfinished; run its command again, or remove it")
        if table is not None:
            _print_csv(run, table)
        elif json:
            emit_json(run.details())
        else:
            _print_details(run.details())
    return 0


def _print_csv(run: Run, table: str) -> None:
    import csv
    import sys

    if table in run.damage():
        raise UsageError(f"{run.table_path(table)}: damaged, its checksum is another; run its command again")
    try:
        columns = run.table(table)
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error
    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _measured(finding: dict[str, Any]) -> str:
    """The number in six digits (where it is one) and what was expected (where something was)."""
    value, expected = finding["measured"], finding["expected"]
    number = f"{value:.6g}" if isinstance(value, float) else str(value)
    return number if expected == "not judged" else f"{number} (expected {expected})"


def _print_details(details: dict[str, Any]) -> None:
    print_answer(f"{details['id']}  {details['title']}\n  {details['command']}")
    code, machine = details["code"], details["environment"]
    commit = f", commit {code['commit'][:12]}{' (modified)' if code['modified'] else ''}" if code["commit"] else ""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print_facts(
        [
            ("  code", f"tokenmargin {code['version']}, digest {code['digest']}{commit}"),
            ("  packages", f"python {machine['python']}, {packages}"),
            ("  machine", f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"),
            ("  settings", ", ".join(f"{name}={value}" for name, value in details["config"].items())),
            ("  started", f"{details['timing']['started']}, took {details['timing']['seconds']:.2f} s"),
            ("  tables", ", ".join(f"{name} ({facts['rows']} rows)" for name, facts in details["tables"].items())),
            *((f"  {one['verdict']}", f"{one['what']}: {_measured(one)}") for one in details.get("findings", ())),
        ]
    )


def _compare_two(first: Run, second: Run, *, json: bool) -> int:
    from tokenmargin.experiments.records import compare_runs

    comparison = compare_runs(first, second)
    if json:
        emit_json(comparison)
        return 0 if comparison["same_tables"] else 1
    facts = [
        (kind, f"{name}: {one} | {other}")
        for kind in ("settings", "code", "environment")
        for name, (one, other) in comparison[kind].items()
    ]
    facts += [("finding", f"{row['what']}: {row['first']} | {row['second']}") for row in comparison["findings"]]
    print_facts([*facts, *(("table", f"{name}: {words}") for name, words in comparison["tables"].items())])
    return 0 if comparison["same_tables"] else 1


def _check_runs(chosen: list[Run]) -> int:
    damaged = {run.id: run.damage() for run in chosen if run.finished}
    for name, tables in damaged.items():
        print(f"{name}  {'damaged: ' + ', '.join(tables) if tables else 'whole'}")
    return 1 if any(damaged.values()) else 0


def _remove_runs(chosen: list[Run]) -> int:
    for run in chosen:
        run.remove()
        print_message(f"removed {run.folder}")
    return 0
