"""ONNX graphs of target and drafter for TensorRT: dense rows of a batch, standard operators, one graph for every size.

Letters, in every file of this room: B sequences of a pass, S rows of each (R + K - 1 in the drafter), C positions that
a cache holds, D width of a head and Dc that of its cache, Hq and Hkv heads, H hidden size, V vocabulary.
"""

from peagle_trt.graph.batched.build import build_batched_graphs
from peagle_trt.graph.batched.ports import Port, batched_ports, first_key_row

__all__ = ["Port", "batched_ports", "build_batched_graphs", "first_key_row"]
