// Puts a job and releases it three times with node-beanstalk; the port is the argument.
const { Client } = require("node-beanstalk");

async function main() {
  const client = new Client({ host: "127.0.0.1", port: Number(process.argv[2]) });
  await client.connect();
  await client.use("mail.node");
  await client.put("x");
  await client.watch("mail.node");
  for (let time = 0; time < 3; time++) {
    const { id } = await client.reserve();
    await client.release(id);
    console.log(`released ${id}`);
  }
  client.disconnect();
}

main();
