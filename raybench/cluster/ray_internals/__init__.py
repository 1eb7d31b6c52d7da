"""All private or patched parts of Ray that raybench uses, each with a fallback (stock path).

Written for Ray 2.55 to 2.60. The tests of `tests/cluster/*_internals.py` check that the installed
Ray still has them all, and take each away to see that the fallback works.

| file | what of Ray | for | stock path |
|---|---|---|---|
| local_ray | `ray_constants.ENABLE_RAY_CLUSTER` | a node on 127.0.0.1 | its address, a warning |
| local_ray | `utils.set_sigterm_handler` | our SIGTERM handler stays | Ray takes SIGTERM |
| local_ray | `RAY_worker_niceness` | workers as nice as the driver | nicer by 15 |
| local_ray | `AuthenticationTokenLoader`, `Config` | a token a session | the one Ray has read |
| local_ray | names of its programs | see that it is gone | seen when it does not answer |
| trainer | `__ray_ready__` | tell a lost worker from a failed one | not told apart |
| trainer | words for a lost process | a short message | Ray's own words |
| trainer | `RAY_TRAIN_*` switches | no loggers, watchers | they run |
| trainer | `_create_default_callbacks` | two actors fewer | they start |
| trainer | `_initialize_and_run_controller` | one actor fewer | it starts |
| controller | `TrainController`, `FixedScalingPolicy` | no autoscaler's actor | it starts |
| controller | `WorkerGroup._start`, `worker_group_cls` | nothing held after a failure | it is |
| rendezvous | `_TorchBackend`, `execute_single_async` | torch's store opens no port | it does |
| rendezvous | and `_TensorflowBackend` | interface set and tried first | frameworks guess |
| nodes | `state.get_draining_nodes` | start no run where a node goes | no notice |
| nodes | `available_resources_per_node` | what others hold | seen when a group does not start |
| nodes | its report, `get_cluster_status` | whether nodes can be had | taken for none |
| local_ray | the job's configuration, its actor's name | what it holds | counts as others' |
| nodes | `node:`, `node:__internal_head__` | Tune's actors beside us | 0.001 CPU anywhere |
"""
