"""Trust policies: the keys and identities that may sign bundles, and the oldest accepted versions.

Policies from files and from programs are validated alike (`policy_faults`). In patterns, `*` matches any characters and
`?` matches one (`matches`). Rules that accept compare exactly; rules that reject, for revoked identities and least
versions, ignore case.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aot_runtime.bundle.statement import Predicate
from aot_runtime.contract.names import IDENTIFIER, is_version
from aot_runtime.contract.versions import version_key
from aot_runtime.errors import TrustError
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import shown

from .keys import PUBLIC_BYTES, decode_public, key_id

MAX_POLICY_BYTES = 1 << 20
_PATTERN_OF_NAMES = re.compile(r"\w*[*?][\w*?]*", re.ASCII)


def matches(text: str, pattern: str) -> bool:
    """Return True if a text matches a pattern. `*` matches any characters, `?` one, and others only themselves."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _matches_in_any_case(text: str, pattern: str) -> bool:
    return matches(text.casefold(), pattern.casefold())


@dataclass(frozen=True)
class TrustedKey:
    """A key that may sign bundles.

    Attributes:
        label: its name in the policy.
        public: the public key, 32 bytes.
        bundles: names, or patterns of names (`llama_*`), of the bundles that it may sign.
        expires: last day on which its signatures are accepted, or None if unlimited.
        revoked: True to reject all its signatures, whenever they were made.
    """

    label: str
    public: bytes
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False

    @property
    def id(self) -> str:
        """Its id in signature files."""
        return key_id(self.public)

    def __str__(self) -> str:
        return f"key '{self.label}' ({self.id})"


@dataclass(frozen=True)
class TrustedIdentity:
    """A person or CI workflow that may sign bundles with sigstore.

    Attributes:
        label: its name in the policy.
        issuer: the URL of the identity provider, compared exactly.
        subject: the e-mail address or workflow URL in the certificate, or a pattern of it (`*`, `?`).
        bundles: names, or patterns of names (`llama_*`), of the bundles that it may sign.
        expires: last day on which its signatures are accepted, or None if unlimited.
        revoked: True to reject all its signatures, whenever they were made.
    """

    label: str
    issuer: str
    subject: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False

    def __str__(self) -> str:
        return f"identity '{self.label}' ({self.subject} of {self.issuer})"


@dataclass(frozen=True)
class TrustPolicy:
    """The accepted signers of bundles and the oldest accepted versions.

    Attributes:
        keys: accepted and revoked keys.
        least_versions: the oldest accepted version, by bundle name or pattern of names. A bundle must meet all that
            match its name.
        source: origin of the policy, for error messages.
        identities: accepted and revoked sigstore identities.
        trusted_root: a file with the keys and certificates of trusted sigstore services. Defaults to the public
            services, as the library `sigstore` has them on this machine.

    Raises:
        TrustError: the policy is invalid; `reason` is `policy`.
    """

    keys: tuple[TrustedKey, ...] = ()
    least_versions: Mapping[str, str] = field(default_factory=dict)
    source: str = "the policy"
    identities: tuple[TrustedIdentity, ...] = ()
    trusted_root: Path | None = None

    def __post_init__(self) -> None:
        for fault in policy_faults(self):
            raise TrustError(f"{self.source}: {fault}", "policy")
        object.__setattr__(self, "least_versions", dict(self.least_versions))  # the caller may change theirs

    def find_key(self, keyid: str) -> TrustedKey:
        """Return the key with an id. Raises `TrustError` if it is unknown or revoked."""
        known = {key.id: key for key in self.keys}
        key = known.get(keyid)
        if key is None:
            there = ", ".join(str(key) for key in self.keys) or "none"
            raise TrustError(
                f"it is signed by {shown(keyid)}, which {self.source} does not list; listed: {there}", "key"
            )
        if key.revoked:
            raise TrustError(f"it is signed by {key}, which {self.source} says is revoked", "revoked")
        return key

    def find_identity(self, issuer: str, subject: str) -> TrustedIdentity:
        """Return the first identity that matches. Raises `TrustError` if none does, or if a revoked one does."""
        of_issuer = [item for item in self.identities if item.issuer == issuer]
        for item in of_issuer:
            if item.revoked and _matches_in_any_case(subject, item.subject):
                raise TrustError(f"it is signed by {item}, which {self.source} says is revoked", "revoked")
        for item in of_issuer:
            if not item.revoked and matches(subject, item.subject):
                return item
        there = ", ".join(str(item) for item in self.identities) or "none"
        raise TrustError(
            f"it is signed by {subject!r:.300} of {issuer!r:.300}: not listed in {self.source}; listed: {there}",
            "identity",
        )

    def accept(self, signer: TrustedKey | TrustedIdentity, said: Predicate, proven: datetime | None = None) -> None:
        """Check a signed statement against the policy. Raises `TrustError`.

        Args:
            proven: earliest possible time of signing, independent of the signer's claim, or None if unknown.
        """
        # Use the latest known time, so a slow clock does not revive an expired signer.
        times = (datetime.now(UTC), said.signed_on, *([proven] if proven else ()))
        today = max(times).astimezone(UTC).date()
        if signer.expires is not None and today > signer.expires:
            raise TrustError(
                f"it is signed by {signer}, which expired on {signer.expires} and is used on {today}", "expired"
            )
        if not any(matches(said.name, pattern) for pattern in signer.bundles):
            may = ", ".join(signer.bundles)
            raise TrustError(f"{signer} signed bundle '{said.name}', but may sign {may} only", "name")
        for pattern, least in self.least_versions.items():
            if not _matches_in_any_case(said.name, pattern):
                continue
            if not (is_version(said.version) and version_key(said.version) >= version_key(least)):
                has = f"has version {said.version}" if said.version else "has no version"
                raise TrustError(f"bundle '{said.name}' {has}; {self.source} asks for {least} or later", "version")


def policy_faults(policy: TrustPolicy) -> Iterator[str]:
    """Yield a description of each fault of a policy. Later checks rely on earlier ones."""
    for name, kind in (("keys", TrustedKey), ("identities", TrustedIdentity)):
        signers = getattr(policy, name)
        if not (isinstance(signers, tuple | list) and all(isinstance(item, kind) for item in signers)):
            yield f"{name} is {shown(signers)}; a tuple of {kind.__name__} is allowed"
    for key in policy.keys:
        yield from _signer_faults(f"keys.{key.label}", key)
        if not (isinstance(key.public, bytes) and len(key.public) == PUBLIC_BYTES):
            yield f"keys.{key.label}.public is {shown(key.public)}; {PUBLIC_BYTES} bytes are allowed"
    if len({key.public for key in policy.keys}) < len(policy.keys):
        yield "a key is listed twice"
    for identity in policy.identities:
        yield from _signer_faults(f"identities.{identity.label}", identity)
        yield from _identity_faults(f"identities.{identity.label}", identity)
    if len({(item.issuer, item.subject) for item in policy.identities}) < len(policy.identities):
        yield "an identity is listed twice"
    if not isinstance(policy.trusted_root, str | os.PathLike | None):
        yield f"trusted_root is {shown(policy.trusted_root)}; the path of a file is allowed"
    if policy.trusted_root is not None and not policy.identities:
        yield "trusted_root is set, but the policy has no `identities`"
    yield from _version_faults(policy.least_versions)


def _signer_faults(where: str, signer: TrustedKey | TrustedIdentity) -> Iterator[str]:
    names = signer.bundles
    if not (isinstance(names, tuple | list) and all(isinstance(name, str) and name for name in names)):
        yield f"{where}.bundles is {shown(names)}; a tuple of names of bundles, or of patterns of them, is allowed"
    last = signer.expires
    if last is not None and (not isinstance(last, date) or isinstance(last, datetime)):
        yield f"{where}.expires is {shown(last)}; a date without a time is allowed"
    if not isinstance(signer.revoked, bool):
        yield f"{where}.revoked is {shown(signer.revoked)}; True and False are allowed"


def _identity_faults(where: str, identity: TrustedIdentity) -> Iterator[str]:
    issuer, subject = identity.issuer, identity.subject
    if not (isinstance(issuer, str) and isinstance(subject, str)):
        yield f"{where} has issuer {shown(issuer)} and subject {shown(subject)}; texts are allowed"
    if not issuer or not any(letter.isalnum() for letter in subject):
        yield f"{where}: it needs an issuer, and a subject that is not only a pattern"
    if not (issuer.isprintable() and subject.isprintable()):
        yield f"{where}: its issuer or its subject has a character that cannot be printed, which no certificate's has"
    if "*" in issuer or "?" in issuer:
        yield f"{where}.issuer is {shown(issuer)}; it is compared exactly, so no pattern is allowed"


def _version_faults(least_versions: Mapping[str, str]) -> Iterator[str]:
    if not isinstance(least_versions, Mapping):
        yield f"least_versions is {shown(least_versions)}; a mapping of names of bundles to versions is allowed"
    for name, version in least_versions.items():
        if not (isinstance(name, str) and (IDENTIFIER.match(name) or _PATTERN_OF_NAMES.fullmatch(name))):
            yield f"least_versions has {shown(name)}, which is neither the name of a bundle nor a pattern of names"
        if not (isinstance(version, str) and is_version(version)):
            yield f"least_versions.{name}: {shown(version)} is not a valid bundle version; '1.2' would be one"


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    public: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False


class _IdentityEntry(msgspec.Struct, forbid_unknown_fields=True):
    issuer: str
    subject: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, _KeyEntry] = {}
    identities: dict[str, _IdentityEntry] = {}
    trusted_root: str = ""
    least_versions: dict[str, str] = {}


def read_policy(path: str | os.PathLike[str]) -> TrustPolicy:
    """Read a policy file. Raises `TrustError` if it is unreadable or invalid."""
    try:
        data = read_regular(path, MAX_POLICY_BYTES)
        if len(data) > MAX_POLICY_BYTES:
            raise ValueError(f"it is over {MAX_POLICY_BYTES} bytes")
        entries = msgspec.convert(tomllib.loads(data.decode()), _PolicyFile)
        if not (entries.keys or entries.identities):
            raise ValueError("it has neither `keys` nor `identities`")
        keys = tuple(_keys(entries.keys))
    except OSError as error:
        raise TrustError(f"trust policy {os.fspath(path)} cannot be read: {error.strerror}", "policy") from None
    except (ValueError, RecursionError) as error:  # also from TOML, UTF-8 and msgspec
        raise TrustError(f"trust policy {os.fspath(path)}: {error}", "policy") from None
    return TrustPolicy(
        keys,
        entries.least_versions,
        f"trust policy {os.fspath(path)}",
        tuple(_identities(entries.identities)),
        Path(path).parent / entries.trusted_root if entries.trusted_root else None,
    )


def _keys(entries: Mapping[str, _KeyEntry]) -> Iterator[TrustedKey]:
    for label, entry in entries.items():
        try:
            public = decode_public(entry.public)
        except ValueError as error:
            raise ValueError(f"keys.{label}.public: {error}") from None
        yield TrustedKey(label, public, entry.bundles, entry.expires, entry.revoked)


def _identities(entries: Mapping[str, _IdentityEntry]) -> Iterator[TrustedIdentity]:
    for label, entry in entries.items():
        yield TrustedIdentity(label, entry.issuer, entry.subject, entry.bundles, entry.expires, entry.revoked)


def find_policy(trust: TrustPolicy | str | os.PathLike[str]) -> TrustPolicy:
    """Return a policy as given, or read it from a file. Raises `TrustError`."""
    if isinstance(trust, TrustPolicy):
        return trust
    if not isinstance(trust, str | os.PathLike):
        raise TrustError(f"trust is {shown(trust)}; a TrustPolicy or the path of a policy file is allowed", "policy")
    return read_policy(trust)
