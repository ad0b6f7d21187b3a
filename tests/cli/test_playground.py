"""The command: what it refuses, and what it says."""

import socket

import pytest

from tokenmargin.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port must lie in 0..65535"),
        (["--model", "no/such/model.json"], "no such file"),
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
