"""The engine on transformers: continuous batching for any causal language model, on CPU or GPU.

All requests that wait are decoded together, one token each per step; the place of a finished one is
taken at once. What makes a step cheap: rows have their own lengths in a slot each, so nothing is
padded on the left; active slots are kept without holes, so a step costs what its rows cost; equal
prompts are computed once and their beginnings are remembered (`prefix_cache`); the output layer
never sees a prompt.

A reply depends on its request and the weights, and not on its neighbours, up to the rounding of
matrix products whose shapes differ: about 1e-6 in a float32 log-prob, which can tip a draw that
falls that close to the border between two tokens.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marl_llm.errors import ConfigError, EpisodeError, ModelError, TrainingError
from marl_llm.serve.admission import Arrival, pick, remember, seat
from marl_llm.serve.decoder import Decoder, move
from marl_llm.serve.prefix_cache import Ids
from marl_llm.serve.rows import Row, Rows
from marl_llm.serve.sampling import sample, uniform
from marl_llm.serve.scoring import score
from marl_llm.serve.servable import context_of, probe, study
from marl_llm.serve.slot_cache import SlotCache
from marl_llm.serve.stop_strings import ALWAYS, PERHAPS, StopTable, TokenTexts
from marl_llm.types import Completion, Finish, Request, Weights
from marl_llm.weights import assign, verified


class TransformersEngine:
    """`marl_llm.serve.Engine` for one Hugging Face causal language model.

    The model is the engine's own from now on: `load` writes into it and its attention function is
    replaced. It is used as it is, on its device and in its dtype.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        end_ids: Iterable[int],
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_batch: int = 256,
        context: int | None = None,
        prefix_tokens: int = 65_536,
        pass_tokens: int | None = None,
        version: int = 0,
    ) -> None:
        """Check that the model can be served, and serve it.

        Args:
            model: a causal LM from transformers.
            end_ids: tokens that end a reply (end of turn, end of text).
            tokenizer: needed by requests with stop strings only.
            max_batch: requests decoded at once; the others wait.
            context: tokens that prompt and reply may have, None = all that the model takes.
            prefix_tokens: how many tokens' keys and values are remembered, 0 = none.
            pass_tokens: tokens fed in one pass, None = 2048 on a CPU, 8192 on a GPU.
            version: of the model's weights now.

        Raises:
            ConfigError: a number is out of range.
            ModelError: this architecture cannot be served, or memory does not suffice.
        """
        if max_batch < 1:
            raise ConfigError(f"max_batch must be at least 1, got {max_batch}")
        if prefix_tokens < 0:
            raise ConfigError(f"prefix_tokens must be >= 0 (0 = off), got {prefix_tokens}")
        if pass_tokens is not None and pass_tokens < 1:
            raise ConfigError(f"pass_tokens must be at least 1, got {pass_tokens}")
        self.version = version
        self.busy_seconds = 0.0  # spent decoding so far
        self.context = context_of(model, context)
        self._end_ids, self._max_batch = np.array(sorted(end_ids), np.int64), max_batch
        self._texts = None if tokenizer is None else _texts(tokenizer)
        self._tables: dict[tuple[str, ...], StopTable] = {}  # by stop strings
        self._waiting: deque[Arrival[Request]] = deque()
        self._soonest = math.inf  # of the deadlines of those that wait
        self._in_flight: set[int] = set()
        self._done: list[Completion] = []
        self._rows = Rows(max_batch)
        model.eval()
        expected, shape = study(model, self.context)
        self._decoder = Decoder(model, shape, prefix_tokens, pass_tokens)
        self._cache = SlotCache(shape)
        with self._enough_memory():
            probe(self._decoder, expected)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none.

        Raises:
            EpisodeError: an id is in flight, or a prompt is empty or not of this vocabulary.
            ConfigError: a request has stop strings and the engine no tokenizer.
        """
        in_flight = set(self._in_flight)
        for request in requests:
            self._check(request)
            if request.id in in_flight:
                raise EpisodeError(
                    f"request {request.id} is in flight already; ids must be unique until they "
                    "come back"
                )
            in_flight.add(request.id)
        self._in_flight = in_flight
        for request in requests:
            if len(request.prompt_ids) >= self.context:
                self._return_empty(request, Finish.CONTEXT)
                continue
            self._waiting.append(Arrival(request, request.prompt_ids, len(request.prompt_ids) - 1))
            if request.deadline is not None:
                self._soonest = min(self._soonest, request.deadline)

    @torch.inference_mode()
    def poll(self, timeout: float) -> list[Completion]:
        """Decode until at least one request is finished and return all that are.

        At least one step is made, also with a timeout of 0.

        Raises:
            TrainingError: logits are not finite. Everything in flight is dropped.
            ModelError: memory does not suffice. Everything in flight is dropped.
        """
        began = time.monotonic()
        end = began + timeout
        with self._enough_memory():
            while not self._done and self._in_flight:
                now = time.monotonic()
                self._expire(now)
                if self._rows.records or self._waiting:
                    self._step()
                if now >= end:
                    break
        self.busy_seconds += time.monotonic() - began
        done, self._done = self._done, []
        return done

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[Ids, Ids]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probs (nats) of each continuation's ids after its prompt, one list per sequence.

        They are log softmax(logits / temperature), at temperature 0 as at 1. Equal sequences are
        computed once, equal prompts too, and what the prefix cache knows not at all.

        Raises:
            EpisodeError: a prompt is empty, an id is not of this vocabulary, or a sequence is
                longer than the context.
            TrainingError: logits are not finite.
            ModelError: memory does not suffice.
        """
        for number, (prompt, ids) in enumerate(sequences):
            self._check_ids(f"sequence {number}", prompt)
            self._check_ids(f"sequence {number}", (*prompt[:1], *ids))
            if len(prompt) + len(ids) > self.context:
                raise EpisodeError(
                    f"sequence {number} has {len(prompt) + len(ids)} tokens, the engine's context "
                    f"is {self.context}; shorten it or raise the context"
                )
        with self._enough_memory():
            return score(self._decoder, sequences, temperature, self._max_batch)

    def load(self, weights: Weights) -> None:
        """Take new weights. Later tokens carry the new version.

        Requests in flight go on: what they sample from now on comes from the new weights, over keys
        and values of the old ones. The prefix cache is cleared.

        Raises:
            CheckpointError: the file is not whole, or the checksum differs.
            ModelError: a weight is missing, unknown or of another shape. The old weights stay.
        """
        assign(self._decoder.model, verified(weights))
        self._decoder.prefixes.clear()
        self.version = weights.version
        counts = self._rows.columns["count"].tolist()
        for row, count in zip(self._rows.records, counts, strict=True):
            row.changes.append((count, weights.version))

    def _step(self) -> None:
        """Give free slots to those that wait, and sample one token for every row, in one pass.

        The last token of a prompt is fed even when all before it are known: it gives the logits.
        """
        decoder, cache, old = self._decoder, self._cache, len(self._rows)
        arrivals = pick(
            self._waiting, decoder.prefixes, self._max_batch - old, decoder.pass_tokens - old
        )
        if arrivals:
            held = seat(decoder, cache, old, arrivals, self._max_batch)
            for arrival, length in zip(arrivals, held.tolist(), strict=True):
                self._rows.add(self._row(arrival.item), length)
        rows = self._rows.columns
        fed = np.ones(len(rows), np.int64)
        fed[old:] = [len(arrival.ids) for arrival in arrivals] - rows["length"][old:]
        prompts = [
            arrival.ids[-new:] for arrival, new in zip(arrivals, fed[old:].tolist(), strict=True)
        ]
        tokens = np.concatenate([rows["token"][:old], *prompts])
        cache.store.grow(len(rows), int((rows["length"] + fed).max()), self._max_batch)
        logits = decoder.feed(cache, 0, rows["length"], fed, tokens)
        remember(decoder.prefixes, cache, old, arrivals)
        rows["length"] += fed
        self._sample(logits)

    def _sample(self, logits: Tensor) -> None:
        """Take one token for every row from its logits [R, V], and send back what is finished."""
        rows, records = self._rows.columns, self._rows.records
        draws = uniform(rows["seed"], rows["count"])
        ids, nats = sample(logits, draws, rows["temperature"], rows["top_k"], rows["top_p"])
        tokens, logprobs = ids.cpu().numpy(), nats.cpu().numpy()
        if not np.isfinite(logprobs).all():
            self._not_finite(int(np.flatnonzero(~np.isfinite(logprobs))[0]))
        self._rows.append(tokens, logprobs)
        stopped = np.isin(tokens, self._end_ids)
        self._find_stops(tokens, stopped)
        full = rows["count"] >= rows["limit"]
        self._retire(
            {
                place: Finish.STOP if stopped[place] else records[place].full()
                for place in np.flatnonzero(stopped | full).tolist()
            }
        )

    def _find_stops(self, tokens: np.ndarray, stopped: np.ndarray) -> None:
        """Mark the rows whose text has reached one of their stop strings with these tokens."""
        rows = self._rows
        for number, table in enumerate(self._tables.values()):
            places = np.flatnonzero(rows.columns["watch"] == number)
            kinds = table.kinds(tokens[places])
            stopped[places[kinds == ALWAYS]] = True
            for place in places[kinds == PERHAPS].tolist():
                row = rows.records[place]
                row.scan = row.scan or table.scan()
                stopped[place] |= rows.read_on(place, row.scan)

    def _expire(self, now: float) -> None:
        """Send back what is past its deadline, with what it has sampled."""
        late = np.flatnonzero(self._rows.columns["deadline"] <= now).tolist()
        self._retire(dict.fromkeys(late, Finish.TIME))
        if now < self._soonest:
            return
        waiting, self._waiting, self._soonest = self._waiting, deque(), math.inf
        for arrival in waiting:
            deadline = arrival.item.deadline
            deadline = math.inf if deadline is None else deadline
            if deadline <= now:
                self._return_empty(arrival.item, Finish.TIME)
            else:
                self._waiting.append(arrival)
                self._soonest = min(self._soonest, deadline)

    def _retire(self, ended: dict[int, Finish]) -> None:
        """Send rows back, remember their keys and values, and close the gaps they leave.

        Args:
            ended: by place, ascending.
        """
        if not ended:
            return
        rows = self._rows
        dialogues = {place: ids for place in ended if (ids := rows.reusable(place))}
        self._decoder.prefixes.keep(list(dialogues.values()), self._cache.store, list(dialogues))
        for place, finish in ended.items():
            self._in_flight.discard(rows.records[place].request.id)
            self._done.append(rows.completion(place, finish))
        lengths = rows.columns["length"].tolist()
        moves = rows.remove(list(ended))
        move(self._cache, [(old, new, lengths[old]) for old, new in moves])

    def _return_empty(self, request: Request, finish: Finish) -> None:
        self._in_flight.discard(request.id)
        self._done.append(Completion(request.id, (), (), (), finish))

    def _row(self, request: Request) -> Row:
        sampling = request.sampling
        limit = min(sampling.max_tokens, self.context - len(request.prompt_ids))
        return Row(request, limit, self.version, self._watch(sampling.stop))

    def _watch(self, stops: tuple[str, ...]) -> int:
        """The number of the table of these stop strings, -1 where there are none."""
        if not stops or self._texts is None:
            return -1
        if stops not in self._tables:
            self._tables[stops] = StopTable(stops, self._texts, self._decoder.vocabulary)
        return list(self._tables).index(stops)

    def _check(self, request: Request) -> None:
        self._check_ids(f"request {request.id}", request.prompt_ids)
        if request.sampling.stop and self._texts is None:
            raise ConfigError(
                f"request {request.id} has stop strings {request.sampling.stop}, which need text; "
                "give the engine its tokenizer"
            )

    def _check_ids(self, what: str, ids: Ids) -> None:
        if not ids:
            raise EpisodeError(f"{what} has an empty prompt; it needs at least one token")
        if min(ids) < 0 or max(ids) >= self._decoder.vocabulary:
            raise EpisodeError(
                f"{what} has token id {min(ids) if min(ids) < 0 else max(ids)}, the model knows "
                f"0 to {self._decoder.vocabulary - 1}; was it made by another tokenizer?"
            )

    def _not_finite(self, place: int) -> None:
        row, count = self._rows.records[place], self._rows.columns["count"][place]
        self._drop_all()
        raise TrainingError(
            f"the logits for token {count} of request {row.request.id} are not finite at "
            f"version {self.version}; the weights have diverged, go back to an earlier checkpoint "
            "and lower the learning rate"
        )

    def _drop_all(self) -> None:
        """Forget everything in flight, and all keys and values."""
        self._waiting.clear()
        self._in_flight.clear()
        self._done.clear()
        self._soonest = math.inf
        self._rows = Rows(self._max_batch)
        self._cache = SlotCache(self._decoder.shape)
        self._decoder.prefixes.clear()

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        """Say what to lower when memory runs out."""
        try:
            yield
        except RuntimeError as error:
            cpu = "DefaultCPUAllocator" in str(error)
            if not (cpu or isinstance(error, torch.OutOfMemoryError)):
                raise
            self._drop_all()
            raise ModelError(
                f"out of memory on {self._decoder.shape.device} with {self._max_batch} rows of up "
                f"to {self.context} tokens; lower the engine's max_batch, context or prefix_tokens"
            ) from error


def _texts(tokenizer: PreTrainedTokenizerBase) -> TokenTexts:
    def decode(ids: Sequence[int]) -> str:
        text = tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    return TokenTexts(decode, tokenizer.encode("a", add_special_tokens=False))
