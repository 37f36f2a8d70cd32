"""Read trust policies of any content, from a file and from a program.

Both are accepted or refused alike, and accepted ones decide about signers like an independent, slow implementation.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from aot_runtime.bundle.statement import Predicate
from aot_runtime.contract.names import is_version
from aot_runtime.contract.versions import version_key
from aot_runtime.errors import TrustError
from aot_runtime.trust.keys import encode_public
from aot_runtime.trust.policy import TrustedIdentity, TrustedKey, TrustPolicy, read_policy

from .bundles import must
from .edits import Edit

_ISSUERS = ("https://a", "https://b", "https://a/", "https://*", "", "https://a\n", 5)
_SUBJECTS = (
    "1+bot[bot]@b.c", "1+botb@b.c", "*@b.c", "?@b.c", "*", "**?", "", "[!\n]*", "[!x]*", "*@*.*", "a*b*c", "a]", "{a}",
    "https://h/o/r@refs/tags/*", "https://h/o/r@refs/tags/v[0-9]", "A@B.C", "a\tb*", "ü@b.c", 7,
)  # fmt: skip
_BUNDLES = (["*"], ["rows"], ["ro*", "first"], ["ro?s"], ["[r]ows"], ["ROWS"], [], "rows", [""], [1], ["r", "rows*"])
_NAMES = ("rows", "first", "ROWS", "ro*", "*", "?ows", "r[o]ws", "rows-gfx942", "", "a.b", "rows_", "Row*", "*\n")
_VERSIONS = ("1.2", "0", "1.10", "1.2rc1", "9.9", "", "new", "1.2-beta", "1" * 70, 1.2)
_EXPIRES = (None, None, {"date": "2999-01-01"}, {"date": "2001-01-01"}, {"date": "2999-01-01T00:00:00"}, 5, True)
_REVOKED = (None, False, False, True, "false", 1)


@dataclass(frozen=True)
class PolicyInput:
    """A policy, whose `edits` are its parts: `key`, `identity`, `least` and `root`, each with its fields.

    Attributes:
        asked: seed of the signers that it is asked about.
    """

    edits: tuple[Edit, ...]
    asked: int


class Policies:
    """Handles inputs, one after the other, in a file of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.path = folder / "trust.toml"

    @property
    def readable(self) -> Path:
        """Return the folder that may be read."""
        return self.folder

    def warm_up(self) -> None:
        """Handle a sound policy."""
        parts = (["key", 1, ["rows"], None, None], ["identity", "https://a", "*@b.c", ["*"], None, None])
        given = PolicyInput((*parts, ["least", "ro*", "1.2"]), 1)
        outcome = self.handle(given, self.prepare(given))
        assert outcome == "taken, and decides as it says", outcome

    def draw(self, number: int) -> PolicyInput:
        """Draw the input of a number. Most parts are sound, so that some policies are."""
        rng = random.Random(f"policies:{self.seed}:{number}")
        parts: list[Edit] = []
        for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
            fields = [_pick(rng, _BUNDLES, 5), _pick(rng, _EXPIRES, 4), _pick(rng, _REVOKED, 4)]
            match rng.randrange(8):
                case 0 | 1 | 2:
                    parts.append(["key", _pick(rng, (*range(12), -1), 12), *fields])
                case 3 | 4 | 5:
                    parts.append(["identity", _pick(rng, _ISSUERS, 3), _pick(rng, _SUBJECTS, 4), *fields])
                case 6:
                    parts.append(["least", _pick(rng, _NAMES, 6), _pick(rng, _VERSIONS, 5)])
                case 7:
                    parts.append(["root", rng.choice(("root.json", "", "../root.json"))])
        return PolicyInput(tuple(parts), rng.randrange(1 << 30))

    def prepare(self, given: PolicyInput) -> None:
        """Write an input's file."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, "\n".join(_toml(given)).encode())
        os.close(descriptor)

    def undo(self, given: PolicyInput, prepared: None) -> None:
        """Do nothing: the next input overwrites the file."""

    def handle(self, given: PolicyInput, prepared: None) -> str:
        """Return what became of an input in a few words; raise what is wrong with it."""
        from_file, file_fault = _made(lambda: read_policy(self.path))
        by_program, fault = _made(lambda: _program(given, self.folder))
        if by_program is None and not {"key", "identity"} & {part[0] for part in given.edits}:
            must(from_file is None, "a file takes what a program may not make")
            return "refused"
        if by_program is not None and not (by_program.keys or by_program.identities):
            must("has neither" in file_fault, "a file without signers is taken")
            return "nobody may sign"
        must(
            (from_file is None) == (by_program is None),
            f"a file: {file_fault or 'taken'}; a program: {fault or 'taken'}",
        )
        if from_file is None or by_program is None:
            return "refused"
        for field in ("keys", "identities", "least_versions", "trusted_root"):
            must(getattr(from_file, field) == getattr(by_program, field), f"{field} differ")
        must(_is_sound(from_file), "what no policy may say is taken")
        rng = random.Random(given.asked)
        for _ in range(6):
            self._ask(from_file, rng)
        return "taken, and decides as it says"

    @staticmethod
    def _ask(policy: TrustPolicy, rng: random.Random) -> None:
        issuer = rng.choice(("https://a", "https://b"))
        subject = _text_of(str(rng.choice([*(item.subject for item in policy.identities), *_SUBJECTS])), rng)
        found, reason = "", ""
        try:
            found = policy.find_identity(issuer, subject).label
        except TrustError as error:
            reason = error.reason
        must((found, reason) == _identity_of(policy, issuer, subject), f"{subject!r} is {found or reason}")
        name, version = _text_of(str(rng.choice(_NAMES)), rng), rng.choice(("", "1.2", "1.9", "1.10", "10"))
        for signer in (*policy.keys, *policy.identities):
            accepted = True
            try:
                policy.accept(signer, Predicate(name, version, datetime.now(UTC) - timedelta(1)))
            except TrustError:
                accepted = False
            must(accepted == _is_accepted(policy, signer, name, version), f"{name!r} {version!r} by {signer.label}")


def _pick(rng: random.Random, values: Any, sound: int) -> Any:
    """Draw a value, mostly one of the first, which accepted policies have."""
    return rng.choice(values[:sound] if rng.random() < 0.85 else values)


def _made(make: Any) -> tuple[TrustPolicy | None, str]:
    try:
        return make(), ""
    except TrustError as error:
        must(error.reason == "policy" and bool(str(error)), "an error without a reason")
        return None, str(error)


def _public(number: int) -> bytes:
    return bytes([number]) * 32 if number >= 0 else b"short"


def _labelled(given: PolicyInput) -> Iterator[tuple[str, str, list[Any]]]:
    for at, (kind, *fields) in enumerate(given.edits):
        if kind in ("key", "identity"):
            yield kind, f"signer {at}", fields


def _least(given: PolicyInput) -> dict[Any, Any]:
    return {part[1]: part[2] for part in given.edits if part[0] == "least"}


def _root(given: PolicyInput) -> str:
    return next((part[1] for part in given.edits if part[0] == "root"), "")


def _toml(given: PolicyInput) -> Iterator[str]:
    yield f"trusted_root = {_quoted(_root(given))}"
    for kind, label, fields in _labelled(given):
        yield f"[{'keys' if kind == 'key' else 'identities'}.{_quoted(label)}]"
        *who, bundles, expires, revoked = fields
        if kind == "key":
            public = _public(who[0])
            yield f"public = {_quoted(encode_public(public))}"
        else:
            yield f"issuer = {_quoted(who[0])}\nsubject = {_quoted(who[1])}"
        yield f"bundles = {_quoted(bundles)}"
        if expires is not None:
            yield f"expires = {expires['date'] if isinstance(expires, dict) else _quoted(expires)}"
        if revoked is not None:
            yield f"revoked = {_quoted(revoked)}"
    yield "[least_versions]"
    for name, version in _least(given).items():
        yield f"{_quoted(name)} = {_quoted(version)}"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _program(given: PolicyInput, folder: Path) -> TrustPolicy:
    keys: list[TrustedKey] = []
    identities: list[TrustedIdentity] = []
    for kind, label, (*who, bundles, expires, revoked) in _labelled(given):
        said = {} if revoked is None else {"revoked": revoked}
        names = tuple(bundles) if isinstance(bundles, list) else bundles
        last = _date(expires["date"]) if isinstance(expires, dict) else expires
        if kind == "key":
            keys.append(TrustedKey(label, _public(who[0]), names, last, **said))
        else:
            identities.append(TrustedIdentity(label, who[0], who[1], names, last, **said))
    root = folder / _root(given) if _root(given) else None
    return TrustPolicy(tuple(keys), _least(given), "the policy", tuple(identities), root)


def _date(text: str) -> date:
    return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)


# The second reading


def fits(text: str, pattern: str) -> bool:
    """Compare a text with a pattern of `*` and `?`, by the lengths of text that each part of the pattern can reach."""
    reached = {0}
    for letter in pattern:
        if letter == "*":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(text) and letter in ("?", text[at])}
    return len(text) in reached


def _is_sound(policy: TrustPolicy) -> bool:
    """Tell whether a policy has nothing twice, and nothing empty."""
    publics = [key.public for key in policy.keys]
    signers = [(item.issuer, item.subject) for item in policy.identities]
    words = [subject.replace("*", "").replace("?", "") for _, subject in signers]
    names = [name.replace("*", "").replace("?", "").replace("_", "") for name in policy.least_versions]
    return (
        len({*publics}) == len(publics)
        and len({*signers}) == len(signers)
        and all(any(map(str.isalnum, word)) and "\n" not in word for word in words)
        and all(name.isalnum() or not name for name in names)
        and all(map(is_version, policy.least_versions.values()))
    )


def _identity_of(policy: TrustPolicy, issuer: str, subject: str) -> tuple[str, str]:
    there = [item for item in policy.identities if item.issuer == issuer]
    if any(item.revoked and fits(subject.casefold(), item.subject.casefold()) for item in there):
        return "", "revoked"
    labels = [item.label for item in there if not item.revoked and fits(subject, item.subject)]
    return (labels[0], "") if labels else ("", "identity")


def _is_accepted(policy: TrustPolicy, signer: TrustedKey | TrustedIdentity, name: str, version: str) -> bool:
    if signer.expires is not None and signer.expires.year < 2100:
        return False
    asked = [least for item, least in policy.least_versions.items() if fits(name.casefold(), item.casefold())]
    is_new = all(is_version(version) and version_key(version) >= version_key(least) for least in asked)
    return is_new and any(fits(name, item) for item in signer.bundles)


def _text_of(pattern: str, rng: random.Random) -> str:
    """Draw a text that a pattern might match, with brackets read in either way, or in another case."""
    text = pattern.replace("*", rng.choice(("", "x", "refs/y", "[", "*"))).replace("?", rng.choice("a?[\n"))
    for brackets, letters in (("[bot]", "bto"), ("[0-9]", "7a"), ("[r]", "r"), ("[o]", "o"), ("[!x]", "ax")):
        if rng.random() < 0.5:
            text = text.replace(brackets, rng.choice(letters))
    return text.swapcase() if rng.random() < 0.2 else text
