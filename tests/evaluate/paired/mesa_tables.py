"""Numbers printed in the paper on over-dispersed models, tables 2 and 3."""

import numpy as np

from moeprune.evaluate.paired.deltas import AccuracyTable

TASKS = (
    "AIME25",
    "GSM8K",
    "GPQA",
    "ARC-C",
    "ARC-E",
    "OBQA",
    "PIQA",
    "MMLU",
    "MMLU-Pro",
    "WinoGrande",
    "IFEval",
)
BASELINE = [76.67, 88.86, 64.47, 95.30, 98.32, 92.99, 83.34, 84.01, 72.51, 76.78, 91.67]
ACCURACY = {
    "MESA": [63.33, 92.87, 65.48, 92.66, 97.60, 90.38, 80.73, 79.51, 67.25, 69.59, 89.92],
    "REAP": [73.33, 89.31, 47.72, 91.63, 95.03, 92.18, 74.90, 77.36, 64.27, 78.44, 90.88],
    "EvoESAP": [56.67, 78.32, 44.16, 94.96, 97.64, 89.18, 80.40, 80.15, 66.69, 65.88, 74.07],
    "RM-Uniform": [46.67, 83.24, 56.85, 94.36, 97.56, 92.18, 74.85, 80.31, 66.32, 69.27, 86.07],
    "Random": [33.33, 78.54, 49.75, 90.01, 96.46, 86.97, 78.61, 74.76, 56.06, 72.91, 89.68],
}
TABLE_3 = {
    "MESA": [-13.34, 4.01, 1.01, -2.64, -0.72, -2.61, -2.61, -4.50, -5.26, -7.19, -1.75],
    "REAP": [-3.34, 0.45, -16.75, -3.67, -3.29, -0.81, -8.44, -6.65, -8.24, 1.66, -0.79],
    "EvoESAP": [-20.0, -10.54, -20.31, -0.34, -0.68, -3.81, -2.94, -3.86, -5.82, -10.9, -17.6],
    "RM-Uniform": [-30.0, -5.62, -7.62, -0.94, -0.76, -0.81, -8.49, -3.70, -6.19, -7.51, -5.60],
    "Random": [-43.34, -10.32, -14.72, -5.29, -1.86, -6.02, -4.73, -9.25, -16.45, -3.87, -1.99],
}
TABLE_9 = {"reasoning": ["AIME25", "GSM8K"], "knowledge": ["ARC-C", "ARC-E"]}
APPENDIX_B = {"reasoning": ["GSM8K", "AIME25"], "knowledge": ["MMLU", "ARC-C", "ARC-E"]}


def table(variants=tuple(ACCURACY)):
    return AccuracyTable(
        variants=tuple(variants),
        tasks=TASKS,
        baseline_T=np.array(BASELINE),
        accuracy_VT=np.array([ACCURACY[name] for name in variants]),
    )
