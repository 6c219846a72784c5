"""P-EAGLE training: the target's own answers in, a drafter checkpoint out."""
