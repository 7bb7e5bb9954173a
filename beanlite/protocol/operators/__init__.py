"""The words that operators have in the protocol, beside those of beanstalkd."""
