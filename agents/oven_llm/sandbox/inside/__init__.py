"""The sandbox's child process. To start fast, it imports only the standard library and message_format.py."""
