"""The same job on NeMo RL, which spans several nodes.

JobConfig + RunPlan + files --(config)--> NeMo RL's master config --(launch)--> its script on a Ray cluster
its event files --(metrics)--> metrics.jsonl        its step_N folder --(export)--> export/
its exit status and last words --(outcome)--> success, or the cause of the failure
``differences`` says where NeMo RL computes something else than ``engine=local`` would.
"""
