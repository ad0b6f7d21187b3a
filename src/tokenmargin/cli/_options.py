"""Options that several commands have: their types, and what `--help` says of them."""

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

Json: TypeAlias = Annotated[bool, Parameter(help="Write one JSON object to standard output.")]
ModelFolder: TypeAlias = Annotated[Path, Parameter(help="A model folder, written by tokenmargin fit.")]
TextColumn: TypeAlias = Annotated[str, Parameter(help="The column with the texts.")]
LabelColumn: TypeAlias = Annotated[str, Parameter(help="The column with the labels.")]
Encoding: TypeAlias = Annotated[
    str | None, Parameter(help="Of a .csv or .tsv file, if it is not UTF-8: utf-16, latin-1, cp1252.")
]
Delimiter: TypeAlias = Annotated[str | None, Parameter(help="Of a .csv or .tsv file, if it is not a comma or a tab.")]
Problem: TypeAlias = Annotated[str, Parameter(help="A .npz or .json file, or the name of a figure, such as fig1c.")]
Jobs: TypeAlias = Annotated[int, Parameter(help="Processes of the local engine; -1 for one per core.")]
Address: TypeAlias = Annotated[str | None, Parameter(help="The ray cluster, for --engine ray: auto, or host:port.")]
RunsFolder: TypeAlias = Annotated[Path, Parameter(help="Folder of all runs.")]
