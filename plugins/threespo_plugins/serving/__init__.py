"""What every rollout server in a process of its own needs: starting, watching and stopping it, and JSON over HTTP."""
