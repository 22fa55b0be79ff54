"""BERT in PyTorch: the original encoder, its pretraining heads and losses."""
