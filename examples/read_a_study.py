"""Read a study: its answer, its best configurations, and a figure of all learning curves.

python examples/read_a_study.py results/digits
"""

import sys

import raybench

study = raybench.load(sys.argv[1])
print(study)
print(study.confirmed[["config", "hits", "runs", "expected_s"]].to_string(index=False))
print("what matters most:")
print(study.importance)
study.plot.curves().savefig("curves.png")
