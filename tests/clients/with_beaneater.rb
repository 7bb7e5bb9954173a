# The session of session.txt with beaneater, as Debian packages it; the port is the argument.

require "beaneater"

BINARY = (0..255).to_a.pack("C*") + "\r\n"

def told(job)
  "#{job.id} #{job.body}"
end

def stats(job)
  stats = job.stats
  "#{job.id} #{stats.state}, pri #{stats.pri}, delay #{stats.delay}, ttr #{stats.ttr}"
end

client = Beaneater.new("127.0.0.1:#{ARGV[0]}")
mails = client.tubes["mails"]
reserved_at_once = lambda do
  told(client.tubes.reserve(0))
rescue Beaneater::TimedOutError
  "timed out"
end

client.tubes.use("mails")
client.tubes.watch!("mails")
puts "list-tube-used: #{client.tubes.used.name}"
puts "list-tubes-watched: #{client.tubes.watched.map(&:name).join(', ')}"

ids = [
  mails.put("häuser", pri: 20, ttr: 60),
  mails.put(BINARY, pri: 10, ttr: 90),
  mails.put("later", pri: 0, delay: 100, ttr: 60),
].map { |put| put[:id] }
puts "put: #{ids.join(', ')}"
binary = client.tubes.reserve
puts "reserve: #{binary.id}, #{binary.body.b == BINARY ? 'the bytes that were put' : binary.body.inspect}"
puts "stats-job: #{stats(binary)}"
job = client.tubes.reserve
puts "reserve: #{told(job)}"
puts "reserve-with-timeout: #{reserved_at_once.call}"
puts "peek-delayed: #{told(mails.peek(:delayed))}"
binary.touch
puts "touch: 2"
binary.delete
puts "delete: 2"

job.release(pri: 30, delay: 1)
puts "release: 1"
puts "stats-job: #{stats(job)}"
job = client.tubes.reserve
puts "reserve: #{told(job)}"
job.bury(pri: 40)
puts "bury: 1"
puts "stats-job: #{stats(job)}"
puts "peek-buried: #{told(mails.peek(:buried))}"
puts "kick: #{mails.kick(10)[:id]}"
puts "kick: #{mails.kick(10)[:id]}"
puts "peek-ready: #{told(mails.peek(:ready))}"

mails.pause(60)
puts "pause-tube: #{mails.stats.pause}, #{reserved_at_once.call}"
mails.pause(0)
puts "pause-tube: #{mails.stats.pause}"
puts "reserve-with-timeout: #{reserved_at_once.call}"
client.jobs.find(3).delete
puts "delete: 3"
job = client.tubes.reserve
puts "reserve: #{told(job)}"
job.delete
puts "delete: 1"
begin
  job.delete
rescue Beaneater::NotFoundError
  puts "delete: not found"
end

other = client.tubes["other"]
client.tubes.watch("other")
other.put("x")
puts "list-tubes: #{client.tubes.all.map(&:name).sort.join(', ')}"
puts "reserve: #{told(client.tubes.reserve)}"
figures = ->(all, keys) { keys.map { |key| "#{key} #{all[key.tr('-', '_')]}" }.join(", ") }
puts "stats-tube: #{figures.call(other.stats, %w[total-jobs current-jobs-reserved cmd-delete])}"
puts "stats: #{figures.call(client.stats, %w[total-jobs current-jobs-ready current-jobs-reserved cmd-bury])}"
client.close
