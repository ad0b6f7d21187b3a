"""What the server accepts, what it refuses, and that it lives on."""

import http.client
import json
import re
import socket
import threading
from urllib.parse import urlsplit

import pytest

from tokenmargin.margin import TOLERANCE
from tokenmargin.report.playground.guard import LARGEST_BODY, allowed_host
from tokenmargin.report.playground.server import listen

FIELDS = {"keys": [[[1, 0, 0], [0, 0, 0]]], "labels": [1], "scores": [[1, 0]]}
PROBLEM = {"problem": FIELDS}


def call(
    address: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    try:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, {"content-type": "application/json"} | headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_page_is_the_article_with_a_strict_policy(playground: str) -> None:
    status, headers, body = call(playground, "GET", "/")
    assert status == 200
    assert b"See attention choose" in body
    assert "default-src 'none'; script-src 'sha256-" in headers["content-security-policy"]
    assert "'unsafe-inline'" not in headers["content-security-policy"].partition("style-src")[0]
    page = re.sub(r"<a [^>]*>", "", body.decode())  # the one link leads to the paper
    assert set(re.findall(r"https?://[^\s\"'`)]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_a_problem_is_certified(playground: str) -> None:
    status, _, body = call(playground, "POST", "/api/problem", PROBLEM)
    verdict = json.loads(body)["verdict"]
    assert status == 200
    assert verdict["gmm"]
    # A certified answer: residuals of 1e-10 at most.
    assert verdict["residual"] <= TOLERANCE
    one = pytest.approx(1.0, rel=2 * TOLERANCE, abs=0)  # a certified answer
    assert verdict["margin"] == one
    assert verdict["evidence"] == [{"token": [0, 1], "weight": one}]
    status, _, body = call(playground, "POST", "/api/problem/overview", PROBLEM)
    assert status == 200
    assert json.loads(body)["limits"] == [{"selected": [0], "sets": [[0]], "margin": one, "gmm": True}]


def test_a_limit_beside_tied_tokens_has_no_cone(playground: str) -> None:
    fields = {"keys": [[[1, 0], [0, 1], [-1, -1]]], "labels": [1], "scores": [[1, 1, 0]]}
    status, _, body = call(playground, "POST", "/api/problem", {"problem": fields})
    assert status == 200
    assert json.loads(body)["verdict"]["cone"] is None


def test_headers_that_do_not_come_are_not_waited_for(playground: str) -> None:
    """The connection is closed by the server, while others are answered."""
    host, port = urlsplit(playground).netloc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=300) as line:
        line.sendall(b"GET / HTTP/1.1\r\nhost: loc")
        assert call(playground, "POST", "/api/problem", PROBLEM)[0] == 200
        assert line.recv(1) == b""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"])
def test_foreign_hosts_are_refused(playground: str, host: str) -> None:
    assert call(playground, "GET", "/", host=host)[0] in (400, 421)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1:1"])
def test_foreign_origins_are_refused(playground: str, origin: str) -> None:
    assert call(playground, "POST", "/api/problem", PROBLEM, origin=origin)[0] == 403
    assert call(playground, "POST", "/api/problem", PROBLEM, **{"sec-fetch-site": "cross-site"})[0] == 403


def test_own_origin_is_accepted(playground: str) -> None:
    assert call(playground, "POST", "/api/problem", PROBLEM, origin=playground.rstrip("/"))[0] == 200


def test_answers_are_not_held_back() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio asks before it turns off Nagle's algorithm


def test_addresses_are_hosts_only_where_all_are_served() -> None:
    assert allowed_host("10.0.0.1:80", (), any_address=True)
    assert not allowed_host("10.0.0.1:80", (), any_address=False)
    assert allowed_host("[::1]:80", (), any_address=False)
    assert allowed_host("lab:80", ("lab",), any_address=True)


MALFORMED = [
    b"", b"{", b"\xff\xfe", b"null", b"[]", b"[" * 50_000, b'{"problem": []}', b'{"problem": {}}',
    b'{"problem": {"keys": [[[NaN, 0]]], "labels": [1], "scores": [[1]]}}',
    b'{"problem": {"keys": [[[1e400, 0]]], "labels": [1], "scores": [[1]]}}',
    b'{"problem": {"keys": "x", "labels": [1]}}',
    b'{"problem": {"keys": [[[1, 2], [3]]], "labels": [1], "scores": [[1, 2]]}}',
    json.dumps(PROBLEM | {"asked": [5]}).encode(),
    json.dumps(PROBLEM | {"asked": [0, 0]}).encode(),
    json.dumps(PROBLEM | {"path": "/etc/passwd"}).encode(),
    json.dumps({"problem": {"keys": [[[0, 0]]] * 27, "labels": [1] * 27, "scores": [[0]] * 27}}).encode(),
    json.dumps({"problem": FIELDS | {"labels": [2]}}).encode(),
    json.dumps({"problem": {"keys": [[[0]]], "labels": [0], "scores": [[[0, 1]]]}}).encode(),  # scores not fixed
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_requests_get_a_4xx_with_a_reason_and_the_server_lives(playground: str, body: bytes) -> None:
    for path in ("/api/problem", "/api/problem/overview"):
        status, _, answer = call(playground, "POST", path, body)
        if path == "/api/problem" or b"asked" not in body:  # the overview is of all selections
            assert 400 <= status < 500
            assert json.loads(answer)["detail"]
    assert call(playground, "POST", "/api/problem", PROBLEM)[0] == 200


def test_large_bodies_are_refused_whether_announced_or_not(playground: str) -> None:
    large = b" " * (LARGEST_BODY + 1)
    assert call(playground, "POST", "/api/problem", large)[0] == 413
    connection = http.client.HTTPConnection(urlsplit(playground).netloc, timeout=300)
    connection.request("POST", "/api/problem", iter([large[: LARGEST_BODY // 2]] * 3), encode_chunked=True,
                       headers={"transfer-encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd", "/docs", "/openapi.json"]
)
def test_no_file_but_the_page_is_served(playground: str, path: str) -> None:
    assert call(playground, "GET", path)[0] in (400, 404)


def test_texts_are_decided_and_words_left_out(playground: str) -> None:
    ask = {"text": "What a delightful, noisy kettle!"}
    _, _, body = call(playground, "POST", "/api/text", ask)
    whole = json.loads(body)
    assert whole["label"] == 1
    assert [word["token"] for word in whole["words"]] == ["what", "a", "delightful", "noisy", "kettle"]
    _, _, body = call(playground, "POST", "/api/text", ask | {"leave_out": [2]})
    # Sums of a handful of numbers of size up to ten.
    assert json.loads(body)["output"] == pytest.approx(whole["words"][2]["without"], abs=1e-11)
    assert call(playground, "POST", "/api/text", {"text": "x" * 5001})[0] == 422


def test_fifty_clients_at_once(playground: str) -> None:
    """A short version of `python -m benchmarks.playground_load`."""
    statuses: list[int] = []
    errors: list[Exception] = []

    def client() -> None:
        try:
            statuses.extend(call(playground, "POST", "/api/problem", PROBLEM)[0] for _ in range(4))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert statuses == [200] * 200


@pytest.mark.parametrize("host", ["\ud800", "a" * 300, "\x00"])
def test_a_host_that_no_name_can_be_is_refused_in_a_line(host: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011  # of three kinds, by the system's words; the command says them
        listen(host, 0)
