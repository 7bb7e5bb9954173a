# The work of the worker in Ruby.

require "json"

def note(word, key)
  File.open("log", "a") { |log| log.syswrite("#{word} #{key} #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}\n") }
end

def work(body, touch)
  task = JSON.parse(body)
  note("begin", task["key"])
  raise "as it is meant to" if task["kind"] == "fails"

  until task["kind"] == "quick" || File.exist?("end-#{task["key"]}")
    touch.call if task["kind"] == "touches"
    sleep 0.005
  end
  note("end", task["key"])
end
