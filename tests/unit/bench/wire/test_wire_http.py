"""Requests over real sockets on this machine: connections, deadlines, cancelling, and the ways that servers fail."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.wire.http import HttpWire
from specdeploy.triton.client.failures import RequestFailed
from tests.unit.bench.wire.scripted import (
    END,
    HEAD,
    REQUEST,
    Client,
    Server,
    answering,
    ask,
    chunk,
    count_of,
    events,
    play,
    sized,
    wire_to,
)

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.bench.wire.call import Reply

STREAM = HEAD + events("a", "b") + END


def label(reply: Reply) -> str | None:
    """Return the label of what a request failed with."""
    return None if reply.fault is None else reply.fault.label


class TestAnswers:
    """What comes of a request that is answered."""

    def test_events_and_times(self) -> None:
        """Each event has the time of the read that completed it; the times of one read are the same."""

        async def scenario() -> None:
            go = asyncio.Event()

            async def script(client: Client, _number: int) -> None:
                await client.write(HEAD + events("a", "b") + chunk(b"data: c"))
                await go.wait()
                await client.write(chunk(b"\n\n: nothing\n\ndata: d\ndata: e\r\n\r\n"), END)

            async with Server(script) as server, wire_to(server, 1) as wire:
                reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                wire.start(REQUEST, 30, reply.set_result)
                await count_of(wire, 2)
                go.set()
                came = await reply
            assert came.events == [b"a", b"b", b"c", b"d\ne"]
            a, b, c, d = came.arrived_s
            assert came.sent_s <= a == b < c == d <= came.ended_s
            assert (came.status, came.fault, came.opened, came.resent) == (200, None, False, False)
            assert not came.splitter.unfinished

        play(scenario)

    @pytest.mark.parametrize(
        "answer",
        [
            STREAM,
            HEAD + chunk(b"data:a\r\n\r\ndata: b\r\n\r\n") + END,
            sized(200, b"data: a\n\ndata: b\n\n"),
        ],
    )
    def test_connections_are_used_again(self, answer: bytes) -> None:
        """One request after another goes over the same connection, byte for byte as it was given."""

        async def scenario() -> None:
            async with Server(answering(answer)) as server, wire_to(server) as wire:
                replies = [await ask(wire) for _ in range(3)]
                assert [reply.events for reply in replies] == [[b"a", b"b"]] * 3
                assert [reply.opened for reply in replies] == [True, False, False]
                assert (server.requests, len(server.clients)) == ([REQUEST] * 3, 1)
                assert (wire.received, wire.in_flight) == (6, 0)

        play(scenario)

    def test_an_answer_that_ends_with_its_connection(self) -> None:
        """Without length and chunks the answer ends with the connection; the next request gets another."""

        async def script(client: Client, _number: int) -> None:
            await client.write(b"HTTP/1.1 200 OK\r\n\r\n", b"data: a\n\n")
            client.hang_up()

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                replies = [await ask(wire), await ask(wire)]
                assert [(reply.events, label(reply)) for reply in replies] == [([b"a"], None)] * 2
                assert len(server.clients) >= 2

        play(scenario)

    def test_another_status(self) -> None:
        """The body of a refusal is kept as it is, and the connection used again."""

        async def scenario() -> None:
            async with Server(answering(sized(429, b"data: x\n\nlater"))) as server, wire_to(server, 1) as wire:
                reply, _ = await ask(wire), await ask(wire)
                assert (reply.status, reply.body, reply.events, reply.fault) == (429, b"data: x\n\nlater", [], None)
                assert len(server.clients) == 1

        play(scenario)

    @pytest.mark.parametrize("body", [b"", b"<html>moved</html>"])
    def test_a_redirect_says_where_to(self, body: bytes) -> None:
        """In place of its body stands where it leads, without a password and what may be a key."""
        where = b"Location: http://me:secret@10.0.0.1/v1?key=secret"

        async def scenario() -> None:
            async with Server(answering(sized(302, body, where))) as server, wire_to(server, 1) as wire:
                reply = await ask(wire)
                said = b"a redirect to ...@10.0.0.1/v1, which is not followed"
                assert (reply.status, reply.body, reply.fault) == (302, said, None)

        play(scenario)

    def test_a_request_may_be_started_from_the_end_of_another(self) -> None:
        """A closed loop needs no task: the callback of one request starts the next, over the connection just freed."""

        async def scenario() -> None:
            async with Server(answering(STREAM)) as server, wire_to(server, 2) as wire:
                left, ended = 20, asyncio.Event()

                def done(reply: Reply) -> None:
                    nonlocal left
                    assert label(reply) is None
                    left -= 1
                    if left >= 2:
                        wire.start(REQUEST, 30, done)
                    elif not wire.in_flight:
                        ended.set()

                wire.start(REQUEST, 30, done)
                wire.start(REQUEST, 30, done)
                await ended.wait()
                assert (len(server.requests), len(server.clients), wire.received) == (20, 2, 40)

        play(scenario)


class TestConnections:
    """When they are opened, and what becomes of them."""

    def test_opened_beforehand(self) -> None:
        """As many as were asked for are open before the first request; one request more opens one more."""

        async def scenario() -> None:
            all_there = asyncio.Barrier(4)

            async def script(client: Client, _number: int) -> None:
                await all_there.wait()
                await client.write(STREAM)

            async with Server(script) as server, wire_to(server, 3) as wire:
                await server.connections(3)
                replies = await asyncio.gather(*(ask(wire) for _ in range(4)))
                assert [reply.opened for reply in replies] == [False, False, False, True]
                assert len(server.clients) == 4

        play(scenario)

    @pytest.mark.parametrize("farewell", [b"", sized(408, b"idle")])
    def test_one_that_the_server_closes_is_replaced(self, farewell: bytes) -> None:
        """A used connection that ends while idle, with or without a word, is replaced before the next request."""

        async def scenario() -> None:
            async with Server(answering(STREAM)) as server, wire_to(server, 1) as wire:
                await ask(wire)
                await server.clients[0].write(farewell)
                server.clients[0].hang_up()
                await server.connections(2)
                reply = await ask(wire)
                assert (label(reply), reply.resent, len(server.clients)) == (None, False, 2)

        play(scenario)

    def test_one_that_ends_just_as_it_is_used(self) -> None:
        """A request over a used connection that ends without a byte is sent once more, over a new one, and says so."""

        async def script(client: Client, number: int) -> None:
            if number == 1:
                client.hang_up()
            else:
                await client.write(STREAM)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                first, second = await ask(wire), await ask(wire)
                assert (first.resent, second.resent, second.opened) == (False, True, True)
                assert (label(second), second.events, len(server.requests)) == (None, [b"a", b"b"], 3)

        play(scenario)

    def test_a_second_time_is_a_failure(self) -> None:
        """A server that closes the new connection, too, has failed the request."""

        async def script(client: Client, number: int) -> None:
            if number:
                client.hang_up()
            else:
                await client.write(STREAM)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                await ask(wire)
                reply = await ask(wire)
                assert (label(reply), reply.resent, len(server.requests)) == ("connection", True, 3)

        play(scenario)

    def test_a_new_connection_without_an_answer(self) -> None:
        """A request over a connection that was never used before is not sent again."""

        async def script(client: Client, _number: int) -> None:
            client.hang_up()

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                reply = await ask(wire)
                assert (label(reply), reply.resent, len(server.requests)) == ("connection", False, 1)
                assert "without an answer" in str(reply.fault)

        play(scenario)

    def test_nobody_there(self) -> None:
        """A server that is not running fails as `connection`, beforehand and with each request."""

        async def scenario() -> None:
            async with Server(answering()) as server:
                url = server.url
            wire = HttpWire(url)
            with pytest.raises(RequestFailed) as failed:
                await wire.open(5)
            assert failed.value.label == "connection"
            assert label(await ask(wire)) == "connection"
            await wire.close()

        play(scenario)

    def test_a_server_that_takes_no_connection(self) -> None:
        """The deadline holds while a connection is made, too."""

        async def scenario() -> None:
            with socket.socket() as deaf:
                deaf.bind(("127.0.0.1", 0))
                deaf.listen(0)
                full = [socket.socket() for _ in range(3)]
                for other in full:
                    other.setblocking(False)
                    other.connect_ex(deaf.getsockname())
                wire = HttpWire(f"127.0.0.1:{deaf.getsockname()[1]}")
                reply = await ask(wire, timeout_s=0.1)
                assert (label(reply), reply.opened) == ("timeout", True)
                await wire.close()
                for other in full:
                    other.close()

        play(scenario)

    @pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
    def test_ipv6(self) -> None:
        """An address of IPv6 works as any other."""

        async def scenario() -> None:
            try:
                server = await Server(answering(STREAM), host="::1").__aenter__()
            except OSError:
                pytest.skip("no address of IPv6")
            async with wire_to(server, 1) as wire:
                assert (await ask(wire)).events == [b"a", b"b"]
            await server.__aexit__()

        play(scenario)

    def test_a_closed_wire(self) -> None:
        """Closing twice is fine; a request after that is refused."""

        async def scenario() -> None:
            async with Server(answering(STREAM)) as server:
                wire = HttpWire(server.url)
                await wire.open(2)
                await wire.close()
                await wire.close()
                with pytest.raises(RequestFailed, match="closed") as failed:
                    wire.start(REQUEST, 1, print)
                assert failed.value.label == "connection"

        play(scenario)


class TestFaults:
    """What comes of a request that is not answered to its end."""

    @pytest.mark.parametrize(
        ("answer", "came"),
        [
            (HEAD[:30], []),
            (HEAD, []),
            (HEAD + events("a", "b"), [b"a", b"b"]),
            (HEAD + events("a") + b"9\r\ndata", [b"a"]),
            (sized(200, b"data: a\n\ndata: b\n\n")[:-1], [b"a"]),
        ],
    )
    def test_an_answer_that_breaks_off(self, answer: bytes, came: list[bytes]) -> None:
        """An answer that the server does not finish fails as `connection`, with the events that had come."""

        async def script(client: Client, _number: int) -> None:
            await client.write(answer)
            client.hang_up()

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                reply = await ask(wire)
                assert (label(reply), reply.events, len(reply.arrived_s)) == ("connection", came, len(came))

        play(scenario)

    def test_a_reset(self) -> None:
        """A connection that is torn down fails as `connection`, in the words of the system."""

        async def script(client: Client, _number: int) -> None:
            await client.write(HEAD + events("a"))
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.writer.transport.abort()

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                reply = await ask(wire)
                assert label(reply) == "connection"
                assert "reset" in str(reply.fault)

        play(scenario)

    @pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", HEAD + events("a") + b"what?\r\n"])
    def test_garbage(self, answer: bytes) -> None:
        """What is not HTTP fails as `protocol` and ends its connection; the next request is not harmed."""

        async def script(client: Client, number: int) -> None:
            await client.write(STREAM if number else answer)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                first, second = await ask(wire), await ask(wire)
                assert (label(first), label(second)) == ("protocol", None)
                await server.clients[0].gone.wait()

        play(scenario)

    @pytest.mark.parametrize(
        ("head", "piece", "most"),
        [
            (HEAD, b"x" * 2**20, "an event is longer than 16 MiB"),
            (HEAD, b"data: x\n" * 2**17, "an event is longer than 16 MiB"),
            (HEAD, b"data: %s\n\n" % (b"x" * 2**20), "the answer is longer than 64 MiB"),
            (HEAD, b"data: x\n\n" * 2000, "more than 100,000 events"),
            (HEAD.replace(b"200 OK", b"500 No"), b"x" * 2**20, "the answer is longer than 64 MiB"),
        ],
    )
    def test_an_answer_without_an_end(self, head: bytes, piece: bytes, most: str) -> None:
        """More bytes or events than any answer has fail as they do for a blocking client: memory is bounded."""

        async def script(client: Client, _number: int) -> None:
            await client.write(head, *[chunk(piece)] * 70)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                reply = await ask(wire)
                assert label(reply) == "protocol"
                assert most in str(reply.fault)

        play(scenario)

    def test_each_answer_has_the_whole_length(self) -> None:
        """Bytes of one answer do not count for the next over the same connection."""

        async def script(client: Client, _number: int) -> None:
            await client.write(HEAD, *[chunk(b"data: %s\n\n" % (b"x" * 2**20))] * 40, END)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                first, second = await ask(wire), await ask(wire)
                assert (label(first), label(second)) == (None, None)
                assert len(server.clients) == 1

        play(scenario)

    @pytest.mark.parametrize("answer", [b"", HEAD, HEAD + events("a"), b"HTTP/1.1 500 No\r\n\r\nbecause"])
    def test_silence(self, answer: bytes) -> None:
        """The deadline is for the whole answer, however much of it has come, and ends the connection."""

        async def script(client: Client, number: int) -> None:
            await client.write(STREAM if number else answer)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 1) as wire:
                first, second = await ask(wire, timeout_s=0.1), await ask(wire)
                assert (label(first), label(second)) == ("timeout", None)
                assert first.ended_s - first.sent_s >= 0.09
                await server.clients[0].gone.wait()

        play(scenario)


class TestCancel:
    """Giving requests up."""

    def test_one(self) -> None:
        """A request that is cancelled hands over what had come, once, and closes its connection."""

        async def scenario() -> None:
            async with Server(answering(HEAD + events("a"))) as server, wire_to(server, 1) as wire:
                replies: list[Reply] = []
                call = wire.start(REQUEST, 30, replies.append)
                await count_of(wire, 1)
                call.cancel()
                call.cancel()
                (reply,) = replies
                assert (label(reply), reply.events, reply.status, wire.in_flight) == ("cancelled", [b"a"], 200, 0)
                await server.clients[0].gone.wait()

        play(scenario)

    def test_before_it_is_connected(self) -> None:
        """A request can be cancelled while its connection is made; the next one finds that connection."""

        async def scenario() -> None:
            async with Server(answering(STREAM)) as server, wire_to(server) as wire:
                replies: list[Reply] = []
                wire.start(REQUEST, 30, replies.append).cancel()
                assert [label(reply) for reply in replies] == ["cancelled"]
                await server.connections(1)
                assert label(await ask(wire)) is None
                assert server.requests == [REQUEST]

        play(scenario)

    def test_all(self) -> None:
        """Everything in flight is cancelled at once; what had ended is left alone."""

        async def script(client: Client, number: int) -> None:
            await client.write(HEAD + events("a") if number else STREAM)

        async def scenario() -> None:
            async with Server(script) as server, wire_to(server, 3) as wire:
                replies = [await ask(wire)]
                for _ in range(3):
                    wire.start(REQUEST, 30, replies.append)
                await count_of(wire, 5)
                wire.cancel_all()
                assert [label(reply) for reply in replies] == [None, *["cancelled"] * 3]

        play(scenario)

    def test_closing(self) -> None:
        """Closing the wire cancels what is in flight, connected or not."""

        async def scenario() -> None:
            async with Server(answering(HEAD)) as server:
                wire = HttpWire(server.url)
                await wire.open(1)
                replies: list[Reply] = []
                for _ in range(2):
                    wire.start(REQUEST, 30, replies.append)
                await wire.close()
                assert [label(reply) for reply in replies] == ["cancelled"] * 2

        play(scenario)


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


class TestTls:
    """The same over TLS."""

    def serve(self, certificate: Path, answer: bytes) -> Server:
        """Make a server with the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        return Server(answering(answer), tls=context)

    def test_answers(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answers that are longer than a read come as they do without TLS, over connections that are kept."""
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        text = "x" * 200_000

        async def scenario() -> None:
            async with (
                self.serve(certificate, HEAD + events("a", text, "b") + END) as server,
                wire_to(server, 2, tls=True) as wire,
            ):
                replies = [await ask(wire) for _ in range(3)]
                assert [reply.events for reply in replies] == [[b"a", text.encode(), b"b"]] * 3
                assert len(server.clients) == 2

        play(scenario)

    def test_cancelling_and_closing(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that is cancelled, and a wire that is closed in the middle of a handshake, leave nothing behind."""
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

        async def scenario() -> None:
            async with self.serve(certificate, HEAD + events("a")) as server, wire_to(server, 1, tls=True) as wire:
                replies: list[Reply] = []
                call = wire.start(REQUEST, 30, replies.append)
                await count_of(wire, 1)
                call.cancel()
                wire.start(REQUEST, 30, replies.append)
                await wire.close()
                assert [label(reply) for reply in replies] == ["cancelled"] * 2

        play(scenario)

    def test_a_certificate_that_nobody_vouches_for(self, certificate: Path) -> None:
        """A server that cannot prove who it is gets no request."""

        async def scenario() -> None:
            async with self.serve(certificate, STREAM) as server:
                wire = HttpWire(server.url, tls=True)
                reply = await ask(wire)
                assert label(reply) == "connection"
                assert "certificate" in str(reply.fault).lower()
                assert server.requests == []
                await wire.close()

        play(scenario)
