"""PolyDL: variants of a schedule ranked by the working sets of their data reuses (Tavarageri et al., *PolyDL:
Polyhedral Optimizations for Creation of High Performance DL Primitives*)."""
