"""Send notifications about a run to chats, e-mail addresses and webhooks."""
