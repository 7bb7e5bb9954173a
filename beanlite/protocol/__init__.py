"""The beanstalk protocol: bytes in, replies out. No I/O."""
