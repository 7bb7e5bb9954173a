"""beanstalkd's own binlog, read to become a queue of ours."""
