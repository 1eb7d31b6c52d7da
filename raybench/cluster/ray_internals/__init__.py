"""All private or patched parts of Ray that raybench uses, with the fallback if one is missing.

Written for Ray 2.55 to 2.60. The tests `tests/cluster/*_internals.py` check that the installed Ray
still has all parts, and remove each part to check that its fallback works.

| file | part of Ray | purpose | fallback |
|---|---|---|---|
| local_ray | `ray_constants.ENABLE_RAY_CLUSTER` | node on 127.0.0.1 | Ray's address, a warning |
| local_ray | `utils.set_sigterm_handler` | keep our SIGTERM handler | Ray's handler |
| local_ray | `RAY_worker_niceness` | workers as nice as the driver | nicer by 15 |
| local_ray | `AuthenticationTokenLoader`, `Config` | one token per session | Ray's token |
| local_ray | names of Ray's programs | notice that Ray has ended | noticed after a timeout |
| trainer | `__ray_ready__` | distinguish lost workers from failed ones | not distinguished |
| trainer | messages about a lost process | a short message | Ray's own message |
| trainer | `RAY_TRAIN_*` variables | start no loggers and watchers | they start |
| trainer | `_create_default_callbacks` | two actors fewer | they start |
| trainer | `_initialize_and_run_controller` | one actor fewer | it starts |
| controller | `TrainController`, `FixedScalingPolicy` | no autoscaler actor | it starts |
| controller | `WorkerGroup._start`, `worker_group_cls` | free a failed group | stays reserved |
| rendezvous | `_TorchBackend`, `execute_single_async` | no port for torch's store | a port |
| rendezvous | also `_TensorflowBackend` | set and test the interface | frameworks guess |
| nodes | `state.get_draining_nodes` | avoid nodes about to shut down | not avoided |
| nodes | `available_resources_per_node` | use by others | seen when a group does not start |
| nodes | autoscaler's report, `get_cluster_status` | know if nodes can be added | assumed not |
| local_ray | configuration of the job | its variables, not to be set twice | Ray refuses them |
| nodes | `node:ADDRESS`, a resource of every node | Tune's actors on the driver's host | none |
"""
