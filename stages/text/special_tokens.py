"""BERT's special tokens."""

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""In the order of their ids, as BERT's vocabularies are laid out."""
