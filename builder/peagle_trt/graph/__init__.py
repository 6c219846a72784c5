"""ONNX graphs of target and drafter."""

from peagle_trt.graph.build import build_graphs, graph_shapes

__all__ = ["build_graphs", "graph_shapes"]
