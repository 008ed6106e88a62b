"""Python imports this module when it starts, in every child that inherits the tests' PYTHONPATH."""

from loopback_only import refuse_network

refuse_network()
