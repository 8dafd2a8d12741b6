"""Corrections fitted to published closed loops.

Written by `python benchmarks/fidelity.py silicon FILE --write MODULE`, from systems/silicon_sample.csv of
aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), the half of its configurations that is open here:
715 rows, filtered as `benchmarks/silicon_rows.py` says. How far off such a fit is on configurations
that it has not seen: docs/simulator.md, Accuracy.
"""

from collections.abc import Mapping
from typing import Final

from headway.cost.measured import Correction, Key

# rows, scale, step ms, row ms; base ms, prompt, crowd, text ms, texts ms
CORRECTIONS: Final[Mapping[Key, Correction]] = {
    ("sglang",): Correction(65, 0.8682, 5.064, 0.06232, 315.1, 0, 0, 0, 4.589),
    ("trtllm",): Correction(239, 1.042, 1.765, 0.009689, 47.21, 0.6364, 0.09575, 8.857, 0),
    ("vllm",): Correction(411, 1.221, 2.129, 0.006348, 29.95, 1.166, 0.08402, 9.392, 0.415),
    ("sglang", "deepseek-v3"): Correction(65, 0.8015, 5.541, 0.06914, 334.7, 0, 0, 0, 4.601),
    ("trtllm", "deepseek-v3"): Correction(55, 0.9679, 3.366, 0.04521, 157.1, 1.539, 0.1818, 0, 0),
    ("trtllm", "gpt-oss-120b"): Correction(85, 1.27, 1.019, 0, 32.57, 2.205, 0.05896, 2.769, 0.1473),
    ("trtllm", "llama-3.1-70b"): Correction(99, 0.8517, 2.682, 0.03708, 56.36, 0.7222, 0.06663, 4.836, 0.2081),
    ("vllm", "gpt-oss-120b"): Correction(110, 1.253, 1.518, 0.003564, 22.67, 1.986, 0.1148, 1.656, 0.2018),
    ("vllm", "kimi-k2"): Correction(46, 0.9999, 4.662, 0.1527, 88.89, 1.422, 0.0915, 0, 1.147),
    ("vllm", "llama-3.1-70b"): Correction(116, 0.9663, 2.976, 0.0567, 53.84, 0.8183, 0.05257, 9.894, 0.8673),
    ("vllm", "minimax-m2"): Correction(139, 1.09, 4.034, 0.01406, 25.81, 2.186, 0.0945, 4.812, 0.3373),
    ("sglang", "deepseek-v3", "B200", "fp8"): Correction(
        19, 0.6987, 5.363, 0.08045, 318.3, 0.1004, 0.06933, 3.551, 5.874
    ),
    ("sglang", "deepseek-v3", "B200", "nvfp4"): Correction(23, 0.8662, 5.641, 0.05251, 376.3, 0, 0, 0, 3.844),
    ("sglang", "deepseek-v3", "B300", "fp8"): Correction(5, 0.8564, 5.33, 0.1379, 280.6, 0, 0.4463, 0, 12.87),
    ("sglang", "deepseek-v3", "H200", "fp8"): Correction(18, 0.8208, 5.119, 0.07921, 231.7, 0, 0, 7.885, 3.104),
    ("trtllm", "deepseek-v3", "B200", "fp8"): Correction(9, 1.087, 4.479, 0.06911, 98.59, 1.533, 0.1567, 8.65, 0.07051),
    ("trtllm", "deepseek-v3", "B200", "nvfp4"): Correction(28, 0.9655, 3.471, 0.04594, 150.3, 0, 0.1793, 0, 0.2222),
    ("trtllm", "deepseek-v3", "H200", "fp8"): Correction(18, 0.9228, 2.979, 0.0113, 343.8, 0.6022, 0.1847, 0, 0),
    ("trtllm", "gpt-oss-120b", "B200", "bfloat16"): Correction(
        50, 0.9826, 1.032, 0.006493, 37.24, 0, 0.03879, 3.441, 0.2352
    ),
    ("trtllm", "gpt-oss-120b", "H200", "bfloat16"): Correction(
        35, 1.059, 3.377, 0.05584, 75.99, 0.8484, 0.06136, 5.711, 0.5524
    ),
    ("trtllm", "llama-3.1-70b", "B200", "fp8"): Correction(
        30, 0.8925, 2.295, 0.02644, 54.75, 0.8265, 0.068, 0.4558, 0.4358
    ),
    ("trtllm", "llama-3.1-70b", "B200", "nvfp4"): Correction(
        37, 0.9541, 2.819, 0.03032, 54.72, 0.8162, 0.06916, 4.155, 0.1771
    ),
    ("trtllm", "llama-3.1-70b", "H200", "fp8"): Correction(32, 0.7964, 1.853, 0.07084, 72.75, 0.7834, 0.06098, 0, 0),
    ("vllm", "gpt-oss-120b", "B200", "bfloat16"): Correction(
        40, 0.8724, 1.863, 0.01625, 20.6, 1.824, 0.06976, 2.259, 0.2423
    ),
    ("vllm", "gpt-oss-120b", "H100-SXM", "bfloat16"): Correction(
        27, 1.171, 1.517, 0.01175, 20.33, 2.065, 0.1177, 0.6222, 0.2916
    ),
    ("vllm", "gpt-oss-120b", "H200", "bfloat16"): Correction(43, 1.306, 1.68, 0.01001, 31.59, 2.005, 0.1277, 0, 0.1799),
    ("vllm", "kimi-k2", "B200", "int4"): Correction(20, 1.269, 5.318, 0.1394, 73.49, 2.014, 0.1048, 11.39, 1.43),
    ("vllm", "kimi-k2", "B200", "nvfp4"): Correction(17, 0.9256, 4.447, 0.02709, 48.49, 1.176, 0.04195, 5.998, 1.182),
    ("vllm", "kimi-k2", "B300", "nvfp4"): Correction(1, 0.9112, 4.3, 0.06224, 82.18, 1.303, 0.06179, 0, 0.9374),
    ("vllm", "kimi-k2", "H200", "int4"): Correction(8, 0.9805, 5.394, 0.106, 92, 1.528, 0.08285, 3.114, 0.8916),
    ("vllm", "llama-3.1-70b", "B200", "fp8"): Correction(
        10, 0.9793, 2.935, 0.04372, 63.32, 0.8184, 0.05964, 9.143, 0.7885
    ),
    ("vllm", "llama-3.1-70b", "B200", "nvfp4"): Correction(
        44, 0.9979, 3.132, 0.05901, 67.25, 1.047, 0.05623, 5.258, 0.9008
    ),
    ("vllm", "llama-3.1-70b", "H100-SXM", "fp8"): Correction(31, 0.941, 2.905, 0.06507, 43.38, 0.8756, 0.06828, 0, 0),
    ("vllm", "llama-3.1-70b", "H200", "fp8"): Correction(31, 0.9791, 2.594, 0.04667, 47.77, 0.9863, 0.06861, 0, 0),
    ("vllm", "minimax-m2", "B200", "fp8"): Correction(30, 1.005, 5.327, 0.006118, 20.85, 2.239, 0.08668, 10.17, 0.376),
    ("vllm", "minimax-m2", "B200", "nvfp4"): Correction(18, 0.9745, 3.568, 0.0156, 25.29, 1.767, 0.0851, 4.844, 0.3895),
    ("vllm", "minimax-m2", "B300", "fp8"): Correction(14, 0.9562, 4.648, 0.04203, 27.43, 2.043, 0.09792, 5.015, 0.3276),
    ("vllm", "minimax-m2", "B300", "nvfp4"): Correction(
        30, 0.9231, 3.88, 0.02233, 24.39, 1.722, 0.09173, 4.786, 0.3253
    ),
    ("vllm", "minimax-m2", "H100-SXM", "fp8"): Correction(8, 1.014, 5.072, 0, 15.71, 2.163, 0.073, 8.188, 0.1036),
    ("vllm", "minimax-m2", "H200", "fp8"): Correction(39, 1.235, 3.874, 0.03432, 54.52, 2.01, 0.08977, 3.884, 0.3992),
}
