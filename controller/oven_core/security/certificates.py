"""Create a private certificate authority and the server certificates that it signs.

A bus that other machines can reach needs them. Only this module uses the package `cryptography` (extra `tls`). Without
that package, importing the module raises ConfigError.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from oven_core.errors import ConfigError
from oven_core.security.credentials import write_secret
from oven_core.security.tls import Certificate

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
except ImportError as error:
    raise ConfigError(
        'creating certificates needs `pip install "oven-controller[tls]"`; or use your own with '
        "--tls-cert FILE --tls-key FILE"
    ) from error

SERVER_DAYS = 825
"""Validity of the server's certificate in days. Some clients refuse a longer validity."""
AUTHORITY_DAYS = 3650
"""Validity of the authority's certificate in days."""


def create_certificate(folder: Path, hosts: Sequence[str]) -> tuple[Certificate, Path]:
    """Create a certificate for a server's `hosts` (names or addresses). Return it, and the file of its authority.

    In `folder`, every user may read `ca.pem` and `server.pem`, but only the owner may read `ca.key` and `server.key`
    (mode 0600). An authority that exists there is reused, so that clients still trust it."""
    authority, authority_key = _load_or_create_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(host) for host in hosts]
    certificate = (
        _certificate_builder(_subject(hosts[0]), authority.subject, key, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _save(folder / "server", certificate, key)
    return Certificate(folder / "server.pem", folder / "server.key"), folder / "ca.pem"


def _load_or_create_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if (folder / "ca.pem").exists():
        existing_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(existing_key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()), existing_key
    key, subject = ec.generate_private_key(ec.SECP256R1()), _subject("oven-controller")
    key_usage = x509.KeyUsage(  # the authority only signs certificates and revocation lists
        False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )
    authority = (
        _certificate_builder(subject, subject, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _save(folder / "ca", authority, key)
    return authority, key


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # another machine's clock may be behind
        .not_valid_after(now + timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _subject(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _save(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_secret(stem.with_suffix(".key"), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    stem.with_suffix(".pem").write_bytes(certificate.public_bytes(Encoding.PEM))
