// The session of session.txt with node-beanstalk; the port is the argument.
const { Client } = require("node-beanstalk");

const BINARY = Buffer.from([...Array(256).keys(), 13, 10]);
const told = (job) => (job ? `${job.id} ${job.payload}` : "timed out");
const say = (command, ...what) => console.log(`${command}:`, ...what);
const sure = (done, command, ...what) => say(command, ...(done ? what : ["not found"]));

async function main() {
  const client = new Client({
    host: "127.0.0.1",
    port: Number(process.argv[2]),
    serializer: { serialize: (body) => Buffer.from(body), deserialize: (bytes) => bytes },
  });
  await client.connect();
  const stats = async (id) => {
    const { state, pri, delay, ttr } = await client.statsJob(id);
    return `${id} ${state}, pri ${pri}, delay ${delay}, ttr ${ttr}`;
  };
  const pause = async () => (await client.statsTube("mails")).pause;

  await client.use("mails");
  await client.watch("mails");
  await client.ignore("default");
  say("list-tube-used", await client.listTubeUsed());
  say("list-tubes-watched", (await client.listTubesWatched()).join(", "));

  const puts = [
    await client.put("häuser", 60, 20),
    await client.put(BINARY, 90, 10),
    await client.put("later", 60, 0, 100),
  ];
  say("put", puts.map((put) => put.id).join(", "));
  const job = await client.reserve();
  say("reserve", `${job.id},`, BINARY.equals(job.payload) ? "the bytes that were put" : job.payload);
  say("stats-job", await stats(2));
  say("reserve", told(await client.reserve()));
  say("reserve-with-timeout", told(await client.reserveWithTimeout(0)));
  say("peek-delayed", told(await client.peekDelayed()));
  sure(await client.touch(2), "touch", 2);
  sure(await client.delete(2), "delete", 2);

  sure(await client.release(1, 30, 1), "release", 1);
  say("stats-job", await stats(1));
  say("reserve", told(await client.reserve()));
  sure(await client.bury(1, 40), "bury", 1);
  say("stats-job", await stats(1));
  say("peek-buried", told(await client.peekBuried()));
  say("kick", await client.kick(10));
  say("kick", await client.kick(10));
  say("peek-ready", told(await client.peekReady()));

  await client.pauseTube("mails", 60);
  say("pause-tube", `${await pause()}, ${told(await client.reserveWithTimeout(0))}`);
  await client.pauseTube("mails", 0);
  say("pause-tube", await pause());
  say("reserve-with-timeout", told(await client.reserveWithTimeout(0)));
  sure(await client.delete(3), "delete", 3);
  say("reserve", told(await client.reserve()));
  sure(await client.delete(1), "delete", 1);
  sure(await client.delete(1), "delete", 1);

  await client.watch("other");
  await client.use("other");
  await client.put("x");
  say("list-tubes", (await client.listTubes()).sort().join(", "));
  say("reserve", told(await client.reserve()));
  const figures = (all, keys) => keys.map((key) => `${key} ${all[key]}`).join(", ");
  const tube = await client.statsTube("other");
  say("stats-tube", figures(tube, ["total-jobs", "current-jobs-reserved", "cmd-delete"]));
  const all = await client.stats();
  say("stats", figures(all, ["total-jobs", "current-jobs-ready", "current-jobs-reserved", "cmd-bury"]));
  await client.disconnect();
}

main();
