<?php

// Puts a job and releases it three times with pheanstalk; the port is the argument.

require 'Pheanstalk/autoload.php';

$client = Pheanstalk\Pheanstalk::create('127.0.0.1', (int) $argv[1]);
$client->useTube('mail.php')->put('x');
$client->watchOnly('mail.php');
for ($time = 0; $time < 3; $time++) {
    $job = $client->reserve();
    $client->release($job);
    echo "released {$job->getId()}\n";
}
