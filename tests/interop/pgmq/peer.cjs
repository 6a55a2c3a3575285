// A client of pgmq-js on a string: one JSON request a line in, one JSON answer a line out.
const { Pgmq } = require("pgmq-js");
const readline = require("node:readline");

async function main() {
  const pgmq = await Pgmq.new(JSON.parse(process.argv[2]), { skipExtensionCreation: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [part, verb, ...values] = JSON.parse(line);
    try {
      const answer = await pgmq[part][verb](...values);
      console.log(JSON.stringify({ answer: answer === undefined ? null : answer }));
    } catch (error) {
      console.log(JSON.stringify({ error: String(error) }));
    }
  }
  await pgmq.close();
}

main();
