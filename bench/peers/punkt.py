"""NLTK's Punkt, which both peers' users split sentences with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRAINING_CHARACTERS = 2_000_000


def sentence_splitter(texts: Sequence[str]) -> Callable[[str], list[str]]:
    """`nltk.sent_tokenize`; where NLTK's English model is not installed, Punkt trained on `texts`.

    The algorithm, and with it the speed, is the same; sentence ends may differ a little.
    """
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

        trainer = PunktTrainer()
        size = 0
        for text in texts:
            trainer.train(text, finalize=False)
            size += len(text)
            if size >= TRAINING_CHARACTERS:
                break
        trainer.finalize_training()
        tokenize: Callable[[str], list[str]] = PunktSentenceTokenizer(trainer.get_params()).tokenize
        return tokenize
    found: Callable[[str], list[str]] = nltk.tokenize.sent_tokenize
    return found
