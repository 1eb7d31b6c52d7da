"""The words of screens, pages and tables, each in one or two sentences, for the page."""

ANSWER = {
    "target": "What a run has to reach on the validation set: a value of the metric, as 95 % "
    "accuracy, in as many evaluations in a row as `objective.hold` says. The first of them counts.",
    "time to target": "Seconds on the training clock until a run reached the target. It is what "
    "configurations are compared by.",
    "expected running time": "What reaching the target takes on average: the seconds of all runs "
    "of a configuration, those included that missed it (and the set-up and compilation of the runs "
    "that begin in their place), over the number that reached it.",
    "worker-seconds": "Seconds of training times the number of workers: what the training costs. "
    "Two workers for 3 s are 6 worker-seconds.",
    "fastest": "The configuration with the least expected time to the target, of all that ran "
    "again with new seeds.",
    "cheapest": "The configuration with the least expected worker-seconds to the target, of all "
    "that ran again with new seeds; in a study that names a price, with the least money as billed. "
    "On one worker it is often the fastest too.",
    "one run": "What a single run of the search has shown. The best of many single runs is partly "
    "luck, so it is no result before it was confirmed.",
    "confirmed": "Trained again with new seeds after the search, and named by these runs. The time "
    "that is printed is of runs alone on the machine that had no part in choosing.",
    "unconfirmed": "Known from one run of the search alone; it may have been luck. The command "
    "without --no-confirm, or with a longer time budget, confirms it.",
    "statistically tied": "The runs scatter so much that the difference may be chance. More runs "
    "(--more N) may settle it; until then take whichever is handier.",
    "90 % interval": "Where the typical time, or value, of a configuration lies in nine of ten "
    "cases, by its runs and by how far runs of all configurations scatter. One fresh run may "
    "well be outside. Of a share the sampling error of its rows is in it too, of other "
    "values that of the seeds alone; configurations share the rows, so are compared without it.",
    "scatter": "How far runs of one configuration lie apart when nothing but the seed differs (one "
    "standard deviation).",
    "predicted (~)": "Not measured: from a trial's learning curve and the measured time of a step. "
    "The best predictions are trained before anything is called a winner.",
    "interpolated (*)": "The target was crossed between two evaluations that are far apart, and "
    "the time is read where the line between them crosses it.",
    "reached": "How many of a configuration's runs got to the target: `3 of 3`. Runs that missed "
    "it count with all their seconds.",
    "Pareto front": "The configurations that no other beats both in seconds and in worker-seconds: "
    "the choice between faster and cheaper.",
}
SEARCH = {
    "configuration": "What is searched, in one line: framework, workers x batch per worker, "
    "optimizer, learning rate, then other searched keys. `torch 2x64 adam 0.004` is PyTorch, 2 "
    "workers with 64 samples a step each, Adam, rate 0.004; `tf` is TensorFlow.",
    "run spec": "All that defines a run, as a YAML file: `best.yaml` is one, and `python -m "
    "raybench.train FILE` trains it.",
    "trial": "A configuration that the search tried, and its run; 0012 is the 13th. `0012.tf1` is "
    "trial 0012 in TensorFlow on 1 worker.",
    "reference": "A run of a usual configuration before the search: it sets what the study leaves "
    "open (the target, seconds a trial may take, how often runs are evaluated).",
    "finalist": "A trial that moves a good one to another framework or number of workers that was "
    "predicted to be faster, to see whether that is true.",
    "race": "The best of the search train again with new seeds, side by side; who falls behind "
    "runs no more. It names the winner.",
    "run alone": "One run at a time on the whole machine: nothing else slows it, so its seconds "
    "are the ones to plan with.",
    "in search": "What the single run of the search has shown, beside the confirmed number: often "
    "better, as the luckiest of many single runs are the ones that are tried again.",
    "sentinel": "One configuration trained alone and then beside another trial, to measure how "
    "much trials that run at the same time slow each other down.",
    "cap": "A run is stopped once it has taken so long that it can no longer win: in the search at "
    "1.5 times (`search.cap_factor`) the third-best so far, in the race at about twice the leader.",
    "rung": "A number of training seconds at which trials are compared: who is not among the best "
    "there is stopped (successive halving, ASHA).",
    "disturbed": "A run in whose training other processes (or the host of a virtual machine, or a "
    "quota) had its cores for a quarter of the seconds or more. It runs again where it could "
    "decide something; one that stays disturbed is marked !.",
    "seed": "The number that fixes what is random in a run: first weights, order of the samples. A "
    "new seed is a new run of the same configuration.",
    "epoch": "One pass over the training samples.",
    "best_at_budget": "A study judged by the best metric within a given number of training "
    "seconds, not by the time to a target.",
}
SECONDS = {
    "ledger": "The account of a run's seconds: queue, start, lost, setup, compile, train, eval, "
    "checkpoint and report, each measured by itself; `other` is what none of them explains.",
    "training clock": "The seconds that decide: training steps and waiting for data. Start-up, "
    "compiling, evaluation and checkpoints are counted, but apart.",
    "queue": "Waiting until workers are free.",
    "start": "Starting worker processes; 0 where they were warm, kept from the run before.",
    "lost": "What was repeated after workers were lost, and noticing it. It is in no time to the "
    "target.",
    "setup": "Making data, model and optimizer ready, and giving their memory back.",
    "compile": "The first step: tracing, compiling and warming up, on data that are thrown away.",
    "train": "Training, waiting for data included: the training clock. Only these seconds count "
    "for the target.",
    "input": "The part of train that waits for data.",
    "eval": "Validation: measuring the metric during a run.",
    "checkpoint": "Saving weights and what a lost run goes on from.",
    "report": "Results and commands on their way between a worker and the search.",
    "other": "What no phase of a run accounts for. It is below 1 % of a run that ended well, and "
    "may be just below 0.",
    "end to end": "All seconds of a run, from asking for workers to its end: the sum of its "
    "ledger; also called wall.",
}
SCALING = {
    "worker": "A process that trains; data-parallel workers hold the same model and share each "
    "step's samples out among them.",
    "batch per worker": "Samples that each worker takes in one step.",
    "global batch": "Samples of one step of all workers together: batch per worker times workers "
    "(times accumulated passes). It decides what is learnt; how it is split decides how fast.",
    "samples/s": "Training samples a second of the training clock, of all workers together.",
    "weak scaling": "More workers with the same batch each, so that the global batch grows.",
    "strong scaling": "More workers with the same global batch, so that each has less to do.",
    "speed-up": "Samples/s over those of the best single worker of the same kind: 1.6 on 2 workers "
    "means 1.6 times as much work in the same time.",
    "efficiency": "Speed-up over the number of workers: 80 % means that a fifth of the hardware is "
    "wasted.",
    "step": "One update of the weights: a global batch forward and backward, the exchange, the "
    "optimizer.",
    "exchange": "Averaging the gradients of all workers, in every step; also called communication. "
    "Its share of a step is what more workers lose.",
    "series": "Cells that differ in workers, hosts and batch size alone; a model of the speed is "
    "fitted to each.",
    "cell": "One point of a scaling study: a configuration on so many workers, repeated.",
    "first epoch": "Measured apart: compiling and filling caches are in it, and in no other "
    "speed, unless a run ended with it.",
    "outlier": "A run far off the others of its cell, or with a stall in it. It is named, and "
    "stays in the spread.",
    "critical batch": "The global batch from which on larger ones hardly save steps. It is told "
    "from the noise of the gradients, or from runs to the target.",
    "compute-bound": "Most of a step is computing: more workers or faster ones help. Likewise "
    "communication-bound (exchange), input-bound (waiting for data).",
}
SECTIONS = {
    "The answer": ANSWER,
    "The search": SEARCH,
    "Where seconds go (the ledger)": SECONDS,
    "Workers and scaling": SCALING,
}
"""The terms by subject, each with what it means."""
