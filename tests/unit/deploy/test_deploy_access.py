"""Restricted parts of the API and certificates: what the server is told, what clients send, and what nobody prints."""

from __future__ import annotations

import pytest

from specdeploy.config.schema import ServeConfig
from specdeploy.deploy.access import access_of
from specdeploy.errors import ConfigError

SECRET = "s3cret"


def access(secrets: dict[str, str] | None = None, **keys):
    """Return the access of a configuration; without *secrets* an empty environment."""
    return access_of(ServeConfig(**keys), files={}, secrets={} if secrets is None else secrets)


def test_a_restriction_becomes_an_option_and_a_header() -> None:
    """The same entry tells the server what to expect and our own requests what to send."""
    entry = "model-repository,statistics:x-admin=s3cret"
    found = access(http_restricted_api=(entry,), grpc_restricted_protocol=(entry,))

    assert list(found.flags()) == [f"--http-restricted-api={entry}", f"--grpc-restricted-protocol={entry}"]
    assert found.headers("statistics") == {"x-admin": SECRET}
    assert found.headers("health") == {}
    assert found.metadata("statistics") == {"triton-grpc-protocol-x-admin": SECRET}


def test_a_secret_comes_from_the_environment() -> None:
    """So that none stands in the YAML; a variable that is not set is an error with its name."""
    entry = ("health:key=env:ADMIN",)

    assert access({"ADMIN": SECRET}, http_restricted_api=entry).headers("health") == {"key": SECRET}
    with pytest.raises(ConfigError, match=r"serve\.http_restricted_api: the environment variable ADMIN is not set"):
        access({}, http_restricted_api=entry)


UNFIT = {"a line end": "s3cret\n", "a second line": "s3\ncret", "letters of others": "s3cr€t", "a blank": " s3cret"}


@pytest.mark.parametrize("secret", UNFIT.values(), ids=UNFIT.keys())
def test_a_secret_that_no_header_can_carry_is_an_error(secret: str) -> None:
    """From the environment it names the variable, written down it names the key; neither repeats the value."""
    with pytest.raises(ConfigError, match=r"the environment variable ADMIN holds more than printable") as named:
        access({"ADMIN": secret}, http_restricted_api=("health:key=env:ADMIN",))
    with pytest.raises(ConfigError, match=r"serve\.grpc_restricted_protocol: a secret holds more") as literal:
        access(grpc_restricted_protocol=(f"health:key={secret}",))
    with pytest.raises(ConfigError):
        access_of(ServeConfig(http_restricted_api=(f"health:key={secret}",)), files={}, secrets=None)

    for caught in (named, literal):
        assert secret.strip() not in caught.value.message + caught.value.hint


def test_secrets_are_blotted_out_for_showing() -> None:
    """Neither a plan nor the text of a value holds one, and a plan needs no variable."""
    keys = ServeConfig(http_restricted_api=("health:a=s3cret", "trace:b=env:NOT_SET"))
    found = access_of(keys, files={}, secrets=None)

    assert list(found.flags()) == ["--http-restricted-api=health:a=***", "--http-restricted-api=trace:b=***"]
    assert SECRET not in repr(access(http_restricted_api=("health:a=s3cret",)))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("helth:a=s3cret", "'helth' is no part of the API"),
        ("health", "names no header and secret"),
        ("health:a", "names no header and secret"),
        ("health:a b=s3cret", "names no header and secret"),
        ("health:=s3cret", "names no header and secret"),
    ],
)
def test_an_entry_that_restricts_nothing_is_an_error(entry: str, message: str) -> None:
    """An API that was to be closed is not left open by a slip; the message never repeats the secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        access(http_restricted_api=(entry,))

    assert SECRET not in caught.value.message + caught.value.hint


def test_a_part_is_restricted_once() -> None:
    """Two headers for one part could not both be meant."""
    with pytest.raises(ConfigError, match="health is restricted twice"):
        access(http_restricted_api=("health:a=1", "trace,health:b=2"))


def test_certificates_close_grpc() -> None:
    """Plain TLS with a certificate and its key; mutual TLS with an authority as well."""
    keys = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    files = {"cert.pem": "/c/cert.pem", "key.pem": "/c/key.pem", "ca.pem": "/c/ca.pem"}
    plain = access_of(ServeConfig(**keys), files=files, secrets={})
    mutual = access_of(ServeConfig(**keys, tls_ca="ca.pem"), files=files, secrets={})

    assert list(plain.flags()) == [
        "--grpc-use-ssl=true",
        "--grpc-server-cert=/c/cert.pem",
        "--grpc-server-key=/c/key.pem",
    ]
    assert "--grpc-use-ssl-mutual=true" in mutual.flags()
    assert "--grpc-root-cert=/c/ca.pem" in mutual.flags()
    assert mutual.files == ("/c/cert.pem", "/c/key.pem", "/c/ca.pem")


@pytest.mark.parametrize("keys", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_ca": "a"}])
def test_half_of_the_certificates_is_an_error(keys: dict[str, str]) -> None:
    """And not a server without TLS."""
    with pytest.raises(ConfigError, match="go together") as caught:
        access(**keys)

    assert "no TLS for HTTP" in caught.value.hint
