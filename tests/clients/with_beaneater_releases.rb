# Puts a job and releases it three times with beaneater; the port is the argument.

require "beaneater"

client = Beaneater.new("127.0.0.1:#{ARGV[0]}")
client.tubes["mail.ruby"].put("x")
client.tubes.watch!("mail.ruby")
3.times do
  job = client.tubes.reserve
  job.release
  puts "released #{job.id}"
end
client.close
