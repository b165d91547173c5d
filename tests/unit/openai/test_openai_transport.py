"""The client over real sockets on this machine: plain HTTP, TLS, the key, and the deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.config.schema import BuildConfig, DeployConfig, DraftConfig, ModelConfig, SmokeConfig
from specdeploy.errors import ConfigError
from specdeploy.openai import OpenAIClient, ServerAddress
from specdeploy.pipeline.smoke_targets import openai_target
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.client.http import HttpTransport
from specdeploy.triton.client.replies import read_body
from specdeploy.triton.protocol import GenerateRequest
from tests.unit.openai.fake_openai import MODEL, FakeOpenAI

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "sk-of-a-test-0123456789"
REQUEST = GenerateRequest(prompt="one two", max_tokens=5)


class Handler(BaseHTTPRequestHandler):
    """Hands requests to the toy, as HTTP/1.1 with one chunk for each piece of the body."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Answer a POST."""
        self._answer("POST")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.keys.append(self.headers.get("Authorization"))
        if self.server.toy.key and self.headers.get("Authorization") != f"Bearer {self.server.toy.key}":
            self._send(401, [b'{"error": {"message": "Incorrect API key provided"}}'])
            return
        reply = self.server.toy.handle(method, self.path, json.loads(body) if body else None)
        self._send(reply.status, list(iter(reply.read_some, b"")))

    def _send(self, status: int, pieces: list[bytes]) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            self.server.drip.wait()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Write no log."""


class Server(ThreadingHTTPServer):
    """The toy on a free port. While ``drip`` is not set, it stops after the first piece of an answer."""

    daemon_threads = True

    def __init__(self, toy: FakeOpenAI) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.toy = toy
        self.keys: list[str | None] = []
        self.drip = threading.Event()
        self.drip.set()

    def handle_error(self, *_: Any) -> None:
        """Keep quiet about clients that leave or do not trust the certificate."""


@contextlib.contextmanager
def serving(toy: FakeOpenAI, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve the toy for the time of the block."""
    server = Server(toy)
    if tls is not None:
        # The handshake happens in the thread of the connection, so that one bad client does not stop the rest.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.drip.set()
        server.shutdown()
        thread.join(10)
        server.server_close()


def address_of(server: Server, scheme: str = "http") -> str:
    """Return the URL of a server."""
    return f"{scheme}://127.0.0.1:{server.server_address[1]}/v1"


def client_of(server: Server, scheme: str = "http", **more: Any) -> OpenAIClient:
    """Connect."""
    return OpenAIClient(ServerAddress.parse(address_of(server, scheme)), model=MODEL, **more)


def configuration() -> DeployConfig:
    """Return a deployment with short time limits."""
    return DeployConfig(
        name="toy",
        target=ModelConfig(checkpoint="t"),
        draft=DraftConfig(checkpoint="d"),
        build=BuildConfig(max_seq_len=64),
        smoke=SmokeConfig(request_timeout_s=20),
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signs itself, and its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*command, *names], check=True, capture_output=True, timeout=60)
    return folder / "cert.pem"


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


def test_over_plain_http() -> None:
    """Whole and streamed answers come over a real connection."""
    with serving(FakeOpenAI()) as server, client_of(server) as client:
        whole = client.generate_http(REQUEST)
        assert "".join(chunk.text for chunk in client.stream_http(REQUEST)) == whole.text
        assert client.ready()


def test_over_tls(tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS works with a certificate that this machine was told to trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(FakeOpenAI(), tls) as server, client_of(server, "https") as client:
        whole = client.generate_http(REQUEST)
        assert "".join(chunk.text for chunk in client.stream_http(REQUEST)) == whole.text


def test_a_certificate_that_nobody_vouches_for(tls: ssl.SSLContext) -> None:
    """A server that cannot prove who it is gets no request, and no key."""
    with serving(FakeOpenAI(), tls) as server, client_of(server, "https", api_key=KEY) as client:
        with pytest.raises(RequestFailed, match=r"(?i)certificate") as failed:
            client.generate_http(REQUEST)
        assert failed.value.label == "connection"
        assert server.keys == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_drips(
    scheme: str, tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline holds for the whole answer, however often a byte comes."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(FakeOpenAI(), tls if scheme == "https" else None) as server, client_of(server, scheme) as client:
        server.drip.clear()
        with pytest.raises(RequestFailed) as failed:
            list(client.stream_http(REQUEST, timeout_s=0.5))
        assert failed.value.label == "timeout"


def test_a_redirect_is_not_followed() -> None:
    """The key goes to the server that was named and to no other; what stands for the body says where it would go."""
    toy = FakeOpenAI(health=302)
    with serving(toy) as server, client_of(server, api_key=KEY) as client:
        assert not client.ready()
        assert server.keys == [f"Bearer {KEY}"]
        with HttpTransport(address_of(server)).send("GET", "/health", None, 30.0) as reply:
            assert read_body(reply) == b"a redirect to http://127.0.0.1:9/elsewhere, which is not followed"


class TestKey:
    """Where the key comes from, and where it never appears."""

    def test_it_is_sent_with_every_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable's value is sent as a bearer token, by the first request already."""
        monkeypatch.setenv("TOY_KEY", f"{KEY}\n")
        with serving(FakeOpenAI(key=KEY)) as server:
            target = openai_target(address_of(server), model=None, config=configuration(), api_key_env="TOY_KEY")
            with target.client_factory() as client:
                client.generate_http(REQUEST)
            assert set(server.keys) == {f"Bearer {KEY}"}

    def test_no_variable_no_header(self) -> None:
        """Without a variable nothing is sent, and the server's refusal is told."""
        with serving(FakeOpenAI(key=KEY)) as server:
            with pytest.raises(RequestFailed, match="Incorrect API key"):
                openai_target(address_of(server), model=None, config=configuration())
            assert server.keys == [None]

    def test_a_refused_key_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error of a request with a key does not hold it."""
        monkeypatch.setenv("TOY_KEY", "sk-wrong-0123456789")
        with serving(FakeOpenAI(key=KEY)) as server, pytest.raises(RequestFailed) as failed:
            openai_target(address_of(server), model=None, config=configuration(), api_key_env="TOY_KEY")
        assert "sk-wrong" not in f"{failed.value!r} {failed.value.message} {failed.value.hint}"

    @pytest.mark.parametrize("value", [None, "", "  ", "sk-\x00secret", "sk-é-secret", "sk-a\nb-secret"])
    def test_a_key_that_cannot_be_used(self, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing key, or one that would break the header, is refused by the variable's name alone."""
        monkeypatch.delenv("TOY_KEY", raising=False)
        if value is not None and "\x00" not in value:
            monkeypatch.setenv("TOY_KEY", value)
        with pytest.raises(ConfigError, match="TOY_KEY") as failed:
            openai_target("http://127.0.0.1:9", model=None, config=configuration(), api_key_env="TOY_KEY")
        assert "secret" not in f"{failed.value} {failed.value.hint}"


class TestTarget:
    """From an address to a target."""

    def test_the_only_model_is_taken(self) -> None:
        """Without a name, the only model is asked; vLLM's longest sequence counts, not the configuration's."""
        with serving(FakeOpenAI(about={"max_model_len": 999})) as server:
            expect = openai_target(address_of(server), model=None, config=configuration()).expectations
        assert (expect.front_door, expect.models, expect.max_seq_len) == (MODEL, (MODEL,), 999)
        assert expect.capabilities == {"ids", "counts", "stream", "stream-end"}

    def test_a_plainer_server(self) -> None:
        """What a server does not offer is no capability; lengths are the configuration's."""
        with serving(FakeOpenAI(ids=False, counts=False)) as server:
            expect = openai_target(address_of(server), model=MODEL, config=configuration()).expectations
        assert expect.capabilities == {"stream", "stream-end"}
        assert expect.max_seq_len == 64

    def test_a_model_that_is_not_there(self) -> None:
        """The server's own words tell that it has no such model."""
        with serving(FakeOpenAI()) as server, pytest.raises(RequestFailed, match="`other` does not exist"):
            openai_target(address_of(server), model="other", config=configuration())

    def test_nobody_there(self) -> None:
        """A server that is not running is a fault of the environment."""
        with serving(FakeOpenAI()) as server:
            address = address_of(server)
        with pytest.raises(RequestFailed) as failed:
            openai_target(address, model=MODEL, config=dataclasses.replace(configuration()))
        assert failed.value.label == "connection"
        assert failed.value.exit_code == 4
