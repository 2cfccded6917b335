"""Chat: conversations as token ids, for any Hugging Face tokenizer with a chat template.

A conversation only ever grows at its end. `first` renders its start, the engine samples a reply,
`follow` renders what comes after that reply, and the pieces are laid end to end:

    first(system, user) + sampled ids + follow(next user, closed) + sampled ids + ...

Nothing sampled is decoded and encoded again, which would give other ids than those sampled and
so other log-probs, and no earlier turn is rendered again, which a template in the style of Qwen3
would do without its thoughts. What `follow` returns is cut out of the template's own rendering of
a short conversation.

Assumed of a template: a turn's text appears in its rendering as given, and what stands between an
assistant turn and the next user text does not depend on earlier turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError

from marl_llm.errors import ModelError

# Stand-ins for texts, found again in renderings: plain letters survive trimming and escaping, and
# no template writes these words by itself.
_SYSTEM, _USER, _REPLY, _NEXT = "Zsystemz", "Zuserz", "Zreplyz", "Znextz"

_CACHED = 8192  # entries per cache: under 100 MB when full of 300 ids at 36 bytes
_SHORT = 128  # ids; longer replies hardly ever repeat, and would only fill the cache


class Tokenizer(Protocol):
    """What is used of `transformers.PreTrainedTokenizerBase`."""

    name_or_path: str
    chat_template: Any
    eos_token_id: Any

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens by id; each has `content` and `special`."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """A conversation as text, by the tokenizer's template."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""

    def decode(
        self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> Any:
        """Ids to text."""


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """How a template treats earlier turns. For reports: the appended ids are exact in any case."""

    extends: bool  # rendering a plain conversation anew gives the ids that were appended
    keeps_thoughts: bool  # ... also when an earlier reply holds a thought
    folds_system: bool  # no system role: the system text opens the first user turn

    def notes(self) -> tuple[str, ...]:
        """What a user should know before training on it, a sentence each; () = all is well."""
        notes = []
        if not self.extends:
            notes.append(
                "The chat template rewrites earlier turns, so a long conversation differs from "
                "what the model was tuned on; role.memory=observation avoids that."
            )
        elif not self.keeps_thoughts:
            notes.append(
                "The chat template drops the thoughts of earlier turns; role.thought=keep leaves "
                "them in place, role.thought=strip is nearer to what the model was tuned on."
            )
        if self.folds_system:
            notes.append(
                "The chat template has no system role; the system text opens the first user turn."
            )
        return tuple(notes)


class Chat:
    """Renders conversations with one tokenizer: pure functions, cached. Pickles as its arguments.

    Attributes:
        first: `(system, user)` to ids: the start of a conversation, up to where the reply begins.
            An empty system text is left out.
        follow: `(user, closed)` to ids: what comes after a reply, up to where the next one begins.
            Unless the reply is `closed`, the token that ends its turn comes first.
        encode: text to ids, without any template.
        end_id: the token by which the template ends an assistant turn.
        end_ids: all tokens that end one: this and the tokenizer's end of text.
    """

    def __init__(self, tokenizer: Tokenizer, variables: Mapping[str, Any] | None = None) -> None:
        """Study the template.

        Args:
            tokenizer: with a chat template.
            variables: handed to the template, e.g. ``{"enable_thinking": False}``.

        Raises:
            ModelError: there is no template, it has no generation prompt or drops texts, or no
                token ends a turn.
        """
        self.tokenizer = tokenizer
        self.variables = dict(variables or {})
        self._name = f"tokenizer {tokenizer.name_or_path!r}"
        if not tokenizer.chat_template:
            raise ModelError(
                f"{self._name} has no chat template; use an instruction-tuned model, or give its "
                "folder a chat_template.jinja"
            )
        self._check_prompt()
        self.folds_system = self._refuses_system()
        self.end_id, self._closed_from = self._find_end()
        self.end_ids = frozenset({self.end_id, tokenizer.eos_token_id} - {None})
        self._control = self._control_texts()
        self.first: Callable[[str, str], tuple[int, ...]] = lru_cache(_CACHED)(self._first)
        self.follow: Callable[[str, bool], tuple[int, ...]] = lru_cache(_CACHED)(self._follow)
        self.encode: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED)(self._encode)
        self._decode_short = lru_cache(_CACHED)(self._decode)

    def __reduce__(self) -> tuple[type[Chat], tuple[Tokenizer, dict[str, Any]]]:
        return Chat, (self.tokenizer, self.variables)

    def closed(self, ids: tuple[int, ...]) -> bool:
        """Whether a sampled reply ends with a token that ends its turn."""
        return bool(ids) and ids[-1] in self.end_ids

    def decode(self, ids: tuple[int, ...]) -> str:
        """A sampled reply as text, without the tokens that end it; bad bytes become U+FFFD."""
        return self._decode_short(ids) if len(ids) <= _SHORT else self._decode(ids)

    def check_template(self) -> TemplateCheck:
        """Compare appended ids with a conversation rendered as a whole."""

        def extends(reply: str) -> bool:
            turns = [_turn("user", _USER), _turn("assistant", reply), _turn("user", _NEXT)]
            appended = self.first("", _USER) + self.encode(reply) + self.follow(_NEXT, False)
            return self._encode(self._render(turns)) == appended

        return TemplateCheck(
            extends=extends(_REPLY),
            keeps_thoughts=extends(f"<think>\n{_NEXT}\n</think>\n\n{_REPLY}"),
            folds_system=self.folds_system,
        )

    def _first(self, system: str, user: str) -> tuple[int, ...]:
        system, user = self._harmless(system), self._harmless(user)
        if system and self.folds_system:
            system, user = "", f"{system}\n\n{user}"
        turns = [_turn("system", system)] if system else []
        return self._encode(self._render([*turns, _turn("user", user)]))

    def _follow(self, user: str, closed: bool) -> tuple[int, ...]:
        ids = self._encode(self._after_reply(self._harmless(user)))
        return ids[self._closed_from :] if closed else ids

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: Sequence[int]) -> str:
        end = len(ids)
        while end and ids[end - 1] in self.end_ids:
            end -= 1
        return self._text(ids[:end])

    def _text(self, ids: Sequence[int]) -> str:
        """Ids as text, nothing hidden and nothing tidied."""
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _harmless(self, text: str) -> str:
        """Text in which no control token of the template is spelled out.

        What a game or another agent says must not be able to end the turn it stands in.
        """
        for token in self._control:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _render(self, turns: list[dict[str, str]], prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=prompt, **self.variables
        )

    def _after_reply(self, user: str) -> str:
        text = self._render([_turn("user", _USER), _turn("assistant", _REPLY), _turn("user", user)])
        return text[text.index(_REPLY) + len(_REPLY) :]

    def _check_prompt(self) -> None:
        """Refuse a template that loses texts or does not say that a reply is due."""
        user, reply, after = _turn("user", _USER), _turn("assistant", _REPLY), _turn("user", _NEXT)
        try:
            prompted, bare = self._render([user]), self._render([user], prompt=False)
            talk = self._render([user, reply, after])
        except TemplateError as error:
            raise ModelError(
                f"the chat template of {self._name} cannot render user, assistant, user: {error}; "
                "use a model with an ordinary chat template"
            ) from error
        places = [talk.find(text) for text in (_USER, _REPLY, _NEXT)]
        if places != sorted(places) or places[0] < 0:
            raise ModelError(
                f"the chat template of {self._name} drops, changes or reorders the texts of the "
                "turns; use a model with an ordinary chat template"
            )
        # Some templates need no such prompt: a user turn's own end announces the reply.
        header = talk[: talk.index(_REPLY)]
        if prompted == bare and prompted.rstrip() != header.rstrip():
            raise ModelError(
                f"the chat template of {self._name} has no generation prompt: what opens an "
                "assistant turn is missing at its end; add {% if add_generation_prompt %}{{ "
                f"{header[len(bare) :]!r} }}}}{{% endif %}} to the template"
            )

    def _refuses_system(self) -> bool:
        """Whether the template rejects a system turn, or drops its text in silence."""
        try:
            return _SYSTEM not in self._render([_turn("system", _SYSTEM), _turn("user", _USER)])
        except TemplateError:
            return True

    def _find_end(self) -> tuple[int, int]:
        """(the token that ends an assistant turn, where `follow` starts after a closed reply)."""
        added, eos = self.tokenizer.added_tokens_decoder, self.tokenizer.eos_token_id
        for place, token in enumerate(self._encode(self._after_reply(_NEXT))):
            if token == eos or (token in added and added[token].special):
                return token, place + 1
            if self._text([token]).strip():
                break  # the template writes plain text after a reply
        if eos is None:
            raise ModelError(
                f"no token ends an assistant turn for {self._name}: its chat template writes none "
                "after a reply and eos_token is not set; set eos_token"
            )
        return eos, 0

    def _control_texts(self) -> tuple[str, ...]:
        """The special tokens by which the template structures a conversation, as text.

        Only those: think or answer tags may be special tokens too, and instructions name them.
        """
        added = self.tokenizer.added_tokens_decoder
        turns = [_turn("user", _USER), _turn("assistant", _REPLY), _turn("user", _NEXT)]
        if not self.folds_system:
            turns.insert(0, _turn("system", _SYSTEM))
        used = {*self._encode(self._render(turns)), *self.end_ids}
        texts = {added[token].content for token in used if token in added and added[token].special}
        return tuple(sorted(text for text in texts if len(text) > 1))


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
