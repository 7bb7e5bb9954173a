// Puts jobs and deletes half of them with node-beanstalk, and connects again whenever that breaks; the arguments are the
// ports of the servers, one of which is active. Each line is what was acknowledged, or a delete that is about to be sent.
const { Client } = require("node-beanstalk");

const ports = process.argv.slice(2).map(Number);
const serializer = { serialize: (body) => Buffer.from(body), deserialize: (bytes) => bytes };
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);
let serial = 0;

async function work(port) {
  const client = new Client({ host: "127.0.0.1", port, serializer });
  // The client itself does not say that its connection has ended.
  const ended = new Promise((_, reject) => {
    client._conn.on("error", reject);
    client._conn.on("close", () => reject(new Error("the connection has ended")));
  });
  ended.catch(() => {});
  const done = (reply) => Promise.race([reply, ended]);
  await done(client.connect());
  for (;;) {
    for (let two = 0; two < 2; two++) {
      const body = `node-beanstalk-${++serial}`;
      say("put", (await done(client.put(body))).id, body);
    }
    const { id } = await done(client.reserve());
    say("deleting", id);
    await done(client.delete(id));
    say("deleted", id);
  }
}

async function main() {
  for (let turn = 0; ; turn++) {
    await work(ports[turn % ports.length]).catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

main();
