"""The worker's protocol without I/O: the session interface, messages, codecs and the dialogue.

It needs neither a server nor an engine; clients and servers share it.
"""
