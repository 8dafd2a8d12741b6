"""Corrections fitted to published closed loops.

Written by `python benchmarks/fidelity.py silicon FILE --write MODULE`, from systems/silicon_sample.csv of
aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), the half of its configurations that is open here:
715 rows, filtered as `benchmarks/silicon_rows.py` says. How far off such a fit is on configurations
that it has not seen: docs/simulator.md, Accuracy.
"""

from collections.abc import Mapping
from typing import Final

from headway.cost.measured import Correction, Key

# rows, scale, step ms, row ms; base ms, prompt, steps, crowd
CORRECTIONS: Final[Mapping[Key, Correction]] = {
    ("sglang",): Correction(65, 0.8898, 4.996, 0.0604, 104.8, 0, 20.95, 0.4225),
    ("trtllm",): Correction(239, 1.061, 2.097, 0.01231, 0, 1.213, 13.11, 0.05936),
    ("vllm",): Correction(411, 1.256, 2.444, 0.002295, 40.62, 1.748, 0, 0.1445),
    ("sglang", "deepseek-v3"): Correction(65, 0.8371, 5.405, 0.06519, 39.07, 0, 27.57, 0.3773),
    ("trtllm", "deepseek-v3"): Correction(55, 1.023, 2.872, 0.04648, 32.42, 1.945, 16.99, 0.07715),
    ("trtllm", "gpt-oss-120b"): Correction(85, 1.309, 1.57, 0, 32.79, 2.767, 1.402, 0.08302),
    ("trtllm", "llama-3.1-70b"): Correction(99, 0.86, 2.716, 0.03698, 0, 0.8227, 10, 0.05705),
    ("vllm", "gpt-oss-120b"): Correction(110, 1.207, 1.754, 0, 24.16, 1.763, 0, 0.193),
    ("vllm", "kimi-k2"): Correction(46, 1.039, 4.687, 0.1415, 63.74, 2.379, 0, 0.1635),
    ("vllm", "llama-3.1-70b"): Correction(116, 0.966, 3.069, 0.05392, 75.51, 0.8169, 0, 0.0895),
    ("vllm", "minimax-m2"): Correction(139, 1.089, 4.328, 0.01367, 27.73, 3.012, 0, 0.1382),
    ("sglang", "deepseek-v3", "B200", "fp8"): Correction(19, 0.6956, 5.381, 0.07672, 24.34, 1.456, 25.13, 0.228),
    ("sglang", "deepseek-v3", "B200", "nvfp4"): Correction(23, 0.9827, 5.295, 0.0429, 0, 0, 32.06, 0.9778),
    ("sglang", "deepseek-v3", "B300", "fp8"): Correction(5, 0.8889, 5.186, 0.1324, 4.149, 0, 28.75, 0.7384),
    ("sglang", "deepseek-v3", "H200", "fp8"): Correction(18, 0.8505, 4.918, 0.07255, 22.46, 1.016, 12.17, 0.09117),
    ("trtllm", "deepseek-v3", "B200", "fp8"): Correction(9, 1.176, 4.355, 0.03687, 0, 2.654, 8.107, 0.1012),
    ("trtllm", "deepseek-v3", "B200", "nvfp4"): Correction(28, 1.012, 2.355, 0.05358, 62.79, 0, 12.35, 0.1255),
    ("trtllm", "deepseek-v3", "H200", "fp8"): Correction(18, 0.9335, 3.616, 0, 125.3, 1.106, 23.71, 0.04667),
    ("trtllm", "gpt-oss-120b", "B200", "bfloat16"): Correction(50, 0.9392, 1.191, 0.008026, 39.22, 1.002, 0, 0.07708),
    ("trtllm", "gpt-oss-120b", "H200", "bfloat16"): Correction(35, 1.07, 3.386, 0.06358, 71.97, 1.536, 0.8739, 0.1249),
    ("trtllm", "llama-3.1-70b", "B200", "fp8"): Correction(30, 0.898, 2.146, 0.02847, 20.1, 0.6509, 8.829, 0.06854),
    ("trtllm", "llama-3.1-70b", "B200", "nvfp4"): Correction(37, 0.9722, 2.828, 0.02541, 13.64, 1.017, 5.667, 0.06789),
    ("trtllm", "llama-3.1-70b", "H200", "fp8"): Correction(32, 0.7959, 1.875, 0.06958, 0, 0.6848, 15.37, 0.04104),
    ("vllm", "gpt-oss-120b", "B200", "bfloat16"): Correction(40, 0.8142, 1.976, 0.0174, 24.95, 1.997, 0, 0.1297),
    ("vllm", "gpt-oss-120b", "H100-SXM", "bfloat16"): Correction(27, 0.9474, 2.817, 0, 18.48, 1.463, 0, 0.2813),
    ("vllm", "gpt-oss-120b", "H200", "bfloat16"): Correction(43, 1.296, 1.713, 0.01068, 23.27, 2.004, 2.084, 0.1291),
    ("vllm", "kimi-k2", "B200", "int4"): Correction(20, 1.314, 5.168, 0.1336, 61.57, 3.277, 0, 0.206),
    ("vllm", "kimi-k2", "B200", "nvfp4"): Correction(17, 0.9536, 4.38, 0.01611, 47.99, 2.297, 0, 0.1094),
    ("vllm", "kimi-k2", "B300", "nvfp4"): Correction(1, 0.9437, 4.297, 0.04402, 54, 2.206, 0, 0.1204),
    ("vllm", "kimi-k2", "H200", "int4"): Correction(8, 1.014, 5.312, 0.09472, 65.17, 2.427, 0, 0.1223),
    ("vllm", "llama-3.1-70b", "B200", "fp8"): Correction(10, 0.9767, 2.976, 0.04297, 62.57, 1.146, 0, 0.09807),
    ("vllm", "llama-3.1-70b", "B200", "nvfp4"): Correction(44, 0.9977, 3.151, 0.05264, 81.9, 1.012, 0.2382, 0.1233),
    ("vllm", "llama-3.1-70b", "H100-SXM", "fp8"): Correction(
        31, 0.9397, 2.928, 0.06475, 42.25, 0.8302, 0.2906, 0.07124
    ),
    ("vllm", "llama-3.1-70b", "H200", "fp8"): Correction(31, 0.9811, 2.592, 0.04802, 41.94, 0.9184, 0.7846, 0.0699),
    ("vllm", "minimax-m2", "B200", "fp8"): Correction(30, 0.9885, 5.491, 0.009046, 0, 4.491, 0, 0.1295),
    ("vllm", "minimax-m2", "B200", "nvfp4"): Correction(18, 0.941, 3.666, 0.01835, 23.62, 2.691, 0, 0.1457),
    ("vllm", "minimax-m2", "B300", "fp8"): Correction(14, 0.9433, 4.74, 0.04252, 43.05, 2.304, 0.7967, 0.1498),
    ("vllm", "minimax-m2", "B300", "nvfp4"): Correction(30, 0.925, 3.851, 0.02251, 18.34, 3.1, 0, 0.1435),
    ("vllm", "minimax-m2", "H100-SXM", "fp8"): Correction(8, 1.002, 5.506, 0, 2.283, 3.145, 0, 0.0813),
    ("vllm", "minimax-m2", "H200", "fp8"): Correction(39, 1.204, 4.8, 0.02684, 52.64, 2.484, 0, 0.134),
}
