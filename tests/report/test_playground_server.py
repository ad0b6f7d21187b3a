"""What the server accepts, what it refuses, and that it lives on."""

import http.client
import json
import re
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tokenmargin as tm
from tokenmargin.report.playground.guard import LARGEST_BODY, allowed_host
from tokenmargin.report.playground.server import STATIC, listen

TOKEN = {"x": 1, "y": 0, "score": 1}
PROBLEM = {"inputs": [{"label": 1, "tokens": [TOKEN, {"x": 0, "y": 0, "score": 0}]}], "draft": True}


def call(
    address: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, {"content-type": "application/json"} | headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_page_and_assets_come_from_the_package_with_a_strict_policy(playground: str) -> None:
    status, headers, body = call(playground, "GET", "/")
    assert status == 200
    assert b"See attention choose" in body
    assert "default-src 'none'; script-src 'sha256-" in headers["content-security-policy"]
    assert "'unsafe-inline'" not in headers["content-security-policy"].partition("style-src")[0]
    for asset in STATIC.iterdir():
        status, headers, body = call(playground, "GET", f"/{asset.name}")
        assert (status, body) == (200, asset.read_bytes())


def test_page_refers_to_nothing_outside() -> None:
    for asset in STATIC.iterdir():
        outside = re.findall(r"https?://[^\s\"'`)]+", asset.read_text())
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, asset.name


def test_answers_a_problem(playground: str) -> None:
    status, _, body = call(playground, "POST", "/api/plane", PROBLEM)
    answer = json.loads(body)
    assert status == 200
    assert answer["limits"][0]["gmm"]
    assert answer["limits"][0]["unit"] == pytest.approx([1.0, 0.0])


def test_a_loss_beyond_doubles_is_an_answer(playground: str) -> None:
    tokens = [{"x": 0, "y": 0, "score": -1000}, {"x": 0, "y": 1, "score": 0}]
    body = {"inputs": [{"tokens": tokens}], "method": "descent", "loss": "exponential"}
    status, _, answer = call(playground, "POST", "/api/plane", body)
    assert status == 200
    assert json.loads(answer)


def test_a_limit_beside_tied_tokens_has_no_cone(playground: str) -> None:
    tokens = [{"x": 1, "y": 0, "score": 1}, {"x": 0, "y": 1, "score": 1}, {"x": -1, "y": -1, "score": 0}]
    status, _, body = call(playground, "POST", "/api/plane", {"inputs": [{"tokens": tokens}], "draft": True})
    assert status == 200
    assert json.loads(body)["asked"]["cone"] is None


def test_headers_that_do_not_come_are_not_waited_for(playground: str) -> None:
    """The connection is closed by the server, while others are answered."""
    host, port = urlsplit(playground).netloc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(b"GET / HTTP/1.1\r\nhost: loc")
        assert call(playground, "POST", "/api/plane", PROBLEM)[0] == 200
        assert line.recv(1) == b""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"])
def test_foreign_hosts_are_refused(playground: str, host: str) -> None:
    assert call(playground, "GET", "/", host=host)[0] in (400, 421)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1:1"])
def test_foreign_origins_are_refused(playground: str, origin: str) -> None:
    assert call(playground, "POST", "/api/plane", PROBLEM, origin=origin)[0] == 403
    assert call(playground, "POST", "/api/plane", PROBLEM, **{"sec-fetch-site": "cross-site"})[0] == 403


def test_own_origin_is_accepted(playground: str) -> None:
    assert call(playground, "POST", "/api/plane", PROBLEM, origin=playground.rstrip("/"))[0] == 200


def test_answers_are_not_held_back() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio asks before it turns off Nagle's algorithm


def test_addresses_are_hosts_only_where_all_are_served() -> None:
    assert allowed_host("10.0.0.1:80", (), any_address=True)
    assert not allowed_host("10.0.0.1:80", (), any_address=False)
    assert allowed_host("[::1]:80", (), any_address=False)
    assert allowed_host("lab:80", ("lab",), any_address=True)


MALFORMED = [
    b"", b"{", b"\xff\xfe", b"null", b"[]", b"[" * 50_000, b'{"inputs": []}', b'{"inputs": 3}',
    b'{"inputs": [{"tokens": [{"x": NaN, "y": 0, "score": 0}]}]}',
    b'{"inputs": [{"tokens": [{"x": 1e400, "y": 0, "score": 0}]}]}',
    b'{"inputs": [{"tokens": [{"x": 1e9, "y": 0, "score": 0}]}]}',
    b'{"inputs": [{"tokens": [{"x": 0, "y": 0}]}]}',
    json.dumps(PROBLEM | {"steps": 10**9}).encode(),
    json.dumps(PROBLEM | {"step": -1}).encode(),
    json.dumps(PROBLEM | {"asked": [5]}).encode(),
    json.dumps(PROBLEM | {"asked": [0, 0]}).encode(),
    json.dumps(PROBLEM | {"path": "/etc/passwd"}).encode(),
    json.dumps({"inputs": PROBLEM["inputs"] * 7}).encode(),
    json.dumps({"inputs": [{"label": 2, "tokens": [TOKEN]}]}).encode(),
    json.dumps({"inputs": [{"label": 1, "tokens": [TOKEN] * 11}]}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_requests_get_a_4xx_and_the_server_lives(playground: str, body: bytes) -> None:
    assert 400 <= call(playground, "POST", "/api/plane", body)[0] < 500
    assert 400 <= call(playground, "POST", "/api/problem/save", body)[0] < 500
    assert call(playground, "POST", "/api/plane", PROBLEM)[0] == 200


def test_large_bodies_are_refused_whether_announced_or_not(playground: str) -> None:
    large = b" " * (LARGEST_BODY + 1)
    assert call(playground, "POST", "/api/plane", large)[0] == 413
    connection = http.client.HTTPConnection(urlsplit(playground).netloc, timeout=30)
    connection.request("POST", "/api/plane", iter([large[: LARGEST_BODY // 2]] * 3), encode_chunked=True,
                       headers={"transfer-encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd", "/docs", "/openapi.json"]
)
def test_no_file_but_the_page_is_served(playground: str, path: str) -> None:
    assert call(playground, "GET", path)[0] in (400, 404)


def test_problem_files_go_both_ways(playground: str, tmp_path: Path) -> None:
    problem = tm.figure1c()
    problem.save(tmp_path / "problem.json")
    status, _, body = call(playground, "POST", "/api/problem/load", (tmp_path / "problem.json").read_bytes())
    assert status == 200
    inputs = json.loads(body)["inputs"]
    assert [len(row["tokens"]) for row in inputs] == [7, 7, 7]
    status, _, body = call(playground, "POST", "/api/problem/save", {"inputs": inputs})
    assert status == 200
    (tmp_path / "back.json").write_bytes(body)
    back = tm.load_problem(tmp_path / "back.json")
    assert (back.keys.tokens == problem.keys.tokens[..., :2]).all()
    assert (back.scores == problem.scores).all()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"keys": [[[1, 2, 3]]], "labels": [1], "scores": [[1]]}', b'{"keys": "x", "labels": [1]}',
                json.dumps({"keys": [[[0, 0]]] * 9, "labels": [1] * 9, "scores": [[0]] * 9}).encode()],
)  # fmt: skip
def test_unusable_problem_files_are_refused_with_a_reason(playground: str, content: bytes) -> None:
    status, _, body = call(playground, "POST", "/api/problem/load", content)
    assert status == 422
    assert json.loads(body)["detail"]


def test_texts_are_decided_and_words_left_out(playground: str) -> None:
    ask = {"text": "What a delightful, noisy kettle!"}
    _, _, body = call(playground, "POST", "/api/text", ask)
    whole = json.loads(body)
    assert whole["label"] == 1
    assert [word["token"] for word in whole["words"]] == ["what", "a", "delightful", "noisy", "kettle"]
    _, _, body = call(playground, "POST", "/api/text", ask | {"leave_out": [2]})
    assert json.loads(body)["output"] == pytest.approx(whole["words"][2]["without"])
    assert call(playground, "POST", "/api/text", {"text": "x" * 5001})[0] == 422


def test_fifty_clients_at_once(playground: str) -> None:
    """A short version of `python -m benchmarks.playground_load`."""
    until, counts, errors = time.monotonic() + 3, [], []

    def client() -> None:
        done = 0
        try:
            while time.monotonic() < until and done < 1000:
                status, _, _ = call(playground, "POST", "/api/plane", PROBLEM)
                assert status == 200
                done += 1
        except Exception as error:
            errors.append(error)
        counts.append(done)

    threads = [threading.Thread(target=client) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert min(counts) >= 1
