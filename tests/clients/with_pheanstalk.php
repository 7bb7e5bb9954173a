<?php

// The session of session.txt with pheanstalk 4, as Debian packages it; the port is the argument.

require 'Pheanstalk/autoload.php';

use Pheanstalk\Exception\ServerException;
use Pheanstalk\Job;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

$binary = implode('', array_map('chr', range(0, 255))) . "\r\n";
$client = Pheanstalk::create('127.0.0.1', (int) $argv[1]);

function say(string $command, string $what): void
{
    echo "$command: $what\n";
}

function told(?Job $job): string
{
    return $job ? $job->getId() . ' ' . $job->getData() : 'timed out';
}

function figures(iterable $stats, string ...$keys): string
{
    return implode(', ', array_map(fn ($key) => "$key {$stats[$key]}", $keys));
}

$stats = function (int $id) use ($client): string {
    $stats = $client->statsJob(new JobId($id));
    return "$id {$stats['state']}, " . figures($stats, 'pri', 'delay', 'ttr');
};
$names = function (array $names): string {
    sort($names);
    return implode(', ', $names);
};

$client->useTube('mails');
$client->watch('mails');
$client->ignore('default');
say('list-tube-used', $client->listTubeUsed(true));
say('list-tubes-watched', $names($client->listTubesWatched(true)));

$puts = [
    $client->put('häuser', 20, 0, 60),
    $client->put($binary, 10, 0, 90),
    $client->put('later', 0, 100, 60),
];
say('put', implode(', ', array_map(fn ($job) => $job->getId(), $puts)));
$job = $client->reserve();
say('reserve', $job->getId() . ', ' . ($job->getData() === $binary ? 'the bytes that were put' : $job->getData()));
say('stats-job', $stats(2));
say('reserve', told($client->reserve()));
say('reserve-with-timeout', told($client->reserveWithTimeout(0)));
say('peek-delayed', told($client->peekDelayed()));
$client->touch($job);
say('touch', '2');
$client->delete($job);
say('delete', '2');

$client->release(new JobId(1), 30, 1);
say('release', '1');
say('stats-job', $stats(1));
say('reserve', told($client->reserve()));
$client->bury(new JobId(1), 40);
say('bury', '1');
say('stats-job', $stats(1));
say('peek-buried', told($client->peekBuried()));
say('kick', $client->kick(10));
say('kick', $client->kick(10));
say('peek-ready', told($client->peekReady()));

$client->pauseTube('mails', 60);
say('pause-tube', $client->statsTube('mails')['pause'] . ', ' . told($client->reserveWithTimeout(0)));
$client->resumeTube('mails');
say('pause-tube', $client->statsTube('mails')['pause']);
say('reserve-with-timeout', told($client->reserveWithTimeout(0)));
$client->delete(new JobId(3));
say('delete', '3');
say('reserve', told($client->reserve()));
$client->delete(new JobId(1));
say('delete', '1');
try {
    $client->delete(new JobId(1));
} catch (ServerException $error) {
    say('delete', str_contains($error->getMessage(), 'NOT_FOUND') ? 'not found' : $error->getMessage());
}

$client->watch('other');
$client->useTube('other');
$client->put('x');
say('list-tubes', $names($client->listTubes()));
say('reserve', told($client->reserve()));
say('stats-tube', figures($client->statsTube('other'), 'total-jobs', 'current-jobs-reserved', 'cmd-delete'));
say('stats', figures($client->stats(), 'total-jobs', 'current-jobs-ready', 'current-jobs-reserved', 'cmd-bury'));
