"""What the server takes from the machine: the clock, the loop, signals, stderr and its log, systemd."""
