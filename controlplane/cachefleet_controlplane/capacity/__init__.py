"""What caches of another size would serve: hit ratios of a pool at other numbers of workers and other budgets.

advice            what is worth doing by the curve, in sentences and numbers
advice_records    what came of each pool's advice: looks at all pools now and then
capacity_answers  curve, advice and scale-in of each pool, for the admin API, console and findings
capacity_metrics  the curve as Prometheus gauges
capacity_report   the curve of each pool as it is shown
desired_fit       whether the load fitted as many workers as were desired, by the minute
desired_workers   how many workers a pool should have, and why
hit_curve         hit ratio at a number of workers and a budget
outlined_sizes    what outlines say of other sizes, and how that corrects the curve
pool_measures     what a pool's workers have and do now
pool_reuse        reuse distances of each pool's blocks, fed with answered requests
scale_in          which worker goes first, and what is lost with it
size_changes      changes of a pool's size: what the curve foretold, and what came
"""
