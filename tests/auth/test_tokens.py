"""Tokens: ours, unchanged, in time, or refused."""

import base64
import json

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.auth import tokens
from lsmfs.auth.records import Identity
from refstore.errors import Denied, Invalid

KEY, OTHER = b"k" * 32, b"o" * 32
BOB = Identity("bob", "life", "KEY1")
NOW = 1_000_000_000_000
SECOND = 1_000_000


def forged(header: dict[str, object], signature: str = "") -> str:
    claims = {"sub": "root", "life": "x", "key": "", "iat": 0, "exp": 2**40, "aud": tokens.AUDIENCE}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims))
    return ".".join((*parts, signature))


class TestTokens:
    def test_a_token_names_who_logged_in_until_it_expires(self) -> None:
        token = tokens.issue(KEY, BOB, 60, NOW)
        assert tokens.verify(KEY, token, NOW) == BOB
        assert tokens.verify(KEY, token, NOW + 60 * SECOND - 1) == BOB
        with pytest.raises(Denied, match="expired"):
            tokens.verify(KEY, token, NOW + 60 * SECOND)

    def test_another_key_does_not_verify_it(self) -> None:
        with pytest.raises(Denied):
            tokens.verify(OTHER, tokens.issue(KEY, BOB, 60, NOW), NOW)

    @given(st.data())
    def test_a_changed_character_makes_it_invalid(self, data: st.DataObject) -> None:
        token = tokens.issue(KEY, BOB, 60, NOW)
        at = data.draw(st.integers(0, len(token) - 2))  # the last character has bits that base64 ignores
        to = data.draw(st.characters(codec="ascii").filter(lambda c: c != token[at]))
        with pytest.raises(Denied):
            tokens.verify(KEY, token[:at] + to + token[at + 1 :], NOW)

    @given(st.text(max_size=200))
    def test_rubbish_is_denied_and_nothing_else_happens(self, text: str) -> None:
        with pytest.raises(Denied):
            tokens.verify(KEY, text, NOW)

    @pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS512", "RS256", None, 5])
    def test_no_other_algorithm_is_accepted(self, algorithm: object) -> None:
        with pytest.raises(Denied):
            tokens.verify(KEY, forged({"alg": algorithm, "typ": "JWT"}), NOW)

    def test_a_token_signed_with_our_key_by_another_algorithm_is_refused(self) -> None:
        claims = {"sub": "bob", "life": "x", "key": "", "iat": 0, "exp": 2**40, "aud": tokens.AUDIENCE}
        assert tokens.verify(KEY, jwt.encode(claims, KEY, algorithm="HS256"), NOW).user == "bob"
        with pytest.raises(Denied):
            tokens.verify(KEY, jwt.encode(claims, KEY * 2, algorithm="HS384"), NOW)

    @pytest.mark.parametrize("claim", ["sub", "life", "key", "iat", "exp", "aud"])
    def test_a_claim_that_is_missing_is_refused(self, claim: str) -> None:
        claims = {"sub": "bob", "life": "x", "key": "", "iat": 0, "exp": 2**40, "aud": tokens.AUDIENCE}
        del claims[claim]
        with pytest.raises(Denied):
            tokens.verify(KEY, jwt.encode(claims, KEY, algorithm="HS256"), NOW)

    @pytest.mark.parametrize("claim", ["sub", "life", "key", "exp", "aud"])
    @pytest.mark.parametrize("value", [["x"], {}, 1.5])
    def test_a_claim_of_another_type_is_refused(self, claim: str, value: object) -> None:
        claims = {"sub": "bob", "life": "x", "key": "", "iat": 0, "exp": 2**40, "aud": tokens.AUDIENCE, claim: value}
        with pytest.raises(Denied):
            tokens.verify(KEY, jwt.api_jws.encode(json.dumps(claims).encode(), KEY, algorithm="HS256"), NOW)

    def test_a_long_one_is_not_parsed_and_a_long_life_not_given(self) -> None:
        with pytest.raises(Denied):
            tokens.verify(KEY, "a" * 5000, NOW)
        for ttl in (0, -1, tokens.TTL_SECONDS_MAX + 1):
            with pytest.raises(Invalid):
                tokens.issue(KEY, BOB, ttl, NOW)


class TestCookies:
    def test_scripts_cannot_read_the_session_and_other_sites_do_not_send_it(self) -> None:
        cookie = tokens.session_cookie("abc", 60, secure=True)
        assert cookie == "lsmfs_session=abc; Path=/; Max-Age=60; SameSite=Strict; Secure; HttpOnly"
        assert "HttpOnly" not in tokens.csrf_cookie("abc", 60, secure=True)
        assert "Max-Age=0" in tokens.session_cookie("", 60, secure=False)

    def test_a_csrf_token_is_good_for_its_session_and_key_only(self) -> None:
        token = tokens.csrf_token(KEY, "session")
        tokens.check_csrf(KEY, "session", token)
        for key, session, given_token in (
            (KEY, "another", token),
            (OTHER, "session", token),
            (KEY, "session", ""),
            (KEY, "session", "."),
            (KEY, "session", token[:-1]),
            (KEY, "session", "0" + token),
            (KEY, "session", "é." + token),
        ):
            with pytest.raises(Denied):
                tokens.check_csrf(key, session, given_token)
