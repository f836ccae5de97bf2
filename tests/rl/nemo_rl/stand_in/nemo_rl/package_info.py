"""The version of this stand-in, in the form that NeMo RL states its own."""

MAJOR = 0
MINOR = 7
PATCH = 0
PRE_RELEASE = ""
