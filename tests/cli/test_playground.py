"""The command: what it refuses, and what it says."""

import socket
from pathlib import Path

import pytest
from tests.asking import ask, ask_for_json

from tokenmargin.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port must lie in 0..65535"),
        (
            ["--model", "no/such/model"],
            "no/such/model: not a model folder (no config.json); make one",
        ),
        (["--model", "old/token_model.json"], "earlier versions is not read any more: train again"),
        (["--host", "203.0.113.7", "--port", "0"], "cannot listen on 203.0.113.7"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playground", "--no-browser", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["playground", "--no-browser", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_it_opens_what_fit_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import FastAPI

    from tokenmargin.report.playground import server

    served: list[FastAPI] = []
    monkeypatch.setattr(server, "serve", lambda app, listener: (served.append(app), listener.close()))
    table = tmp_path / "mail.csv"
    table.write_text("text,label\n" + "win a prize,spam\nlunch at noon,ham\n" * 30)
    assert main(["fit", str(table), "--out", str(tmp_path / "m")]) == 0
    assert main(["playground", "--no-browser", "--model", str(tmp_path / "m")]) == 0
    assert b'"classes":["ham","spam"]' in ask(served[0], "GET", "/", {"host": "127.0.0.1"})[1]
    assert ask_for_json(served[0], "/api/text", {"text": "win lunch"})["words"][0]["token"] == "win"
    table.write_text("text,label\n" + "win a prize,a\nlunch at noon,b\nno more,c\n" * 30)
    assert main(["fit", str(table), "--out", str(tmp_path / "three")]) == 0
    assert main(["playground", "--no-browser", "--model", str(tmp_path / "three")]) == 2
    assert "the page shows models of two classes, this one has 3" in capsys.readouterr().err
