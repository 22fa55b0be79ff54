"""Words of raw text for tagging, each with its place in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex
from tokenizers.pre_tokenizers import BertPreTokenizer, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from stages.text.piece_offsets import slices

Int32s = NDArray[np.int32]

_IDEOGRAPH = (
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f]"
)


class TextWords(Sequence[str]):
    """The words of a text, made when they are asked for: 8 bytes a word.

    Attributes:
        text: what they were found in.
        starts, ends: int32 [W], code points: word i is `text[starts[i]:ends[i]]`.
        tags: None: nothing is known of them.
    """

    def __init__(self, text: str, ideographs: bool) -> None:
        """Cut a text at white space and around every mark of punctuation.

        Args:
            text: of any length.
            ideographs: each of these is a word of its own, as `Normalisation.chinese_characters`
                has it.
        """
        steps: list[PreTokenizer] = [BertPreTokenizer()]
        if ideographs:
            steps.append(Split(Regex(_IDEOGRAPH), "isolated"))
        cutter = Steps(steps)
        places = [np.zeros((0, 2), np.int32)]
        for begin, part in slices(text, ideographs):
            found = [place for _, place in cutter.pre_tokenize_str(part)]
            places.append(np.array(found, np.int32).reshape(-1, 2) + np.int32(begin))
        self.text = text
        self.starts, self.ends = np.concatenate(places).T.copy()
        self.tags: Sequence[str] | None = None

    @property
    def words(self) -> Sequence[str]:
        """Itself: a row of `stages.text.task_words`."""
        return self

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            places = zip(self.starts[index].tolist(), self.ends[index].tolist(), strict=True)
            return tuple(self.text[start:end] for start, end in places)
        return self.text[int(self.starts[index]) : int(self.ends[index])]
