// The session of session.txt with jackd; the port is the argument. jackd leaves YAML to its user. Version 2.2.2 puts a
// Buffer as JSON, so that this body is a string, and ends no pause-tube with CR LF, so that there is none here.
const Jackd = require("jackd");
const yaml = require("js-yaml");

const BINARY = String.fromCharCode(...Array(256).keys(), 13, 10);
const told = (job) => `${job.id} ${job.payload}`;
const say = (command, ...what) => console.log(`${command}:`, ...what);

async function main() {
  const client = new Jackd();
  await client.connect({ host: "127.0.0.1", port: Number(process.argv[2]) });
  const stats = async (id) => {
    const { state, pri, delay, ttr } = yaml.load(await client.statsJob(id));
    return `${id} ${state}, pri ${pri}, delay ${delay}, ttr ${ttr}`;
  };
  const reservedAtOnce = () =>
    client.reserveWithTimeout(0).then(told, (error) => {
      if (error.message !== "TIMED_OUT") throw error;
      return "timed out";
    });

  await client.use("mails");
  await client.watch("mails");
  await client.ignore("default");
  say("list-tube-used", await client.listTubeUsed());
  say("list-tubes-watched", yaml.load(await client.listTubesWatched()).join(", "));

  const ids = [
    await client.put("häuser", { priority: 20, ttr: 60 }),
    await client.put(BINARY, { priority: 10, ttr: 90 }),
    await client.put("later", { priority: 0, delay: 100, ttr: 60 }),
  ];
  say("put", ids.join(", "));
  const job = await client.reserve();
  say("reserve", `${job.id},`, job.payload.toString() === BINARY ? "the bytes that were put" : job.payload);
  say("stats-job", await stats("2"));
  say("reserve", told(await client.reserve()));
  say("reserve-with-timeout", await reservedAtOnce());
  say("peek-delayed", told(await client.peekDelayed()));
  await client.touch("2");
  say("touch", 2);
  await client.delete("2");
  say("delete", 2);

  await client.release("1", { priority: 30, delay: 1 });
  say("release", 1);
  say("stats-job", await stats("1"));
  say("reserve", told(await client.reserve()));
  await client.bury("1", 40);
  say("bury", 1);
  say("stats-job", await stats("1"));
  say("peek-buried", told(await client.peekBuried()));
  say("kick", await client.kick(10));
  say("kick", await client.kick(10));
  say("peek-ready", told(await client.peekReady()));

  say("reserve-with-timeout", await reservedAtOnce());
  await client.delete("3");
  say("delete", 3);
  say("reserve", told(await client.reserve()));
  await client.delete("1");
  say("delete", 1);
  await client.delete("1").catch((error) => say("delete", error.message === "NOT_FOUND" ? "not found" : error));

  await client.watch("other");
  await client.use("other");
  await client.put("x");
  say("list-tubes", yaml.load(await client.listTubes()).sort().join(", "));
  say("reserve", told(await client.reserve()));
  const figures = (all, keys) => keys.map((key) => `${key} ${all[key]}`).join(", ");
  const tube = yaml.load(await client.statsTube("other"));
  say("stats-tube", figures(tube, ["total-jobs", "current-jobs-reserved", "cmd-delete"]));
  const all = yaml.load(await client.stats());
  say("stats", figures(all, ["total-jobs", "current-jobs-ready", "current-jobs-reserved", "cmd-bury"]));
  await client.quit();
}

main();
