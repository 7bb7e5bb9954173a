// The work of the worker in JavaScript.
const { appendFileSync, existsSync } = require("fs");

const note = (word, key) => appendFileSync("log", `${word} ${key} ${Number(process.hrtime.bigint()) / 1e9}\n`);

exports.work = async (body, touch) => {
  const { key, kind } = JSON.parse(body.toString());
  note("begin", key);
  if (kind === "fails") throw new Error("as it is meant to");
  while (kind !== "quick" && !existsSync(`end-${key}`)) {
    if (kind === "touches") await touch();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  note("end", key);
};
