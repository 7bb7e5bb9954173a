"""Reads beanstalkd's binlog, to import it into a beanlite database."""
