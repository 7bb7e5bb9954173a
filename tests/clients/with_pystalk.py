"""The session of session.txt with pystalk; the port is the argument."""

import sys

from pystalk import BeanstalkClient, BeanstalkError

BINARY = bytes(range(256)) + b"\r\n"


def told(job):
    return f"{job.job_id} {job.job_data.decode()}"


def stats_of(job_id):
    stats = client.stats_job(job_id)
    return f"{job_id} {stats['state']}, pri {stats['pri']}, delay {stats['delay']}, ttr {stats['ttr']}"


def reserved_at_once():
    try:
        return told(client.reserve_job(timeout=0))
    except BeanstalkError as error:
        return "timed out" if error.message == "TIMED_OUT" else error


client = BeanstalkClient("127.0.0.1", int(sys.argv[1]))
client.use("mails")
client.watchlist = ["mails"]

puts = [client.put_job("häuser", pri=20, ttr=60), client.put_job(BINARY, pri=10, ttr=90)]
puts.append(client.put_job("later", pri=0, delay=100, ttr=60))
print("put:", ", ".join(str(job_id) for _, job_id in puts))
job = client.reserve_job()
print(f"reserve: {job.job_id},", "the bytes that were put" if job.job_data == BINARY else job.job_data)
print("stats-job:", stats_of(2))
print("reserve:", told(client.reserve_job()))
print("reserve-with-timeout:", reserved_at_once())
print("peek-delayed:", told(client.peek_delayed()))
client.delete_job(2)
print("delete: 2")

client.release_job(1, pri=30, delay=1)
print("release: 1")
print("stats-job:", stats_of(1))
print("reserve:", told(client.reserve_job(timeout=10)))
client.bury_job(1, pri=40)
print("bury: 1")
print("stats-job:", stats_of(1))
print("peek-buried:", told(client.peek_buried()))
print("kick:", client.kick_jobs(10)[1])
print("kick:", client.kick_jobs(10)[1])
print("peek-ready:", told(client.peek_ready()))

client.pause_tube("mails", 60)
print(f"pause-tube: {client.stats_tube('mails')['pause']}, {reserved_at_once()}")
client.unpause_tube("mails")
print("pause-tube:", client.stats_tube("mails")["pause"])
print("reserve-with-timeout:", reserved_at_once())
client.delete_job(3)
print("delete: 3")
print("reserve:", told(client.reserve_job()))
client.delete_job(1)
print("delete: 1")
try:
    client.delete_job(1)
except BeanstalkError as error:
    print("delete:", "not found" if error.message == "NOT_FOUND" else error)

client.watch("other")
client.put_job_into("other", "x")
print("list-tubes:", ", ".join(sorted(client.list_tubes())))
print("reserve:", told(client.reserve_job()))
stats = client.stats_tube("other")
print("stats-tube:", ", ".join(f"{key} {stats[key]}" for key in ("total-jobs", "current-jobs-reserved", "cmd-delete")))
stats = client.stats()
keys = ("total-jobs", "current-jobs-ready", "current-jobs-reserved", "cmd-bury")
print("stats:", ", ".join(f"{key} {stats[key]}" for key in keys))
client.close()
