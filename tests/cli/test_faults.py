"""What goes wrong outside: full disks, damaged files, Ctrl-C. One line each, an exit code, nothing half-written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmargin._files import locked_folder, open_sealed, seal_record
from tokenmargin.cli import main
from tokenmargin.cli._common import UsageError, printable, usage_errors
from tokenmargin.experiments import record
from tokenmargin.experiments.figures.prompt_paths import Figure1b

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

QUICK = Figure1b(steps=5)


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(error: str) -> bool:
    return error.startswith("error: ") and error.count("\n") == 1


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [{"text": f"word{k % 7} word{k % 3} end", "label": k % 2} for k in range(60)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "rows.jsonl"


def test_a_seal_sees_every_change() -> None:
    record = {"step": 3, "loss": [0.1, float("nan")], "names": {"1": (1, 2)}}
    written = json.loads(json.dumps(seal_record(record)))
    assert open_sealed(written)["step"] == 3
    with pytest.raises(ValueError, match="its checksum differs"):
        open_sealed({**written, "step": 4})
    with pytest.raises(ValueError, match="it has no checksum"):
        open_sealed(record)
    with pytest.raises(ValueError, match="a record is a JSON object, this is a list"):
        open_sealed([])


def test_a_folder_is_locked_once(tmp_path) -> None:
    again = locked_folder(tmp_path / "a")
    with locked_folder(tmp_path / "a"), pytest.raises(BlockingIOError, match="another process is at work in it"), again:
        pytest.fail("held twice")
    with locked_folder(tmp_path / "a"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [("evolve", "fig1b", "--steps", "5", "--save")])
def test_a_full_disk_is_one_line(capsys, tmp_path, arguments) -> None:
    (tmp_path / "full.npz").symlink_to("/dev/full")
    code, _, error = run(capsys, *arguments, tmp_path / "full.npz")
    assert code == 1
    assert one_line(error)
    assert "No space left on device" in error


def test_a_file_where_a_folder_is_needed_is_one_line(capsys, tmp_path, corpus) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (
        ("sweep", "fig1b", "--over", "steps=5", "--out", tmp_path / "file"),
        ("reproduce", "fig1b", "--out", tmp_path / "file"),
        ("prepare", corpus, "--out", tmp_path / "file"),
        ("prepare", corpus, "--out", tmp_path / "file" / "x.safetensors"),
    ):
        code, _, error = run(capsys, *arguments)
        assert code in (1, 2), arguments
        assert "Traceback" not in error
        assert "Errno" not in error
    assert (tmp_path / "file").read_bytes() == b""


def test_a_damaged_record_is_listed_and_computed_again(capsys, tmp_path) -> None:
    said: list[str] = []
    record(QUICK, tmp_path)
    (mark,) = tmp_path.glob("*/run.json")
    table = mark.parent / "tables" / "limits.parquet"
    whole, rows = mark.read_bytes(), table.read_bytes()
    for content in (
        b"[]",
        b"5",
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"tables": 3}',
        whole.replace(b"fig1b", b"fig1c"),
    ):
        mark.write_bytes(content)
        code, out, _ = run(capsys, "runs", "list", "--out", tmp_path)
        assert code == 0
        assert "damaged" in out
        code, out, _ = run(capsys, "runs", "check", "--out", tmp_path)
        assert code == 1
        assert "damaged: run.json" in out
        code, _, error = run(capsys, "runs", "show", mark.parent.name, "--out", tmp_path)
        assert code == 2
        assert one_line(error)
    record(QUICK, tmp_path, found_damaged=said.extend)
    assert json.loads(mark.read_bytes())["tables"] == json.loads(whole)["tables"]
    for content in (b"no parquet", rows[:40] + bytes([rows[40] ^ 1]) + rows[41:], rows[:-1] + bytes([rows[-1] ^ 1])):
        table.write_bytes(content)
        code, out, error = run(capsys, "runs", "show", mark.parent.name, "--table", "limits", "--out", tmp_path)
        assert (code, out) == (2, "")
        assert one_line(error)
        assert "damaged, its checksum is another" in error
    record(QUICK, tmp_path, found_damaged=said.extend)
    assert said == ["run.json", "limits"]
    assert table.read_bytes() == rows


def test_a_damaged_run_is_not_resumed(capsys, tmp_path) -> None:
    kept = tmp_path / "run.npz"
    run(capsys, "evolve", "fig1b", "--steps", "20", "--save", kept)
    whole = kept.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), 40, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        kept.write_bytes(damaged)
        code, _, error = run(capsys, "evolve", "fig1b", "--steps", "20", "--resume", kept)
        assert code == 0 or (code == 2 and one_line(error))  # some bytes of a zip archive mean nothing
    kept.write_bytes(whole)
    with np.load(kept) as file:
        arrays = {name: file[name] for name in file if name != "point"}
    np.savez(kept, **arrays)
    code, _, error = run(capsys, "evolve", "fig1b", "--steps", "30", "--resume", kept)
    assert code == 2
    assert "its checksum differs" in error


def test_a_flipped_bit_in_a_prepared_file_is_refused(capsys, tmp_path, corpus) -> None:
    prepared, out = tmp_path / "text.safetensors", tmp_path / "out"
    assert run(capsys, "prepare", corpus, "--out", prepared)[0] == 0
    whole, rng = prepared.read_bytes(), np.random.default_rng(0)
    for place in rng.choice(len(whole), 30, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        prepared.write_bytes(damaged)
        code, _, error = run(capsys, "train", prepared, "--out", out, "--epochs", "1", "--dimension", "2")
        assert code == 2, place
        assert one_line(error)
        assert str(prepared) in error
        assert not out.exists()


@pytest.mark.parametrize("header", [b"5", b"[]", b"{}", b'{"__metadata__": 3}', b"[" * 100_000])
def test_a_strange_header_of_a_prepared_file_is_refused(capsys, tmp_path, header) -> None:
    prepared = tmp_path / "text.safetensors"
    prepared.write_bytes(len(header).to_bytes(8, "little") + header)
    code, _, error = run(capsys, "train", prepared, "--out", tmp_path / "out")
    assert code == 2
    assert one_line(error)


def test_a_flipped_bit_in_a_folder_of_shards_is_refused(capsys, tmp_path, corpus) -> None:
    shards, out = tmp_path / "shards", tmp_path / "out"
    assert run(capsys, "prepare", corpus, "--out", shards)[0] == 0
    rng = np.random.default_rng(0)
    for path in sorted(path for path in shards.iterdir() if path.name != ".lock"):
        whole = path.read_bytes()
        for place in rng.choice(len(whole), 20, replace=False).tolist():
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            code, _, error = run(capsys, "train", shards, "--out", out, "--epochs", "1", "--dimension", "2")
            if code == 0:  # a change of blanks and the like in JSON, which means the same
                assert path.name == "corpus.json"
                continue
            assert code == 2, (path, place)
            assert one_line(error)
            assert str(shards) in error
        path.write_bytes(whole)


def test_a_shard_of_another_corpus_is_refused(capsys, tmp_path, corpus) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(
        corpus.read_text()
        .replace('"label": 0', '"label": 2')
        .replace('"label": 1', '"label": 0')
        .replace('"label": 2', '"label": 1')
    )
    for source, name in ((corpus, "a"), (other, "b")):
        run(capsys, "prepare", source, "--out", tmp_path / name)
    (tmp_path / "a" / "shard-000000.safetensors").write_bytes(
        (tmp_path / "b" / "shard-000000.safetensors").read_bytes()
    )
    code, _, error = run(capsys, "train", tmp_path / "a", "--out", tmp_path / "out")
    assert code == 2
    assert "it belongs to another corpus" in error


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "shards"])
def test_when_no_token_is_left_nothing_is_written(capsys, tmp_path, name) -> None:
    (tmp_path / "s.jsonl").write_text('{"text": "good film", "label": 1}\n{"text": "bad film", "label": 0}\n')
    code, _, error = run(capsys, "prepare", tmp_path / "s.jsonl", "--pipeline", "paper", "--out", tmp_path / name)
    assert code == 2
    assert "no token is left: none is seen at least 50 times (4 after words, " in error.splitlines()[-1]
    assert not (tmp_path / name).is_file()
    assert not (tmp_path / name / "corpus.json").exists()


def test_a_second_process_on_a_folder_says_so(capsys, tmp_path, corpus) -> None:
    with locked_folder(tmp_path / "shards"):
        code, _, error = run(capsys, "prepare", corpus, "--out", tmp_path / "shards")
    assert code == 1
    assert one_line(error)
    assert "another process is at work in it" in error
    assert run(capsys, "prepare", corpus, "--out", tmp_path / "shards")[0] == 0
    with locked_folder(tmp_path / "out"):
        code, _, error = run(capsys, "train", tmp_path / "shards", "--out", tmp_path / "out")
    assert code == 1
    assert one_line(error)


def test_an_interrupt_while_work_is_tidied_away_leaves_nothing_to_trip_over(
    monkeypatch, capsys, corpus, tmp_path
) -> None:
    whole = shutil.rmtree

    def half(folder: Path, **options: object) -> None:
        parts = sorted(Path(folder).glob("*.parquet"))
        if not parts:  # another folder
            return whole(folder, **options)
        parts[0].unlink()
        raise KeyboardInterrupt

    command = "prepare", corpus, "--out", tmp_path / "shards"
    with monkeypatch.context() as patched:
        patched.setattr("tokenmargin.data.sharded.prepare.shutil.rmtree", half)
        assert run(capsys, *command)[0] == 130
    assert (tmp_path / "shards" / ".work").is_dir()
    assert run(capsys, *command)[0] == 0
    assert not (tmp_path / "shards" / ".work").exists()


def test_a_system_without_an_answer_is_told_in_our_words() -> None:
    with pytest.raises(UsageError, match="no answer in double precision"), usage_errors():
        np.linalg.inv(np.zeros((2, 2)))


def test_an_interrupt_that_python_drops_is_sent_again(monkeypatch, capsys) -> None:
    """One that arrives while an object is freed is said to be ignored, by the interpreter."""

    class Freed:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def work(*_: object, **__: object) -> int:
        Freed()
        for _moment in range(6000):
            time.sleep(0.01)
        return 0

    monkeypatch.setattr("tokenmargin.cli.app", work)
    code, out, err = run(capsys)
    assert (code, out, one_line(err)) == (130, "", True)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("seconds", [0.2, 0.5, 3.0])
def test_an_interrupt_at_any_moment_is_one_line_and_130(tmp_path, seconds) -> None:
    # From the first statement of ours on: before it the interpreter is starting, and has words of its own.
    begin = "from tokenmargin.__main__ import program; print('begun', flush=True); raise SystemExit(program())"
    command = [sys.executable, "-c", begin, "reproduce", "fig1b", "--steps", "10000000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, error = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert error.count("\n") == 1, error
    assert error.startswith("error: interrupted")
    assert not list(tmp_path.glob("*/run.json"))


def test_hostile_rows_are_set_aside(capsys, tmp_path) -> None:
    good = [json.dumps({"text": f"good film {k}", "label": k % 2}) for k in range(20)]
    bad = ['{"text": "x", "label": 1e999}', '{"text": "x", "label": "\\ud800"}', '{"text": "\\ud800 x", "label": 1}']
    (tmp_path / "s.jsonl").write_text("\n".join(good + bad))
    code, _, error = run(capsys, "prepare", tmp_path / "s.jsonl", "--out", tmp_path / "s.safetensors")
    assert code == 0
    for reason in ("line 21: label is not finite", "line 22: label is not UTF-8", "line 23: text is not UTF-8"):
        assert reason in error


def test_damaged_tables_are_named(capsys, tmp_path) -> None:
    table = pa.table({"text": [f"good film {k}" for k in range(50)], "label": [k % 2 for k in range(50)]})
    pq.write_table(table, tmp_path / "s.parquet")
    whole = (tmp_path / "s.parquet").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), 40, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "s.parquet").write_bytes(damaged)
        code, _, error = run(capsys, "prepare", tmp_path / "s.parquet", "--out", tmp_path / "s.safetensors")
        assert code == 0 or (code == 2 and one_line(error.splitlines()[-1] + "\n")), place
    folder = tmp_path / "dataset"
    folder.mkdir()
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    for content in (b"[]", b"{", b'{"features": 3}', b'{"features": {"label": {"names": 5}}}'):
        (folder / "dataset_info.json").write_bytes(content)
        code, _, error = run(capsys, "prepare", folder, "--out", tmp_path / "s.safetensors")
        assert code == 2
        assert "dataset_info.json" in error
    (folder / "dataset_info.json").unlink()
    assert run(capsys, "prepare", folder, "--out", tmp_path / "s.safetensors")[0] == 0
    (folder / "data.arrow").write_bytes(b"x" * 100)
    code, _, error = run(capsys, "prepare", folder, "--out", tmp_path / "s.safetensors")
    assert code == 2
    assert "not a readable arrow file" in error


def test_diverging_training_is_a_status(capsys, tmp_path, corpus) -> None:
    prepared = tmp_path / "text.safetensors"
    run(capsys, "prepare", corpus, "--out", prepared)
    command = ("train", prepared, "--epochs", "5", "--dimension", "4", "--out", tmp_path / "out")
    last = ("train", prepared, "--epochs", "1", "--dimension", "4", "--batch", "999", "--out", tmp_path / "last")
    for words in ((*command, "--rate", "1e20"), (*command, "--rate", "1e38"), (*command, "--embedding-scale", "1e200"),
                  (*last, "--rate", "1e20")):  # fmt: skip
        code, _, error = run(capsys, *words)
        assert code in (1, 2), words
        assert "diverged" in error.splitlines()[-1]
    for extra in (("--rate", "inf"), ("--embedding-scale", "nan"), ("--seed", "-1")):
        assert run(capsys, *command, *extra)[0] == 2


@pytest.mark.parametrize("size", ["inf", "nan", "0", "-1", "1e-300"])
def test_sizes_of_slices(capsys, tmp_path, corpus, size) -> None:
    code, _, error = run(capsys, "prepare", corpus, "--out", tmp_path / "shards", "--slice-megabytes", size)
    assert code == 2
    assert one_line(error)


@pytest.mark.parametrize("extra", [("--d", "inf"), ("--d", "nan"), ("--d", "100", "--delta", "0")])
def test_sizes_of_instances(capsys, extra) -> None:
    code, _, error = run(capsys, "verify", "A.lemma2", "--n", "8", "--T", "4", *extra)
    assert code == 2
    assert one_line(error)


def test_brackets_in_a_path_are_no_markup(capsys, tmp_path) -> None:
    (tmp_path / "a[").mkdir()
    code, _, error = run(capsys, "evolve", "fig1b", "--steps", "3", "--save", tmp_path / "a[" / "c].npz")
    assert code == 0
    assert f"wrote {tmp_path}/a[/c].npz" in error


def test_texts_do_not_steer_the_terminal(capsys, tmp_path) -> None:
    assert printable("a\x1b[2J\x9b1mb\n\té") == "a\ufffd[2J\ufffd1mb\n\té"
    run(capsys, "fit", "sentences", "--out", tmp_path / "model")
    code, out, _ = run(capsys, "explain", tmp_path / "model", "a \x1b[2J\x1b]0;title\x07 dreadful ferry")
    assert code == 0
    assert "\x1b]" not in out
    assert "\x1b[2J" not in out
    assert "dreadful" in out
    code, _, error = run(capsys, "fit", "sentences", "--out", tmp_path / "other", "--ngrams", "100000")
    assert code == 2
    assert "ngrams must be at most 100" in error
