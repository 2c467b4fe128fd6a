"""Two real models in the parts of this book: MiniLM-L6, an encoder, and SmolLM2-135M, a decoder.

``load(name)`` gives the model with its tokenizer. Their weights come in two Python packages that
are read, never imported (:mod:`tfbook.pretrained.files`); nothing is downloaded. A third and
small one, "shakespeare", was trained by an experiment of this package and lies in it.
``load_directory(path)`` does the same with a folder in the format of `transformers`, or with one
that ``python -m tfbook train`` wrote.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from tfbook import data
from tfbook._checks import check_bool, check_choice, check_number
from tfbook.data import EOS, PAD, char_tokenizer, pad_batch
from tfbook.models import TransformerConfig
from tfbook.pretrained.conversion import empty_model, fill_model
from tfbook.pretrained.files import (
    PACKAGES,
    cache_folder,
    check_package,
    check_sha256,
    find_package,
    keep,
    read_checkpoint,
    read_gguf,
    read_safetensors,
)
from tfbook.pretrained.packing import pack_rows, read_rows
from tfbook.training import holds_run, load_run

__all__ = ["Pretrained", "load", "load_directory", "names"]

# Trained by the experiment of this name, whose results are part of this package.
OWN = ("shakespeare",)
BITS = {"int8": 8, "int4": 4}
RESULTS = Path(__file__).parent.parent / "experiments" / "results"
# What SmolLM2's template says where a conversation does not begin with a system message.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# What stands around each message there, each one token.
BEGIN, END = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with trained weights, and the tokenizer it was trained with.

    Attributes:
        name: what it is called here.
        model: an ``EncoderOnly``, ``DecoderOnly`` or ``Transformer``, in evaluation mode.
        tokenizer: of the `tokenizers` library, or None where a folder holds none.
        config: the model's configuration.
        eos_ids: tokens that end a text, or a turn in a conversation.
        pad_id: what fills short sequences up; a mask hides it.
        chat_template: the template of conversations as it stands in the file (Jinja), or None.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """

    name: str
    model: nn.Module
    tokenizer: Tokenizer | None
    config: TransformerConfig
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    chat_template: str | None = None

    def encode(
        self,
        text: str | Sequence[str],
        *,
        side: str = "right",
        truncate: bool = False,
        special: bool = True,
    ) -> Int[Tensor, "B N"] | tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """Turn text into token ids that the model takes.

        The tokens that the model expects around a text are added ([CLS] and [SEP] for MiniLM, none
        for SmolLM2), and special tokens written in the text, such as ``<|im_end|>``, become one id.

        Args:
            text: one text, or a list of them.
            side: on which side short sequences are filled up, and long ones cut; "left" for
                generation, which goes on from the right end and takes the mask too.
            truncate: whether a text longer than the model's context is cut to it; it is refused
                otherwise. The tokens that stand around a text stay.
            special: whether special tokens written in the text become one id; False for words that
                somebody typed, where they are text like any other.

        Returns:
            For one text its ids (1, N). For a list the ids (B, N) and the mask (B, N), True at
            tokens and False where a sequence was filled up.

        Raises:
            TypeError: if text is neither a string nor a list of strings.
            ValueError: for an empty text or list, a text longer than the model's context, a lone
                surrogate (half of a character of UTF-16), or an unknown side.

        Explained in: chapters/05_architecture_deeper, section "Two real models".
        """
        if side not in ("left", "right"):
            raise ValueError(f"side must be 'left' or 'right', got {side!r}")
        choices = {"side": side, "truncate": truncate, "special": special}
        if isinstance(text, str):
            return torch.tensor(self._ids([text], **choices))  # (1, N)
        rows = self._ids(_texts(text), **choices)
        if side == "left":
            ids, lengths = pad_batch([row[::-1] for row in rows], self.pad_id)  # (B, N), (B,)
            ids = ids.flip(1)
        else:
            ids, lengths = pad_batch(rows, self.pad_id)
        place = torch.arange(ids.shape[1])  # (N,)
        place = place.flip(0) if side == "left" else place
        return ids, place < lengths[:, None]

    def decode(
        self,
        ids: Int[Tensor, "*B N"] | Sequence[int] | Sequence[Sequence[int]],
        *,
        special: bool = False,
    ) -> str | list[str]:
        """Turn ids back into text.

        Args:
            ids: the ids of one text, (N,) or a list; or of several, (B, N).
            special: whether special tokens are written out.

        Returns:
            The text, or a list of B texts.

        Raises:
            TypeError: if ids are no integers.
            ValueError: for more than two dimensions, or an id outside of the vocabulary.
        """
        rows = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        one = not (rows and isinstance(rows[0], list))
        rows = [rows] if one else rows
        for row in rows:
            self._check_ids(row)
        tokenizer = self._tokenizer()
        texts = [tokenizer.decode(row, skip_special_tokens=not special) for row in rows]
        return texts[0] if one else texts

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text as strings, for axes and tables.

        A token that begins with a space shows it as ``·``; bytes that are no whole character show
        as the replacement character, U+FFFD.

        Raises:
            TypeError: if text is not a string.
            ValueError: if it is empty or longer than the model's context.
        """
        ids = self.encode(text)[0].tolist()
        tokenizer = self._tokenizer()
        if "Ġ" not in tokenizer.get_vocab():  # words and their pieces, readable as they are
            return [tokenizer.id_to_token(i) for i in ids]
        return [self.decode([i], special=True).replace(" ", "·") for i in ids]

    @torch.no_grad()
    def embed(
        self, texts: str | Sequence[str], *, batch_size: int = 32, truncate: bool = False
    ) -> Float[Tensor, "S D"]:
        """Return one vector for each text: the mean of an encoder's last rows, at length 1.

        e = m / |m| with m = (1/n) Σ_i hidden_i over the n tokens of the text, [CLS] and [SEP] among
        them. The inner product of two vectors is their cosine similarity. Texts of similar length
        are put into a batch, so that little is computed on padding, and given back in their order.

        Args:
            texts: a list of S texts, or one text, S = 1.
            batch_size: how many are computed at once.
            truncate: whether of a text longer than the context the beginning is read; it is refused
                otherwise.

        Returns:
            The vectors, (S, d_model).

        Raises:
            TypeError: if texts is no string or list of strings, or batch_size no integer.
            ValueError: if the model is no encoder, a text is empty or longer than the context.

        Source: [reimers2019sentence]
        Explained in: chapters/05_architecture_deeper, section "Two real models".
        """
        if self.config.kind != "encoder":
            raise ValueError(f"embed needs an encoder such as minilm-l6; {self.name} is none")
        check_number("batch_size", batch_size, 1, whole=True)
        texts = [texts] if isinstance(texts, str) else _texts(texts)
        rows = self._ids(texts, truncate=truncate)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = torch.empty(len(rows), self.config.d_model, dtype=self._weight().dtype)
        device = self._weight().device
        for start in range(0, len(rows), batch_size):
            chosen = order[start : start + batch_size]
            ids, lengths = pad_batch([rows[i] for i in chosen], self.pad_id)  # (B, N), (B,)
            mask = torch.arange(ids.shape[1]) < lengths[:, None]  # (B, N)
            ids, mask = ids.to(device), mask.to(device)
            hidden = self.model.hidden(ids, mask=None if mask.all() else mask)  # (B, N, d_model)
            summed = torch.einsum("bn,bnd->bd", mask.to(hidden.dtype), hidden)
            found[chosen] = nn.functional.normalize(summed, dim=-1).to(found.device)
        return found

    def chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> str:
        """Write a conversation as the text that the model was trained to continue.

        Each message becomes ``<|im_start|>role``, a new line, its content and ``<|im_end|>``. A
        conversation that does not begin with a system message gets the model's own.

        Args:
            messages: dictionaries with "role" ("system", "user" or "assistant") and "content".
            answer: whether to open the assistant's turn at the end.

        Returns:
            The prompt, to be read. For ids use :meth:`encode_chat`, where the words of a message
            cannot end it.

        Raises:
            TypeError: if messages is no list of such dictionaries.
            ValueError: if there is none, a role is unknown or the model knows no conversations.

        Explained in: chapters/12_generation_deeper, section "Talking to a chat model".
        """
        turns = self._turns(messages)
        text = "".join(f"{BEGIN}{role}\n{content}{END}\n" for role, content in turns)
        return text + (f"{BEGIN}assistant\n" if answer else "")

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> Int[Tensor, "1 N"]:
        """Write a conversation as the ids that the model was trained to continue.

        They are those of ``encode(chat(messages))``, but for messages that hold what looks like a
        special token: only the template makes these, and a message stays text.

        Args:
            messages: as for :meth:`chat`.
            answer: whether to open the assistant's turn at the end.

        Returns:
            The ids, (1, N); there may be more than the context holds.

        Raises:
            TypeError: as :meth:`chat`.
            ValueError: as :meth:`chat`, and for a lone surrogate.

        Explained in: chapters/12_generation_deeper, section "Talking to a chat model".
        """
        ids, (begin, end) = [], map(self._tokenizer().token_to_id, (BEGIN, END))
        for role, content in self._turns(messages):
            ids += [begin, *self._plain_ids(f"{role}\n{content}"), end, *self._plain_ids("\n")]
        return torch.tensor([ids + [begin, *self._plain_ids("assistant\n")] * answer])

    def _turns(self, messages):
        """Return roles and contents, the system's first."""
        if self.chat_template is None:
            raise ValueError(f"{self.name} was not trained on conversations; smollm2-135m was")
        if BEGIN not in self.chat_template:
            raise ValueError(f"{self.name} has a template without {BEGIN}, which is unknown here")
        turns = [_check_message(i, message) for i, message in enumerate(_list(messages))]
        if not turns:
            raise ValueError("messages must hold at least one message, got none")
        if turns[0][0] != "system":
            turns.insert(0, ("system", SYSTEM))
        return turns

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"{self.name} came without a tokenizer.json, so it takes ids only")
        return self.tokenizer

    def _weight(self) -> Tensor:
        return next(self.model.parameters())

    @cached_property
    def _plain(self) -> Tokenizer:
        """Return a tokenizer to which special tokens in a text are text."""
        plain = Tokenizer.from_str(self._tokenizer().to_str())
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _characters(self) -> frozenset[str] | None:
        """Return the characters that can be read, or None where all can."""
        known = self._tokenizer().get_vocab()
        return frozenset(known) if all(len(token) == 1 for token in known) else None

    def _plain_ids(self, text: str) -> list[int]:
        _check_characters([text], self._characters)
        return self._plain.encode(text, add_special_tokens=False).ids

    def _ids(
        self, texts: list[str], *, side: str = "right", truncate: bool = False, special: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text, checked."""
        check_bool("truncate", truncate)
        check_bool("special", special)
        tokenizer = self._tokenizer() if special else self._plain
        _check_characters(texts, self._characters)
        around, longest = tokenizer.num_special_tokens_to_add(False), self.config.max_len
        rows = tokenizer.encode_batch(texts, add_special_tokens=False)
        for text, row in zip(texts, rows, strict=True):
            if not len(row):
                raise ValueError(f"text must hold at least one token, got {text!r}")
            if longest is not None and truncate:
                row.truncate(longest - around, direction=side)
            elif longest is not None and len(row) + around > longest:
                raise ValueError(
                    f"text must fit into the context of {self.name}, {longest:,} tokens, "
                    f"got {len(row) + around:,}: {text[:40]!r}… (truncate=True cuts it)"
                )
        return [tokenizer.post_process(row).ids for row in rows]

    def _check_ids(self, row: object) -> None:
        if not isinstance(row, list):
            raise ValueError("ids must have one or two dimensions")
        for token in row:
            check_number("ids", token, 0, whole=True)
            if token >= self.config.vocab_size:
                raise ValueError(
                    f"ids must be below the vocabulary's {self.config.vocab_size:,}, got {token}"
                )


def names() -> tuple[str, ...]:
    """Return the names that :func:`load` knows.

    Example:
        >>> names()
        ('minilm-l6', 'smollm2-135m', 'shakespeare')
    """
    return (*PACKAGES, *OWN)


def load(
    name: str,
    *,
    weights: str = "float32",
    cache_dir: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Pretrained:
    """Load a pretrained model and its tokenizer from the package that carries it.

    "shakespeare" is a decoder of four layers that predicts the next character, trained by
    ``python -m tfbook.experiments shakespeare``; it needs no other package. It knows the 63
    characters of its text and no others. Trained on 256 characters at a time, each layer looks
    back over 256, so that a text may be of any length.

    The file's sha256 is verified before it is read. MiniLM's file is read as it is. SmolLM2's
    numbers are compressed to four bits; they are decoded once and kept in the cache folder
    (:func:`tfbook.pretrained.cache_folder`), 540 MB. A kept file that is damaged is made anew.

    With ``weights="int4"`` SmolLM2's matrices stay in the bits of the file: 4 a number and a scale
    and a least value for each 32, 8 for the table of the embedding. With "int8" the rows of what
    was in 4 bits are rounded again, to 8 bits a number and one scale. Linear maps then run in
    kernels for such weights, see :class:`tfbook.blocks.PackedWeight`: on one core of a server a
    token takes about 0.3 of the time of "float32" with "int4", 0.4 with "int8", and the weights a
    quarter and a third of the memory. What is multiplied is rounded to bfloat16, so that logits
    differ by 1 to 2 % of their norm with "int4" (perplexity by less than 0.5 %), by 4 to 7 % with
    "int8" (about 1 %). Hence "float32" is what is meant when nothing is said.

    Args:
        name: "minilm-l6", "smollm2-135m" or "shakespeare".
        weights: "float32", or for SmolLM2 "int8" or "int4".
        cache_dir: where decoded weights are kept; the user's cache folder when omitted.
        dtype: of the model's weights.

    Returns:
        The model in evaluation mode, with its tokenizer.

    Raises:
        TypeError: if dtype is no floating-point dtype.
        ValueError: if name or weights are unknown or do not go together, or a file of the package
            is damaged or another one.
        ModuleNotFoundError: if the package is not installed; the message says what to install.

    Cost: SmolLM2 takes a few seconds the first time, under two seconds from then on.

    Source: [wang2020minilm], [allal2025smollm2]
    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    if name not in names():
        raise ValueError(f"name must be one of {', '.join(names())}, got {name!r}")
    _check_dtype(dtype)
    check_choice("weights", weights, ("float32", *BITS))
    if weights != "float32" and name != "smollm2-135m":
        raise ValueError(
            f"weights {weights!r} are for smollm2-135m, whose file is compressed, got {name!r}; "
            "tfbook.hardware.pack_model packs the linear maps of any model"
        )
    if name in OWN:
        return _load_own(name, dtype)
    if name == "minilm-l6":
        weights_path, config_path, tokenizer_path = check_package(name)
        found, _ = read_safetensors(weights_path)
        texts = {
            "config": config_path.read_text(encoding="utf-8"),
            "tokenizer": tokenizer_path.read_text(encoding="utf-8"),
        }
        return _assemble(name, found, texts, dtype)
    (path,), (sha256,) = find_package(name), PACKAGES[name].files.values()
    read, kind = (read_gguf, "") if weights == "float32" else (read_rows, "-packed")

    def decode():
        check_package(name)
        return read(path)

    found, texts = keep(f"{name}{kind}-{sha256[:12]}", cache_folder(cache_dir), decode)
    if weights == "float32":
        return _assemble(name, found, texts, dtype)
    return _with_texts(name, pack_rows(found, texts, BITS[weights], dtype), texts)


def load_directory(
    path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32
) -> Pretrained:
    """Load a model from a folder: one in the format of `transformers`, or one of a training run.

    The first holds ``config.json``, ``model.safetensors`` (or several files and
    ``model.safetensors.index.json``) of a family out of ``FAMILIES`` (GPT-2, LLaMA, Mixtral, Mamba,
    Jamba and others) and, if text is to be encoded, ``tokenizer.json``. The second was written by
    ``python -m tfbook train``: the model is that of the last checkpoint, or the best one where the
    run was watched with patience.

    Args:
        path: the folder.
        dtype: of the model's weights.

    Returns:
        The model in evaluation mode, with its tokenizer if there is one; its name is the folder's.

    Raises:
        FileNotFoundError: if the folder or a file in it is missing. Weights in ``.bin`` files are
            pickles, which can run any program when they are read; they are not read here.
        TypeError: if dtype is no floating-point dtype.
        ValueError: if the model is of another family, uses an option that is not known here, its
            weights do not fit its configuration, or a run's files are damaged.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    _check_dtype(dtype)
    folder = Path(path)
    name = folder.resolve().name
    if holds_run(folder):
        model, tokenizer, _ = load_run(folder)
        ends = (EOS,) if model.config.kind == "encoder-decoder" else ()
        return Pretrained(name, model.to(dtype), tokenizer, model.config, ends, PAD)
    weights, texts = read_checkpoint(folder)
    return _assemble(name, weights, texts, dtype)


def _load_own(name: str, dtype: torch.dtype) -> Pretrained:
    """Load a model of characters out of the results of the experiment that trained it."""
    log = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    path = RESULTS / f"{name}.safetensors"
    check_sha256(path, log["sha256"], "get it anew, or install the package again")
    weights, _ = read_safetensors(path)
    model = empty_model(TransformerConfig.from_dict(log["settings"]["shipped"]["config"]))
    model.load_state_dict(weights, assign=True)
    tokenizer = char_tokenizer(data.shakespeare("all"))
    return Pretrained(name, model.to(dtype).eval(), tokenizer, model.config)


def _assemble(
    name: str, weights: Mapping[str, Tensor], texts: Mapping[str, str], dtype: torch.dtype
) -> Pretrained:
    """Put weights and texts together."""
    model = fill_model(json.loads(texts["config"]), weights).to(dtype).eval()
    return _with_texts(name, model, texts)


def _with_texts(name: str, model: nn.Module, texts: Mapping[str, str]) -> Pretrained:
    """Put a model and texts together."""
    settings, tokenizer = json.loads(texts["config"]), None
    if "tokenizer" in texts:
        tokenizer = Tokenizer.from_str(texts["tokenizer"])
        tokenizer.no_padding()
        tokenizer.no_truncation()
    eos, pad = settings.get("eos_token_id"), settings.get("pad_token_id")
    eos = [] if eos is None else [eos] if isinstance(eos, int) else eos
    return Pretrained(
        name=name,
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        eos_ids=tuple(eos),
        pad_id=pad if pad is not None else 0,
        chat_template=texts.get("chat_template"),
    )


def _texts(value: object) -> list[str]:
    texts = _list(value, "text must be a string or a list of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text[{i}] must be a string, got {type(text).__name__}")
    if not texts:
        raise ValueError("text must hold at least one text, got an empty list")
    return texts


def _check_characters(texts: list[str], known: Collection[str] | None) -> None:
    """Raise ValueError for half a character, or one that is not among the known ones."""
    used = set("".join(texts))
    halves = sorted(sign for sign in used if "\ud800" <= sign <= "\udfff")
    if halves:
        raise ValueError(
            f"text must be Unicode, got the lone surrogate U+{ord(halves[0]):04X}, "
            "half of a character of UTF-16"
        )
    if known is not None and used - known:
        raise ValueError(
            f"text must be made of the {len(known)} characters that the model knows, "
            f"{''.join(sorted(known))!r}, got {''.join(sorted(used - known))!r}"
        )


def _list(value: object, wanted: str = "messages must be a list of dictionaries") -> list:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{wanted}, got {type(value).__name__}")
    return list(value)


def _check_message(i: int, message: object) -> tuple[str, str]:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise TypeError(f"messages[{i}] must be a dictionary with role and content, got {message}")
    role, content = message["role"], message["content"]
    if role not in ("system", "user", "assistant"):
        raise ValueError(
            f"messages[{i}] must have the role system, user or assistant, got {role!r}"
        )
    if not isinstance(content, str):
        raise TypeError(
            f"messages[{i}] must have a string as content, got {type(content).__name__}"
        )
    return role, content


def _check_dtype(dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")
