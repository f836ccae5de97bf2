"""One module per subcommand of ``grpo``; each is imported only when it is called (see ``launcher.cli``)."""
