<?php

// The work of the worker in PHP.

function note(string $word, string $key): void
{
    file_put_contents('log', sprintf("%s %s %.6f\n", $word, $key, hrtime(true) / 1e9), FILE_APPEND);
}

function work(string $body, callable $touch): void
{
    $task = json_decode($body, true, 512, JSON_THROW_ON_ERROR);
    note('begin', $task['key']);
    if ($task['kind'] === 'fails') {
        throw new Exception('as it is meant to');
    }
    while ($task['kind'] !== 'quick' && !file_exists("end-{$task['key']}")) {
        if ($task['kind'] === 'touches') {
            $touch();
        }
        usleep(5000);
        clearstatcache();
    }
    note('end', $task['key']);
}
